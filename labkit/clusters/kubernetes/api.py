"""The cluster's API: plain dicts over HTTPS, for notebooks and for a classroom's hub.

This is the only client. It uses the package `kubernetes` to log in and to keep connections: `lightkube` and `kr8s` are
smaller, but cannot log in everywhere that kubectl can (OIDC, some login programs). The hub, which must not wait, calls
it in threads, since an asynchronous package would read kubeconfigs, certificates and errors a second time.
Contents are JSON written here: the package's models take seconds to import and change between versions.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from labkit.clusters.kubernetes.errors import ApiRefused, ApiUnreachable, message, refusal
from labkit.clusters.kubernetes.login import Login
from labkit.transport import lines

if TYPE_CHECKING:
    from urllib3 import Retry

_CONNECT_SECONDS, ANSWER_SECONDS = 5.0, 30.0
_CONNECTIONS = 2000
"""Maximum connections that are kept for further requests: a log that is followed is one, and a hub follows many."""
_MOST_RETRIES, _RETRY_SECONDS = 5, 10
_MERGE_PATCH = "application/merge-patch+json"


class Api:
    """One cluster, as one user, in one namespace. Threads may share it."""

    def __init__(self, login: Login, namespace: str | None = None) -> None:
        """namespace: None: that of `login`."""
        from kubernetes.client import ApiClient  # late: it takes a second or two

        self._configuration = login.configuration
        self._configuration.connection_pool_maxsize = _CONNECTIONS
        self.namespace = namespace or login.namespace or "default"
        self._pool = ApiClient(self._configuration).rest_client.pool_manager

    @property
    def address(self) -> str:
        return str(self._configuration.host)

    def get(self, path: str, **query: str) -> Any:
        """The object at `path`, which begins with `/`."""
        return self._ask("GET", path, query=query)

    def create(self, thing: Mapping[str, Any]) -> Any:
        """Create an object and return it as in the API's answer."""
        return self._ask("POST", self.path_of(thing).rpartition("/")[0], body=thing)

    def patch(self, path: str, change: Mapping[str, Any]) -> Any:
        """Merge `change` into the object at `path`."""
        return self._ask("PATCH", path, body=change)

    def delete(self, path: str) -> None:
        """Delete the object at `path`, and then all that it owns; it may already be gone."""
        try:
            # Background: it is gone at once, and the objects that it owns follow
            self._ask("DELETE", path, body={"propagationPolicy": "Background"})
        except ApiRefused as error:
            if error.status != 404:
                raise

    def path(self, api_version: str, plural: str, name: str = "") -> str:
        """Path of the objects of a kind in this namespace, or of one: `/apis/batch/v1/namespaces/lab/jobs`."""
        root = "/apis" if "/" in api_version else "/api"
        return f"{root}/{api_version}/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    def path_of(self, thing: Mapping[str, Any]) -> str:
        """Path of an object that the lab makes: a Job, a Secret, a Service, a TrainJob."""
        return self.path(thing["apiVersion"], f"{thing['kind'].lower()}s", thing["metadata"]["name"])

    @contextlib.contextmanager
    def lines(self, path: str, silence: float, **query: str) -> Iterator[Iterator[bytes]]:
        """Lines of a stream: a watch, or a log that is followed.

        They end when the server ends them. Raises `ApiUnreachable` if the connection breaks, and if nothing has arrived
        for `silence` seconds. An incomplete last line is left out.
        """
        with contextlib.closing(self.send("GET", path, query, seconds=silence)) as answer:
            self._require_success("GET", answer)
            yield _lines(answer)

    def may(self, verb: str, kind: str) -> bool:
        """Whether the cluster allows this user that action here.

        kind: of objects, named as for kubectl: `pods`, `pods/log`, `jobs.batch`.
        """
        resource, _, group = kind.partition(".")
        resource, _, part = resource.partition("/")
        attributes = {"namespace": self.namespace, "verb": verb, "group": group, "resource": resource}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes | ({"subresource": part} if part else {})},
        }
        answer = self._ask("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body=review)
        return bool(answer.get("status", {}).get("allowed"))

    def send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: object = None,
        seconds: float = ANSWER_SECONDS,
    ) -> Answer:
        """The API's answer, whatever its status, before its body has arrived; close it.

        seconds: how long to wait for the answer, and for each part of its body.
        A request that the API rejects for now is repeated when the API says.
        Raises `ApiUnreachable`.
        """
        from urllib3 import Timeout
        from urllib3.exceptions import HTTPError

        headers = {"Accept": "application/json", "User-Agent": "labkit"}
        # tokens expire: the package renews them when asked for one
        for setting in self._configuration.auth_settings().values():
            if setting["in"] == "header" and setting["value"]:
                headers[setting["key"]] = setting["value"]
        if body is not None:
            headers["Content-Type"] = _MERGE_PATCH if method == "PATCH" else "application/json"
        url = self.address.rstrip("/") + quote(path) + (f"?{urlencode(query)}" if query else "")
        try:
            response = self._pool.request(
                method,
                url,
                headers=headers,
                body=None if body is None else json.dumps(body),
                timeout=Timeout(connect=_CONNECT_SECONDS, read=seconds),
                preload_content=False,
                retries=_retries(),
            )
        except HTTPError as error:
            raise ApiUnreachable(
                f"the Kubernetes API at {self.address} does not answer: {_why(error)}. "
                "Is the network (a VPN) up? Does `kubectl get pods` work?",
                _why(error),
            ) from None
        return Answer(response, self.address)

    def _ask(self, method: str, path: str, query: Mapping[str, str] | None = None, body: object = None) -> Any:
        with contextlib.closing(self.send(method, path, query, body)) as answer:
            self._require_success(method, answer)
            content = answer.read()
        try:
            return json.loads(content)
        except ValueError:  # a proxy's page
            raise self._not_well(message(content)) from None

    def _require_success(self, method: str, answer: Answer) -> None:
        if method == "GET" and (answer.status >= 500 or answer.status == 429):
            raise self._not_well(message(answer.read()))
        if answer.status >= 400:
            raise refusal(answer.status, answer.read(), self.namespace)

    def _not_well(self, reason: str) -> ApiUnreachable:
        return ApiUnreachable(f"the Kubernetes API at {self.address} is not well: {reason}", reason)


