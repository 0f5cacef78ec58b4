"""A rank's own environment variables, standard output and working directory."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator, MutableMapping
from typing import Any

from labkit.clusters import torchrun
from labkit.clusters.forkserver.entry import Reporter
from labkit.clusters.virtual.isolation import commands
from labkit.clusters.virtual.isolation.current import here, is_forked
from labkit.hardware import Topology
from labkit.linux import unshare

_ATOMIC_CHARACTERS = 500
"""Characters of a report that a pipe takes in one piece, even with other writers."""


def of_torchrun(topology: Topology, rank: int) -> dict[str, str]:
    """The environment variables that torchrun sets for a rank."""
    return torchrun.environment(
        rank,
        nnodes=topology.nnodes,
        nproc_per_node=topology.nproc_per_node,
        master_addr="localhost",
        master_port=29500,
        run_id="virtual",
    )


def separate(reporter: Reporter) -> None:
    """Give each rank its own environment variables, and report its output as its own."""
    # the same mapping, with a layer for each rank
    os.environ = _RankEnvironment(os.environ)  # type: ignore[assignment]  # noqa: B003
    os.environb = _BytesOf(os.environ)  # type: ignore[assignment]  # as above
    sys.stdout = _RankStream("stdout", reporter, sys.stdout)
    sys.stderr = _RankStream("stderr", reporter, sys.stderr)
    commands.separate(reporter)


def own_folder() -> None:
    """Make `os.chdir` and `os.umask` affect only this thread and those that it starts."""
    with contextlib.suppress(OSError):  # in a sandbox that forbids it they stay common to all ranks
        unshare.unshare(unshare.FILE_SYSTEM_ATTRIBUTES)


class _RankEnvironment(MutableMapping[str, str]):
    """`os.environ` with a layer for each rank; None in the layer hides a variable."""

    def __init__(self, shared: MutableMapping[str, str]) -> None:
        self._shared = shared

    @property
    def _layer(self) -> dict[str, str | None] | None:
        rank = here.rank
        return None if rank is None else rank.environment

    def __getitem__(self, name: str) -> str:
        layer = self._layer
        if layer is not None and name in layer:
            value = layer[name]
            if value is None:
                raise KeyError(name)
            return value
        return self._shared[name]

    def __setitem__(self, name: str, value: str) -> None:
        layer = self._layer
        if layer is None:
            self._shared[name] = value
        elif not isinstance(value, str):
            raise TypeError(f"str expected, not {type(value).__name__}")
        else:
            layer[name] = value

    def __delitem__(self, name: str) -> None:
        self[name]  # raises KeyError like os.environ
        layer = self._layer
        if layer is None:
            del self._shared[name]
        else:
            layer[name] = None

    def __iter__(self) -> Iterator[str]:
        layer = self._layer or {}
        return iter([name for name in {**self._shared, **layer} if layer.get(name, "") is not None])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def copy(self) -> dict[str, str]:
        return dict(self)


class _BytesOf(MutableMapping[bytes, bytes]):
    """`os.environb`: an environment as bytes."""

    def __init__(self, texts: MutableMapping[str, str]) -> None:
        self._texts = texts

    def __getitem__(self, name: bytes) -> bytes:
        return os.fsencode(self._texts[os.fsdecode(name)])

    def __setitem__(self, name: bytes, value: bytes) -> None:
        self._texts[os.fsdecode(name)] = os.fsdecode(value)

    def __delitem__(self, name: bytes) -> None:
        del self._texts[os.fsdecode(name)]

    def __iter__(self) -> Iterator[bytes]:
        return map(os.fsencode, self._texts)

    def __len__(self) -> int:
        return len(self._texts)


class _RankStream(io.TextIOBase):
    """A standard stream that knows the rank of the writing thread."""

    def __init__(self, name: str, reporter: Reporter, shared: Any) -> None:
        self._name = name
        self._reporter = reporter
        self._shared = shared

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        rank = here.rank
        if rank is None:
            self._shared.write(text)
        elif is_forked():
            for start in range(0, len(text), _ATOMIC_CHARACTERS):
                self._reporter.output(rank.number, self._name, text[start : start + _ATOMIC_CHARACTERS])
        else:
            self._reporter.output(rank.number, self._name, text)
        return len(text)

    def fileno(self) -> int:
        return int(self._shared.fileno())
