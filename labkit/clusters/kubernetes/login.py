"""How to log in to a cluster: as a person or as a service. Here alone is known where clusters and credentials are.

Kubernetes' own package reads kubeconfigs, runs login programs, renews tokens, and knows certificates and proxies.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.clusters.kubernetes.errors import KubernetesError
from labkit.installing import how_to_install

HUB = "LABKIT_KUBERNETES_API"
"""Environment variable: the address under which a course's hub passes requests on to the cluster's API. The hub knows
the learner by the server's token."""
_HUB_TOKEN = "JUPYTERHUB_API_TOKEN"
_IN_CLUSTER_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True)
class Login:
    """A cluster and a user of it."""

    configuration: Any
    """The package's `Configuration`."""
    namespace: str
    """The initial one; empty if unknown."""


def as_person(context: str | None = None) -> Login:
    """Log in as the person who runs a notebook.

    context: of the kubeconfig; None: the cluster behind the course's hub, else its current one, or, without a
        kubeconfig in a pod, that pod's own cluster.
    Raises `KubernetesError` if the package is missing or no cluster is configured.
    """
    login = _behind_hub() if context is None else None
    return login or _from_kubeconfig(context) or _in_cluster() or _nowhere()


def as_service() -> Login:
    """Log in as a program that serves others: by the pod's service account, or else the kubeconfig's current context.

    Raises `KubernetesError` if the package is missing or no cluster is configured.
    """
    return _in_cluster() or _from_kubeconfig(None) or _nowhere()


def _behind_hub() -> Login | None:
    if not (hub := os.environ.get(HUB)):
        return None
    configuration = _configuration()
    configuration.host = hub
    configuration.api_key["authorization"] = f"bearer {os.environ.get(_HUB_TOKEN, '')}"
    return Login(configuration, "")


def _from_kubeconfig(context: str | None) -> Login | None:
    configuration, files = _configuration(), _kubeconfig_files()
    from kubernetes import config

    if not any(Path(name).expanduser().is_file() for name in files.split(os.pathsep) if name):
        return None
    try:
        contexts, chosen = config.list_kube_config_contexts(files)
        known = {each["name"]: each for each in contexts}
        if context is not None and context not in known:
            raise KubernetesError(f"{files} has no context {context!r}; there are: {', '.join(known)}")
        # this may run an organisation's own login program
        config.load_kube_config(files, context=context, client_configuration=configuration)
    except config.ConfigException as error:
        raise KubernetesError(f"the kubeconfig {files} cannot be used: {error}") from None
    return Login(configuration, str((known[context] if context else chosen)["context"].get("namespace", "")))


def _in_cluster() -> Login | None:
    configuration = _configuration()
    from kubernetes import config

    try:
        config.load_incluster_config(client_configuration=configuration)
    except config.ConfigException:
        return None
    return Login(configuration, _IN_CLUSTER_NAMESPACE.read_text().strip() if _IN_CLUSTER_NAMESPACE.is_file() else "")


def _nowhere() -> Login:
    raise KubernetesError(
        f"nothing says where the Kubernetes cluster is: there is no kubeconfig ({_kubeconfig_files()}), and this is no "
        "pod with a service account. Ask for a kubeconfig; KUBECONFIG may name its file"
    )


def _kubeconfig_files() -> str:
    return os.environ.get("KUBECONFIG") or "~/.kube/config"


def _configuration() -> Any:
    try:
        from kubernetes import client  # late: it takes a second or two
    except ImportError:
        raise KubernetesError(
            f"running on Kubernetes needs the package `kubernetes`: {how_to_install('kubernetes', 'notebooks')}; then "
            "restart the notebook's kernel"
        ) from None
    return client.Configuration()
