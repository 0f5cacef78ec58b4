"""The API of a Kubernetes cluster as the hub's account, and what `labkit hub --check` asks it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

_ANSWER_SECONDS = 20


async def log_in(configuration: Any) -> None:
    """Log in with the pod's service account, or else a kubeconfig. Raises kubernetes_asyncio's `ConfigException`."""
    from kubernetes_asyncio import config

    try:
        config.load_incluster_config(client_configuration=configuration)
    except config.ConfigException:
        # KUBECONFIG as it is now, not as it was when the package was imported
        await config.load_kube_config(os.environ.get("KUBECONFIG"), client_configuration=configuration)


async def forbidden(api: Any, namespace: str, rights: Mapping[str, Sequence[str]]) -> list[str]:
    """Return those of `rights` that the hub lacks, such as `create jobs.batch`.

    rights: verbs by kind of objects, named as for kubectl: `pods`, `pods/log`, `jobs.batch`.
    """
    from kubernetes_asyncio import client

    async def may(verb: str, kind: str) -> bool:
        resource, _, group = kind.partition(".")
        resource, _, part = resource.partition("/")
        about = client.V1ResourceAttributes(
            namespace=namespace, verb=verb, group=group, resource=resource, subresource=part
        )
        review = client.V1SelfSubjectAccessReview(spec=client.V1SelfSubjectAccessReviewSpec(resource_attributes=about))
        authorization = client.AuthorizationV1Api(api)
        answer = await authorization.create_self_subject_access_review(review, _request_timeout=_ANSWER_SECONDS)
        return bool(answer.status.allowed)

    return [f"{verb} {kind}" for kind, verbs in rights.items() for verb in verbs if not await may(verb, kind)]


def problems(question: Callable[[Any], Awaitable[str]]) -> Iterator[str]:
    """Ask a cluster before the hub runs: yield what `question` returns unless it is empty, or why it has no answer.

    question: takes kubernetes_asyncio's `ApiClient`.
    """
    from kubernetes_asyncio import client, config

    async def ask() -> str:
        configuration = client.Configuration()
        await log_in(configuration)
        async with client.ApiClient(configuration) as api:
            try:
                return await question(api)
            except client.ApiException as problem:
                return f"Kubernetes does not answer the hub as it should: HTTP {problem.status}, {problem.reason}"

    try:
        answer = asyncio.run(ask())
    except config.ConfigException as error:
        answer = f"no Kubernetes is configured here: {error}"
    except (OSError, TimeoutError) as error:
        answer = f"the API of Kubernetes does not answer: {error}"
    if answer:
        yield answer
