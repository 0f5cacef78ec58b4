"""The cluster's API: plain dicts over HTTPS.

Kubernetes' own package reads the kubeconfig, logs in and keeps connections; it is imported on first use. The contents
are written here as JSON: the package's models take seconds to import and change between versions.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from labkit.clusters.job import InvalidJob
from labkit.transport import lines

HUB = "LABKIT_KUBERNETES_API"
"""Environment variable: the address under which a course's hub passes requests on to the cluster's API. The hub knows
the learner by the server's token."""
_HUB_TOKEN = "JUPYTERHUB_API_TOKEN"
_CONNECT_SECONDS, _ANSWER_SECONDS = 5.0, 30.0
_CONNECTIONS = 256
_IN_CLUSTER_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_MERGE_PATCH = "application/merge-patch+json"


class KubernetesError(InvalidJob):
    """The cluster cannot be used as requested; the message has its answer, and what to try."""


class ApiRefused(KubernetesError):
    """The API has answered with an error. `status` is HTTP's: 403, 404, 409, 422, ..."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class ApiUnreachable(KubernetesError):
    """The API does not answer."""


class Api:
    """One cluster, as one user, in one namespace. Threads may share it.

    context: of the kubeconfig; None: the cluster behind the course's hub, else its current one, or, without a
        kubeconfig in a pod, that pod's own cluster.
    Raises `KubernetesError` if the package is missing or no cluster is configured.
    """

    def __init__(self, context: str | None = None, namespace: str | None = None) -> None:
        self._configuration, own = _configure(context)
        from kubernetes.client import ApiClient  # late: it takes a second or two

        # each pod's log is a connection
        self._configuration.connection_pool_maxsize = _CONNECTIONS
        self.namespace = namespace or own or "default"
        self._pool = ApiClient(self._configuration).rest_client.pool_manager

    @property
    def address(self) -> str:
        return str(self._configuration.host)

    def get(self, path: str, **query: str) -> Any:
        """The object at `path`, which begins with `/`."""
        return self._ask("GET", path, query=query)

    def create(self, thing: Mapping[str, Any]) -> Any:
        """Create an object and return it as in the API's answer."""
        return self._ask("POST", self.path(thing["apiVersion"], thing["kind"]), body=thing)

    def patch(self, path: str, change: Mapping[str, Any]) -> Any:
        """Merge `change` into the object at `path`."""
        return self._ask("PATCH", path, body=change, content=_MERGE_PATCH)

    def delete(self, path: str) -> None:
        """Delete the object at `path`, and then all that it owns; it may already be gone."""
        with contextlib.suppress(_NotFound):
            # Background: it is gone at once, and the objects that it owns follow
            self._ask("DELETE", path, body={"propagationPolicy": "Background"})

    def path(self, api_version: str, kind: str, name: str = "") -> str:
        """Path of the objects of a kind in this namespace: `/apis/batch/v1/namespaces/lab/jobs`."""
        root = "/apis" if "/" in api_version else "/api"
        return f"{root}/{api_version}/namespaces/{self.namespace}/{kind.lower()}s" + (f"/{name}" if name else "")

    @contextlib.contextmanager
    def lines(self, path: str, silence: float, **query: str) -> Iterator[Iterator[bytes]]:
        """Lines of a stream: a watch, or a log that is followed.

        They end when the server ends them. Raises `ApiUnreachable` if the connection breaks, and if nothing has arrived
        for `silence` seconds. An incomplete last line is left out.
        """
        response = self._send("GET", path, query, None, "", (_CONNECT_SECONDS, silence))
        try:
            yield _lines(response, self.address)
        finally:
            # a thread may still be reading
            with contextlib.suppress(OSError, AttributeError):
                response.connection.sock.shutdown(socket.SHUT_RDWR)
            response.close()

    def may(self, verb: str, group: str, plural: str) -> bool:
        """Whether the cluster allows this user that action here. No answer counts as no."""
        attributes = {"namespace": self.namespace, "verb": verb, "group": group, "resource": plural}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        try:
            answer = self._ask("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body=review)
        except ApiRefused:
            return False
        return bool(answer.get("status", {}).get("allowed"))

    def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content: str = "application/json",
    ) -> Any:
        response = self._send(method, path, query or {}, body, content, (_CONNECT_SECONDS, _ANSWER_SECONDS))
        try:
            return json.loads(response.data)
        finally:
            response.release_conn()

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any] | None,
        content: str,
        timeout: tuple[float, float],
    ) -> Any:
        from urllib3 import Timeout
        from urllib3.exceptions import HTTPError

        headers = {"Accept": "application/json", "User-Agent": "labkit"}
        # tokens expire: the package renews them when asked for one
        for setting in self._configuration.auth_settings().values():
            if setting["in"] == "header" and setting["value"]:
                headers[setting["key"]] = setting["value"]
        if body is not None:
            headers["Content-Type"] = content
        url = self.address.rstrip("/") + quote(path) + (f"?{urlencode(query)}" if query else "")
        try:
            response = self._pool.request(
                method,
                url,
                headers=headers,
                body=None if body is None else json.dumps(body),
                timeout=Timeout(connect=timeout[0], read=timeout[1]),
                preload_content=False,
                retries=False,
            )
            if method == "GET" and (response.status >= 500 or response.status == 429):
                raise ApiUnreachable(f"the Kubernetes API at {self.address} is not well: {_message(response.data)}")
            if response.status >= 400:
                raise _refusal(response.status, response.data, self.namespace)
        except HTTPError as error:
            raise ApiUnreachable(
                f"the Kubernetes API at {self.address} does not answer: {_why(error)}. "
                "Is the network (a VPN) up? Does `kubectl get pods` work?"
            ) from None
        return response


