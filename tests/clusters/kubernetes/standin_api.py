"""A stand-in for kube-apiserver: the part of its protocol that Kubernetes' own Python client, kubectl and the lab use.

Created objects are checked against the schemas that Kubernetes publishes (kubernetes-validate, strict), and custom
resources against those beside this file (standin_kinds.py).
"""

from __future__ import annotations

import json
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from standin_kinds import Kind, discovery, require_valid, served
from standin_store import Object, Store, epoch_seconds


class Refusal(Exception):
    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason = code, reason


class StandInApi(ThreadingHTTPServer):
    """Serves a store at 127.0.0.1. Tests set the fields below."""

    daemon_threads = True

    def __init__(self, store: Store, token: str, certificate: Path) -> None:
        """certificate: with its key; for 127.0.0.1."""
        super().__init__(("127.0.0.1", 0), _Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        # each connection's own thread does the TLS handshake
        self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.store = store
        self.token = token
        self.forbidden: set[tuple[str, str]] = set()
        """(verb, plural) pairs that the role lacks."""
        self.requests: set[tuple[str, str]] = set()
        """(verb, plural) pairs of all requests so far."""
        self.quota = ""
        """Refuses new Jobs, in the words of the quota admission."""
        self.ended_by_hub = ""
        """Answers requests for events as a course's hub does that has ended the run: with this."""
        self.rejections: dict[tuple[str, str], list[tuple[int, dict[str, str], str]]] = {}
        """By (verb, plural): status, headers and body of the answers to the next requests, which are not served."""
        self.trainer: str | None = None
        """The field for pods of this cluster's TrainJobs; None: no Kubeflow Trainer."""
        self.cut_logs_after: list[int] = []
        """Bytes after which the next log streams break."""
        self.cut_watches_after: list[int] = []
        """Events after which the next watches break."""
        self.cut_answers_after: list[int] = []
        """Bytes after which the next answers of JSON break."""
        self.log_requests: list[dict[str, str]] = []
        self.read_log: Callable[[Object, bool, float | None], Iterator[bytes]] = lambda *_: iter(())
        self.over = False
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.server_address[1]}"

    def close(self) -> None:
        self.over = True
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect in the middle of a stream."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: StandInApi

    def log_message(self, *_: object) -> None:
        pass

    def _do(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        try:
            scheme, _, token = self.headers.get("Authorization", "").partition(" ")
            if (scheme.lower(), token) != ("bearer", self.server.token):
                raise Refusal(401, "Unauthorized", "Unauthorized")
            self._answer(unquote(parts.path).rstrip("/"), query, body)
        except Refusal as refusal:
            status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
            self._json(
                {**status, "reason": refusal.reason, "message": str(refusal), "code": refusal.code}, refusal.code
            )

    do_GET = do_POST = do_PATCH = do_DELETE = _do

    def _answer(self, path: str, query: dict[str, str], body: Object) -> None:
        if self.command == "GET" and (found := discovery(path, self.server.trainer)):
            return self._json(found)
        if path.endswith("/selfsubjectaccessreviews"):
            asked = body["spec"]["resourceAttributes"]
            allowed = (asked["verb"], asked["resource"]) not in self.server.forbidden
            return self._json({**body, "status": {"allowed": allowed}}, 201)
        if path.endswith("/clustertrainingruntimes/torch-distributed") and self.server.trainer:
            return self._json({"kind": "ClusterTrainingRuntime", "metadata": {"name": "torch-distributed"}})
        for kind in served(self.server.trainer):
            within = r"/namespaces/([^/]+)" if kind.namespaced else "()"
            if match := re.fullmatch(rf"{kind.root}{within}/{kind.plural}(?:/([^/]+))?(/log|/status)?", path):
                namespace, name, sub = match.groups()
                return self._objects(kind, namespace, name, sub, query, body)
        raise Refusal(404, "NotFound", "the server could not find the requested resource")

    def _objects(
        self, kind: Kind, namespace: str, name: str | None, sub: str | None, query: dict[str, str], body: Object
    ) -> None:
        store, plural = self.server.store, kind.plural
        verb = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}.get(self.command, "get" if name else "list")
        verb = "watch" if verb == "list" and query.get("watch") in ("true", "True", "1") else verb
        what = f"{plural}{(sub or '')}"
        self.server.requests.add((verb, what))
        if (verb, what) in self.server.forbidden:
            group = kind.api_version.rpartition("/")[0]
            raise Refusal(
                403,
                "Forbidden",
                f'{plural}{f".{group}" * bool(group)} is forbidden: User "learner" cannot {verb} resource "{what}" '
                f'in API group "{group}" in the namespace "{namespace}"',
            )
        if rejections := self.server.rejections.get((verb, what)):
            status, headers, text = rejections.pop(0)
            return self._send(status, headers, text.encode())
        if plural == "events" and self.server.ended_by_hub:
            raise Refusal(404, "NotFound", self.server.ended_by_hub)
        if verb == "create":
            return self._json(self._create(kind, namespace, body), 201)
        if verb in ("list", "watch"):
            chosen = _selector(query)
            if verb == "watch":
                return self._watch(namespace, plural, chosen, query)
            items = store.list(plural, namespace, chosen)
            metadata = {"resourceVersion": str(store.version)}
            listed = {"kind": f"{kind.name}List", "apiVersion": kind.api_version}
            return self._json({**listed, "metadata": metadata, "items": items})
        assert name
        thing = store.get(plural, namespace, name)
        if thing is None:
            raise Refusal(404, "NotFound", f'{plural} "{name}" not found')
        if sub == "/log":
            return self._log(thing, query)
        if verb == "patch":
            return self._json(store.change(plural, thing, lambda stored: _merge(stored, body)))
        if verb == "delete":
            store.delete(plural, namespace, name)
        self._json(thing)

    def _create(self, kind: Kind, namespace: str, body: Object) -> Object:
        store, plural = self.server.store, kind.plural
        if plural == "jobs" and self.server.quota:
            raise Refusal(
                403, "Forbidden", f'jobs.batch "{body["metadata"]["name"]}" is forbidden: {self.server.quota}'
            )
        try:
            require_valid(kind, body, self.server.trainer)
        except Exception as error:
            where = ".".join(map(str, getattr(error, "path", ())))
            what = getattr(error, "message", error)
            raise Refusal(422, "Invalid", f"{kind.name} is invalid: {where}: {what}") from None
        if store.get(plural, namespace, body["metadata"]["name"]):
            raise Refusal(409, "AlreadyExists", f'{plural} "{body["metadata"]["name"]}" already exists')
        if plural == "pods":  # one without a controller
            body["status"] = {"phase": "Pending"}
            body["spec"].setdefault("hostname", body["metadata"]["name"])
        return store.create(plural, namespace, body)

    def _watch(self, namespace: str, plural: str, chosen: Callable[[Object], bool], query: dict[str, str]) -> None:
        seconds, version = float(query.get("timeoutSeconds", 60)), int(query.get("resourceVersion") or 0)
        left = self.server.cut_watches_after.pop(0) if self.server.cut_watches_after else None
        self._begin_stream("application/json")
        for kind, changed, thing in self.server.store.events_after(version, seconds, lambda: self.server.over):
            if changed == plural and thing["metadata"]["namespace"] == namespace and chosen(thing):
                event = json.dumps({"type": kind, "object": thing}).encode() + b"\n"
                if left == 0:
                    self._chunk(event[: len(event) // 2])
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                left = None if left is None else left - 1
                self._chunk(event)
        self._chunk(b"")

    def _log(self, pod: Object, query: dict[str, str]) -> None:
        statuses = pod.get("status", {}).get("containerStatuses") or [{"state": {}}]
        state = statuses[0]["state"]
        if not {"running", "terminated"} & state.keys():
            reason = state.get("waiting", {}).get("reason", "ContainerCreating")
            message = (
                f'container "{query.get("container")}" in pod "{pod["metadata"]["name"]}" is waiting to start: {reason}'
            )
            raise Refusal(400, "BadRequest", message)
        self.server.log_requests.append(query)
        since = epoch_seconds() - float(query["sinceSeconds"]) if "sinceSeconds" in query else None
        left = self.server.cut_logs_after.pop(0) if self.server.cut_logs_after else None
        self._begin_stream("text/plain")
        for data in self.server.read_log(pod, query.get("follow") == "true", since):
            if left is not None and len(data) >= left:
                self._chunk(data[:left])
                # as when a proxy in between is restarted: no last chunk
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            left = None if left is None else left - len(data)
            self._chunk(data)
        self._chunk(b"")

    def _begin_stream(self, content: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", content)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _json(self, content: Any, code: int = 200) -> None:
        self._send(code, {"Content-Type": "application/json"}, json.dumps(content).encode())

    def _send(self, code: int, headers: dict[str, str], data: bytes) -> None:
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.server.cut_answers_after:
            self.wfile.write(data[: self.server.cut_answers_after.pop(0)])
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.wfile.write(data)


def _selector(query: dict[str, str]) -> Callable[[Object], bool]:
    labels = [part.partition("=") for part in query.get("labelSelector", "").split(",") if part]
    fields = [part.split("=") for part in query.get("fieldSelector", "").split(",") if part]

    def chosen(thing: Object) -> bool:
        own = thing["metadata"].get("labels") or {}
        return all(name in own and (not is_equal or own[name] == value) for name, is_equal, value in labels) and all(
            str(_field(thing, name)) == value for name, value in fields
        )

    return chosen


def _field(thing: Any, path: str) -> Any:
    for name in path.split("."):
        thing = thing.get(name, {}) if isinstance(thing, dict) else {}
    return thing


def _merge(stored: Object, change: Object) -> None:
    for key, value in change.items():
        if value is None:
            stored.pop(key, None)
        elif isinstance(value, dict) and isinstance(stored.get(key), dict):
            _merge(stored[key], value)
        else:
            stored[key] = value
