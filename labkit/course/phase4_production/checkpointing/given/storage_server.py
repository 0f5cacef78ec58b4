"""A storage that one rank keeps in memory for the others, so that a check sees each operation, and can disturb it.

The last rank of a job calls `serve`; on the others, `RemoteStorage(rank)` sends it each operation as a message. It
returns a log from which `crashes.py` computes what a power failure leaves.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from labkit.course.phase4_production.checkpointing.given.storage import Hole, Part, Storage
from labkit.torch_versions.dispatch import no_modes

Files = Mapping[str, str]
"""Content of files, in hexadecimal digits, by path: `step_00000001/manifest.json`."""


class RemoteStorage(Storage):
    """Files that rank `server` keeps. Messages go through the default group, which has that rank."""

    def __init__(self, server: int) -> None:
        self.server = server

    def make_folder(self, path: str) -> None:
        self._ask("make_folder", path)

    def write(self, path: str, parts: Iterable[Part]) -> None:
        self._ask("write", path, b"".join(bytes(p.nbytes) if isinstance(p, Hole) else bytes(p) for p in parts))

    def sync(self, path: str) -> None:
        self._ask("sync", path)

    def rename(self, old: str, new: str) -> None:
        self._ask("rename", old, new=new)

    def remove(self, path: str) -> None:
        self._ask("remove", path)

    def list(self, path: str) -> dict[str, int]:
        sizes: dict[str, int] = json.loads(self._ask("list", path))
        return sizes

    def read(self, path: str, start: int = 0, nbytes: int | None = None) -> bytearray:
        return bytearray(self._ask("read", path, start=start, nbytes=nbytes))

    def scene(self, number: int) -> None:
        """Change to the files of another scene, for all ranks."""
        self._ask("scene", "", number=number)

    def note(self, text: str) -> None:
        """Add a line to the log."""
        self._ask("note", text)

    def leave(self) -> None:
        """End this rank's operations."""
        self._ask("leave", "")

    def _ask(self, op: str, path: str, data: bytes = b"", **more: Any) -> bytes:
        _send(self.server, {"op": op, "path": path, **more}, data)
        answer, content, _ = _receive(self.server)
        if "errno" in answer:
            raise OSError(answer["errno"], os.strerror(answer["errno"]), path)
        return content


def serve(
    clients: int,
    scenes: Sequence[Files] = ({},),
    faults: Sequence[Mapping[str, Any]] = (),
    disk: Callable[[], Any] | None = None,
) -> dict[str, Any]:
    """Do what the clients ask for until all have left; return the log, an entry for each operation, and the files.

    scenes: files at the start, and those that `scene` changes to. faults: operations that fail, such as {"op": "write",
    "rank": 1, "errno": 28, "times": 2}, `times` of them; without a rank for all. disk: called for each file and
    folder that is made; takes the time of a disk.
    """
    folders = _folders(scenes[0])
    planned = [dict(fault) for fault in faults]
    log: list[dict[str, Any]] = []
    while clients:
        request, data, rank = _receive(None)
        op = request["op"]
        log.append({"rank": rank, **request, **({"data": data.hex()} if op == "write" else {})})
        fault = next((f for f in planned if f["op"] == op and f.get("rank", rank) == rank and f["times"]), None)
        if fault is not None:
            fault["times"] -= 1
            log[-1]["failed"] = True
            _send(rank, {"errno": fault["errno"]})
            continue
        if op in ("make_folder", "write") and disk is not None:
            disk()
        if op == "scene":
            folders = _folders(scenes[request["number"]])
        clients -= op == "leave"
        try:
            _send(rank, {}, _done(folders, request, data))
        except OSError as error:
            log[-1]["failed"] = True
            _send(rank, {"errno": error.errno})
    files = {f"{folder}/{name}": data.hex() for folder, own in folders.items() for name, data in own.items()}
    return {"log": log, "files": files}


def _folders(files: Files) -> dict[str, dict[str, bytes]]:
    folders: dict[str, dict[str, bytes]] = {}
    for path, content in files.items():
        folder, _, name = path.partition("/")
        folders.setdefault(folder, {})[name] = bytes.fromhex(content)
    return folders


def _done(folders: dict[str, dict[str, bytes]], request: Mapping[str, Any], data: bytes) -> bytes:
    """Return the result of an operation. Raises OSError."""
    op, path = request["op"], request["path"]
    folder, _, name = path.partition("/")
    if op == "list":
        sizes = {file: len(content) for file, content in folders.get(path, {}).items()}
        return json.dumps(sizes if path else dict.fromkeys(folders, 0)).encode()
    if op == "make_folder":
        folders[path] = {}
    if op in ("note", "leave", "scene", "make_folder") or (op == "sync" and not path):
        return b""
    if folder not in folders or (op in ("read", "sync") and name and name not in folders[folder]):
        raise FileNotFoundError(2, "no such file or folder", path)
    if op == "write":
        folders[folder][name] = data
    elif op == "rename":
        if request["new"] in folders:
            raise FileExistsError(17, "file exists", request["new"])
        folders[request["new"]] = folders.pop(path)
    elif op == "remove":
        del folders[path]
    elif op == "read":
        start, nbytes = request["start"], request["nbytes"]
        return folders[folder][name][start : None if nbytes is None else start + nbytes]
    return b""


def _send(rank: int, head: Mapping[str, Any], data: bytes = b"") -> None:
    text = json.dumps(head).encode() + b"\n" + data
    with no_modes():
        dist.send(torch.tensor([len(text)]), rank)
        dist.send(torch.frombuffer(bytearray(text), dtype=torch.uint8), rank)


def _receive(rank: int | None) -> tuple[dict[str, Any], bytes, int]:
    with no_modes():
        size = torch.zeros(1, dtype=torch.int64)
        source = dist.recv(size, rank)
        text = torch.empty(int(size), dtype=torch.uint8)
        dist.recv(text, source)
        head, _, data = text.numpy().tobytes().partition(b"\n")
    return json.loads(head), data, source
