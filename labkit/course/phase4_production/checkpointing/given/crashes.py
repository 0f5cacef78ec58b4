"""States in which a power failure may leave files, after each operation in a log of `storage_server.serve`.

The model is that of POSIX (Pillai et al. 2014): the content of a file is sure once it is synced, and so are the names
in a folder; until then any part of it may be there. Names and contents become durable independently of each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from labkit.course.phase4_production.checkpointing.given.storage_server import Files


@dataclass(eq=False)
class _File:
    content: str
    synced: str = ""


@dataclass(eq=False)
class _Folder:
    files: dict[str, _File] = field(default_factory=dict)
    synced: dict[str, _File] = field(default_factory=dict)


class CrashState(NamedTuple):
    """Files that a power failure leaves."""

    after: int
    """Number of operations of the log that were done."""
    operation: str
    """The last one of them, such as `rename step_00000003.tmp`."""
    files: Files
    incomplete: tuple[str, ...]
    """Folders with a checkpoint's name that are incomplete: a file is missing, or has lost its content."""


def crash_states(log: Iterable[Mapping[str, Any]]) -> Iterator[CrashState]:
    """Yield the different states after each operation that changes something.

    There are up to four: only what is synced is left; all names are left, but contents are torn; names in the root are
    left, but not those of files; removed folders are gone, but renamed ones have their old names.
    """
    root: dict[str, _Folder] = {}
    synced: dict[str, _Folder] = {}
    for after, entry in enumerate(log, 1):
        op, path = entry["op"], entry["path"]
        if entry.get("failed") or op not in ("make_folder", "write", "sync", "rename", "remove"):
            continue
        folder, _, name = path.partition("/")
        if op == "make_folder":
            root[path] = _Folder()
        elif op == "write":
            root[folder].files[name] = _File(entry["data"])
        elif op == "sync" and name:
            file = root[folder].files[name]
            file.synced = file.content
        elif op == "sync" and folder:
            root[folder].synced = dict(root[folder].files)
        elif op == "sync":
            synced = dict(root)
        elif op == "rename":
            root[entry["new"]] = root.pop(path)
        else:
            del root[path]
        seen = set()
        removed = {n: one for n, one in synced.items() if any(one is other for other in root.values())}
        for folders, all_names in ((synced, False), (root, True), (root, False), (removed, False)):
            files = _left(folders, all_names)
            broken = tuple(n for n, one in folders.items() if not n.endswith(".tmp") and _is_broken(n, one, files))
            if (key := (frozenset(files.items()), broken)) not in seen:
                seen.add(key)
                yield CrashState(after, f"{op} {path or 'the root folder'}", files, broken)


def _left(folders: Mapping[str, _Folder], all_names: bool) -> dict[str, str]:
    files = {}
    for name, folder in folders.items():
        for file_name, file in (folder.files if all_names else folder.synced).items():
            # torn in the middle: half of the bytes, of two digits each
            torn = file.content[: len(file.content) // 4 * 2] if all_names else ""
            files[f"{name}/{file_name}"] = file.synced or torn
    return files


def _is_broken(name: str, folder: _Folder, files: Files) -> bool:
    wanted = {f"{name}/{file_name}": file.content for file_name, file in folder.files.items()}
    return any(files.get(path) != content for path, content in wanted.items())
