"""What `labkit hub --check` asks the API of a Kubernetes cluster, as the hub's account."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from labkit.clusters.kubernetes.api import Api
from labkit.clusters.kubernetes.errors import ApiRefused, ApiUnreachable, KubernetesError
from labkit.clusters.kubernetes.login import as_service


def forbidden(api: Api, rights: Mapping[str, Sequence[str]]) -> list[str]:
    """Return those of `rights` that the hub lacks, such as `create jobs.batch`.

    rights: verbs by kind of objects, named as for kubectl: `pods`, `pods/log`, `jobs.batch`.
    """
    return [f"{verb} {kind}" for kind, verbs in rights.items() for verb in verbs if not api.may(verb, kind)]


def problems(namespace: str, question: Callable[[Api], str]) -> Iterator[str]:
    """Ask a cluster before the hub runs: yield what `question` returns unless it is empty, or why it has no answer."""
    try:
        answer = question(Api(as_service(), namespace))
    except ApiRefused as problem:
        answer = f"Kubernetes does not answer the hub as it should: HTTP {problem.status}, {problem.reason}"
    except ApiUnreachable as problem:
        answer = f"the API of Kubernetes does not answer: {problem.reason}"
    except KubernetesError as problem:
        answer = f"no Kubernetes is configured here: {problem}"
    if answer:
        yield answer
