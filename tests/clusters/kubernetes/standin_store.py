"""State of a stand-in cluster: objects as the real API keeps them, with versions, watches and owners."""

from __future__ import annotations

import copy
import datetime
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

Object = dict[str, Any]


def now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def epoch_seconds() -> float:
    return datetime.datetime.now(datetime.UTC).timestamp()


class Store:
    """Objects by (plural, namespace, name). `changed` is notified of every change; it is also the lock."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.version = 1000
        self.objects: dict[tuple[str, str, str], Object] = {}
        self.log: list[tuple[int, str, str, Object]] = []
        """(version, ADDED | MODIFIED | DELETED, plural, object): the events for watches."""

    def list(
        self, plural: str, namespace: str | None = None, chosen: Callable[[Object], bool] = lambda _: True
    ) -> list:
        with self.changed:
            return [
                copy.deepcopy(thing)
                for (kind, space, _), thing in self.objects.items()
                if kind == plural and namespace in (None, space) and chosen(thing)
            ]

    def get(self, plural: str, namespace: str, name: str) -> Object | None:
        with self.changed:
            return copy.deepcopy(self.objects.get((plural, namespace, name)))

    def create(self, plural: str, namespace: str, thing: Object) -> Object:
        with self.changed:
            thing = copy.deepcopy(thing)
            metadata = thing["metadata"]
            metadata.update(namespace=namespace, uid=str(uuid.uuid4()), creationTimestamp=now())
            self.objects[plural, namespace, metadata["name"]] = thing
            return self._tell("ADDED", plural, thing)

    def change(self, plural: str, thing: Object, by: Callable[[Object], object]) -> Object | None:
        """Apply `by` to the current object; return None when it is gone."""
        with self.changed:
            metadata = thing["metadata"]
            stored = self.objects.get((plural, metadata["namespace"], metadata["name"]))
            if stored is None or stored["metadata"]["uid"] != metadata["uid"]:
                return None
            before = copy.deepcopy(stored)
            by(stored)
            return copy.deepcopy(stored) if stored == before else self._tell("MODIFIED", plural, stored)

    def delete(self, plural: str, namespace: str, name: str, now_at_once: bool = False) -> Object | None:
        """Delete an object and what it owns. Pods are only marked: the kubelet removes them."""
        with self.changed:
            thing = self.objects.get((plural, namespace, name))
            if thing is None:
                return None
            if plural == "pods" and not now_at_once:
                self.change("pods", thing, lambda pod: pod["metadata"].setdefault("deletionTimestamp", now()))
                return copy.deepcopy(thing)
            del self.objects[plural, namespace, name]
            self._tell("DELETED", plural, thing)
            for kind, space, other in list(self.objects):
                owners = self.objects[kind, space, other]["metadata"].get("ownerReferences", ())
                if any(owner["uid"] == thing["metadata"]["uid"] for owner in owners):
                    self.delete(kind, space, other)
            return thing

    def events_after(self, version: int, seconds: float, over: Callable[[], bool]) -> Iterator[tuple[str, str, Object]]:
        """Yield (type, plural, object) of every change after `version`, for that many seconds."""
        limit = datetime.datetime.now() + datetime.timedelta(seconds=seconds)
        while not over() and datetime.datetime.now() < limit:
            with self.changed:
                found = [event for event in self.log if event[0] > version]
                if not found:
                    self.changed.wait(0.2)
            for seen, kind, plural, thing in found:
                version = seen
                yield kind, plural, thing

    def _tell(self, kind: str, plural: str, thing: Object) -> Object:
        self.version += 1
        thing["metadata"]["resourceVersion"] = str(self.version)
        self.log.append((self.version, kind, plural, copy.deepcopy(thing)))
        self.changed.notify_all()
        return copy.deepcopy(thing)