class Answer:
    """An answer of the API. One thread reads its body; any may close it, which ends the reading."""

    def __init__(self, response: Any, address: str) -> None:
        self._response, self._address = response, address
        self.status: int = response.status
        self.content_type: str = response.headers.get("Content-Type", "application/json")

    def part(self) -> bytes:
        """The next part of the body, as soon as it arrives; empty at the end.

        Raises `ApiUnreachable` if the connection breaks or the API falls silent.
        """
        from urllib3.exceptions import HTTPError

        try:
            # read1: the available data, without waiting for more
            return bytes(self._response.read1(1 << 16))
        except (HTTPError, OSError, ValueError, AttributeError) as error:  # the last two: closed by another thread
            reason = f"it has stopped answering: {_why(error)}"
            text = f"the Kubernetes API at {self._address} has stopped answering: {_why(error)}"
            raise ApiUnreachable(text, reason) from None

    def read(self) -> bytes:
        """The rest of the body. Raises `ApiUnreachable`, as `part` does."""
        return b"".join(iter(self.part, b""))

    def close(self) -> None:
        """End the answer; the connection is kept if the body has been read."""
        # a thread may still be reading; RuntimeError: the body has been read
        with contextlib.suppress(OSError, RuntimeError):
            self._response.shutdown()
        self._response.close()


def _retries() -> Retry:
    """Rejected requests are repeated where the answer says when, as kubectl does; nothing else is."""
    from urllib3 import Retry

    return Retry(
        total=_MOST_RETRIES,
        connect=False,
        read=False,
        redirect=False,
        other=0,
        allowed_methods=None,
        raise_on_status=False,
        retry_after_max=_RETRY_SECONDS,
    )


def _why(error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    return str(reason).split(": ", 1)[-1][:200]


def _lines(answer: Answer) -> Iterator[bytes]:
    decoder = lines.Decoder()
    while data := answer.part():
        yield from decoder.feed(data)
