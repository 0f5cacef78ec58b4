"""The manifest of a checkpoint: the last file that is written, without which a folder is no checkpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from xxhash import xxh3_64_intdigest

from labkit.course.phase4_production.checkpointing.given.errors import CheckpointError
from labkit.course.phase4_production.checkpointing.given.storage import Storage

MANIFEST = "manifest.json"
_FOLDER = re.compile(r"step_(\d{8,})(?:\.(\d+))?")


def new_folder(storage: Storage, step: int) -> str:
    """Return the name for a new checkpoint's folder: `step_00000120`, or `step_00000120.2` if that is taken.

    So a step that is trained again never replaces a checkpoint before there is another one.
    """
    taken = [_order(folder)[1] for folder in checkpoint_folders(storage) if _order(folder)[0] == step]
    return f"step_{step:08}" + (f".{max(taken) + 1}" if taken else "")


def _order(folder: str) -> tuple[int, int]:
    match = _FOLDER.fullmatch(folder)
    assert match is not None
    return int(match[1]), int(match[2] or 1)


def checkpoint_folders(storage: Storage) -> list[str]:
    """Return the names of all checkpoints' folders, also of torn ones, the newest first."""
    return sorted((name for name in storage.list("") if _FOLDER.fullmatch(name)), key=_order, reverse=True)


def unfinished_folders(storage: Storage) -> list[str]:
    """Return the names of folders that were being written, `step_00000120.tmp`."""
    return [name for name in storage.list("") if _FOLDER.fullmatch(name.removesuffix(".tmp")) and ".tmp" in name]


def manifest_text(step: int, metrics: Mapping[str, float] | None, descriptions: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the content of a manifest. descriptions: those of the snapshots of all ranks, in their order."""
    body = {
        "step": step,
        "metrics": dict(metrics or {}),
        "tree": descriptions[0]["tree"],
        "ranks": [{name: value for name, value in rank.items() if name != "tree"} for rank in descriptions],
    }
    text = json.dumps(body).encode()
    return f"{xxh3_64_intdigest(text):016x}\n".encode() + text


def read_manifest(storage: Storage, folder: str) -> dict[str, Any]:
    """Return a checkpoint's manifest. Raises `CheckpointError` if there is none, or if it or a file is torn."""
    files = storage.list(folder)
    if MANIFEST not in files:
        raise CheckpointError(f"{folder} has no {MANIFEST}")
    checksum, _, text = bytes(storage.read(f"{folder}/{MANIFEST}")).partition(b"\n")
    if checksum != f"{xxh3_64_intdigest(text):016x}".encode():
        raise CheckpointError(f"{folder}/{MANIFEST} is torn or corrupt: its checksum is another one")
    manifest: dict[str, Any] = json.loads(text)
    for rank in manifest["ranks"]:
        if files.get(rank["file"]) != rank["nbytes"]:
            raise CheckpointError(
                f"{folder}/{rank['file']} is torn: {files.get(rank['file'], 'no')} bytes of {rank['nbytes']}"
            )
    return manifest


def is_complete(storage: Storage, folder: str) -> bool:
    """Return whether the manifest can be read and all files have their sizes; reads no tensors."""
    try:
        return bool(read_manifest(storage, folder))
    except (CheckpointError, OSError):
        return False


def is_loadable(storage: Storage, folder: str) -> bool:
    """Return whether everything can be read and matches its checksums; reads the whole checkpoint."""
    try:
        for rank in read_manifest(storage, folder)["ranks"]:
            for _, _, _, offset, nbytes, checksum in rank["pieces"]:
                read_piece(storage, f"{folder}/{rank['file']}", offset, nbytes, checksum)
    except (CheckpointError, OSError):
        return False
    return True


def read_piece(storage: Storage, path: str, offset: int, nbytes: int, checksum: int | None) -> bytearray:
    """Return bytes of a file; none without a checksum, as for a fake tensor. Raises `CheckpointError`."""
    if checksum is None:
        storage.read_hole(nbytes)
        return bytearray()
    data = storage.read(path, offset, nbytes)
    if len(data) != nbytes or xxh3_64_intdigest(data) != checksum:
        raise CheckpointError(f"{path} is corrupt: bytes {offset} to {offset + nbytes} have another checksum")
    return data


def metric_of(storage: Storage, folder: str, metric: str) -> float | None:
    """Return the checkpoint's value of a metric; None if it has none, or is torn."""
    try:
        value: float | None = read_manifest(storage, folder)["metrics"].get(metric)
    except (CheckpointError, OSError):
        return None
    return value if value == value else None  # not a number: never the best
