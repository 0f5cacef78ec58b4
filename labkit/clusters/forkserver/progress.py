"""Operations of each rank, in memory shared with its supervisor: written without locks, read when there is no activity.

A rank that waits inside a C++ collective cannot answer. So it records each operation before it begins.
"""

from __future__ import annotations

import itertools
import json
import mmap
import struct
import threading
import time
from collections.abc import Sequence
from typing import Literal

from labkit.clusters.rank_status import PendingOperation
from labkit.linux import mappings

MOST_UNDER_WAY = 32
"""Maximum number of a rank's operations recorded while under way; further ones are only counted."""
_GROUPS_BYTES = 32 << 10
_HEADER = struct.Struct("=QQQ")
"""Operations begun, operations ended, bytes of the list of groups."""
# the state comes last, so that an entry is complete before it counts
_ENTRY = struct.Struct("=diqqqq?40s120scB")
_NAME_BYTES, _LINE_BYTES = 40, 120
_STATE_OFFSET = _ENTRY.size - 1
_FREE, _UNDER_WAY, _WAITED_FOR = range(3)
_FIRST_ENTRY = 64
_FIRST_GROUP = _FIRST_ENTRY + MOST_UNDER_WAY * _ENTRY.size
_SLOT_BYTES = -(-(_FIRST_GROUP + _GROUPS_BYTES) // mmap.PAGESIZE) * mmap.PAGESIZE

KindCode = Literal[b"c", b"s", b"r", b"o"]
COLLECTIVE: KindCode = b"c"
SEND: KindCode = b"s"
RECEIVE: KindCode = b"r"
OTHER: KindCode = b"o"
"""Another wait: for other ranks to appear, for a key of the store."""


class Slot:
    """The rank's side. Any thread may call it; a call takes less than a microsecond."""

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._counts = memory[: _HEADER.size].cast("Q")
        self._begun = itertools.count(1)
        self._ended = itertools.count(1)
        self._free = [_FIRST_ENTRY + i * _ENTRY.size for i in reversed(range(MOST_UNDER_WAY))]
        self._groups: dict[str, int] = {}
        self._lock = threading.Lock()

    def group(self, name: str, ranks: Sequence[int]) -> None:
        """Record a process group and its members, for later operations in it."""
        text = json.dumps([name, list(ranks)]).encode() + b"\n"
        with self._lock:
            used = self._counts[2]
            if used + len(text) <= _GROUPS_BYTES:
                self._groups[name] = len(self._groups)
                start = _FIRST_GROUP + used
                self._memory[start : start + len(text)] = text
                self._counts[2] = used + len(text)

    def begin(
        self,
        kind: KindCode,
        name: str,
        line: str,
        group: str = "",
        sequence: int = -1,
        peer: int | None = None,
        tag: int = 0,
        nbytes: int = 0,
        *,
        spins: bool = False,
    ) -> int:
        """Record the beginning of an operation. Returns the number to pass to `wait` and `end`.

        spins: this rank's CPU time during the operation is no sign of activity: a thread that waits for a GPU takes a
            whole core. Its end must then be recorded within about a second, whether it is waited for or not.
        """
        self._counts[0] = next(self._begun)
        try:
            entry = self._free.pop()
        except IndexError:
            return -1
        _ENTRY.pack_into(
            self._memory,
            entry,
            time.monotonic(),
            self._groups.get(group, -1),
            sequence,
            -1 if peer is None else peer,
            tag,
            nbytes,
            spins,
            name.encode(),
            line.encode()[-_LINE_BYTES:],
            kind,
            _UNDER_WAY,
        )
        return entry

    def wait(self, operation: int) -> None:
        """Record that a thread waits for its end from now on."""
        if operation >= 0 and self._memory[operation + _STATE_OFFSET] == _UNDER_WAY:
            self._memory[operation + _STATE_OFFSET] = _WAITED_FOR

    def end(self, operation: int) -> None:
        """Record the end of an operation. Call it once for each that began."""
        self._counts[1] = next(self._ended)
        if operation >= 0:
            self._memory[operation + _STATE_OFFSET] = _FREE
            self._free.append(operation)


class Board:
    """The supervisor's side: memory for `count` processes, allocated before they are forked."""

    def __init__(self, count: int) -> None:
        # no file and no name: children inherit it by being forked
        self._memory = memoryview(mmap.mmap(-1, max(1, count) * _SLOT_BYTES))

    def slot(self, index: int) -> Slot:
        """The slot of process `index`, for use in that process; earlier contents are erased."""
        memory = self._of(index)
        memory[:_FIRST_GROUP] = bytes(_FIRST_GROUP)
        return Slot(memory)

    def leave_others(self, index: int) -> None:
        """In process `index`: keep only its own part of the board; the rest becomes empty memory."""
        for first, last in ((0, index), (index + 1, len(self._memory) // _SLOT_BYTES)):
            if first < last:
                mappings.leave(self._memory, first * _SLOT_BYTES, (last - first) * _SLOT_BYTES)

    def counts(self, index: int) -> tuple[int, int]:
        """Numbers of operations that process `index` has begun and ended."""
        begun, ended, _ = _HEADER.unpack_from(self._of(index))
        return begun, ended

    def under_way(self, index: int) -> list[PendingOperation]:
        """Operations that process `index` has begun and not ended, oldest first. Safe on any contents."""
        return [operation for operation, state in self._entries(index) if state != _FREE]

    def last(self, index: int) -> PendingOperation | None:
        """The operation that process `index` began last, if it is recorded."""
        return next((operation for operation, _ in reversed(self._entries(index)) if operation.name), None)

    def _entries(self, index: int) -> list[tuple[PendingOperation, int]]:
        """All recorded operations with their state, oldest first."""
        memory, now = self._of(index), time.monotonic()
        groups = _groups(memory)
        entries = []
        for i in range(MOST_UNDER_WAY):
            began, group, sequence, peer, tag, nbytes, spins, name, line, kind, state = _ENTRY.unpack_from(
                memory, _FIRST_ENTRY + i * _ENTRY.size
            )
            label, ranks = groups[group] if 0 <= group < len(groups) else ("", ())
            operation = PendingOperation(
                kind={COLLECTIVE: "collective", SEND: "send", RECEIVE: "receive"}.get(kind, "other"),
                name=_text(name),
                group=label,
                ranks=ranks,
                sequence=sequence,
                peer=peer,
                tag=tag,
                nbytes=nbytes,
                line=_text(line),
                seconds=max(0.0, now - began) if began == began else 0.0,
                waited_for=state == _WAITED_FOR,
                spins=bool(spins),
            )
            entries.append((operation, state))
        return sorted(entries, key=lambda entry: -entry[0].seconds)

    def _of(self, index: int) -> memoryview:
        return self._memory[index * _SLOT_BYTES : (index + 1) * _SLOT_BYTES]


def private_slot() -> Slot:
    """A slot that nobody reads."""
    return Slot(memoryview(bytearray(_SLOT_BYTES)))


def _groups(memory: memoryview) -> list[tuple[str, tuple[int, ...]]]:
    used = min(_HEADER.unpack_from(memory)[2], _GROUPS_BYTES)
    groups = []
    for text in bytes(memory[_FIRST_GROUP : _FIRST_GROUP + used]).splitlines():
        try:
            name, ranks = json.loads(text)
            groups.append((str(name), tuple(int(rank) for rank in ranks)))
        except (ValueError, TypeError, RecursionError):  # a learner's program may write here
            groups.append(("", ()))
    return groups


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode(errors="replace")