class _NotFound(ApiRefused):
    pass


def _configure(context: str | None) -> tuple[Any, str]:
    """The cluster and the user, as the package's Configuration; and the initial namespace."""
    try:
        from kubernetes import client, config
    except ImportError:
        raise KubernetesError(
            "running on Kubernetes needs the package `kubernetes`: pip install 'labkit[kubernetes]', then restart the "
            "notebook's kernel"
        ) from None
    files = os.environ.get("KUBECONFIG") or "~/.kube/config"
    configuration = client.Configuration()
    if context is None and (hub := os.environ.get(HUB)):
        configuration.host = hub
        configuration.api_key["authorization"] = f"bearer {os.environ.get(_HUB_TOKEN, '')}"
        return configuration, ""
    if any(Path(name).expanduser().is_file() for name in files.split(os.pathsep) if name):
        try:
            contexts, chosen = config.list_kube_config_contexts(files)
            known = {each["name"]: each for each in contexts}
            if context is not None and context not in known:
                raise KubernetesError(f"{files} has no context {context!r}; there are: {', '.join(known)}")
            # this may run an organisation's own login program
            config.load_kube_config(files, context=context, client_configuration=configuration)
        except config.ConfigException as error:
            raise KubernetesError(f"the kubeconfig {files} cannot be used: {error}") from None
        return configuration, str((known[context] if context else chosen)["context"].get("namespace", ""))
    try:
        config.load_incluster_config(client_configuration=configuration)
    except config.ConfigException:
        raise KubernetesError(
            f"nothing says where the Kubernetes cluster is: there is no kubeconfig ({files}), and this is no "
            "pod with a service account. Ask for a kubeconfig; KUBECONFIG may name its file"
        ) from None
    return configuration, _IN_CLUSTER_NAMESPACE.read_text().strip() if _IN_CLUSTER_NAMESPACE.is_file() else ""


def _refusal(status: int, body: bytes, namespace: str) -> ApiRefused:
    """An error answer, for people."""
    reason = _message(body) or f"HTTP {status}"
    if status == 404:
        return _NotFound(f"the cluster knows no such thing: {reason}", status)
    if status == 401:
        return ApiRefused(f"the cluster does not know you: {reason}. Log in again, or ask for a new kubeconfig", status)
    if status == 403 and "exceeded quota" in reason:
        return ApiRefused(f"{reason}. Ask for fewer nodes or GPUs, or wait until other runs have ended", status)
    if status == 403 and "cannot" in reason:
        return ApiRefused(
            f"you may not do that in namespace {namespace!r}: {reason}. Another --namespace? Else show this to whoever "
            "runs the cluster: docs/kubernetes.md has the role that is needed",
            status,
        )
    return ApiRefused(f"the cluster refuses: {reason}", status)


def _message(body: bytes) -> str:
    try:
        answer = json.loads(body)
        return str(answer.get("message") or answer)
    except (ValueError, AttributeError):
        return body.decode(errors="replace")[:300].strip()


def _why(error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    return str(reason).split(": ", 1)[-1][:200]


def _lines(response: Any, address: str) -> Iterator[bytes]:
    from urllib3.exceptions import HTTPError

    decoder = lines.Decoder()
    try:
        # read1: the available data, without waiting for more
        while data := response.read1(1 << 16):
            yield from decoder.feed(data)
    except (HTTPError, OSError, ValueError, AttributeError) as error:  # the last two: closed by another thread
        raise ApiUnreachable(f"the Kubernetes API at {address} has stopped answering: {_why(error)}") from None
