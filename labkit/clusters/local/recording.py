"""Recording on a real rank: events for the trace, and operations under way for its supervisor to read."""

from __future__ import annotations

import functools
import itertools
import threading
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import isnan, nan
from typing import Any

import numpy as np

from labkit.clusters.forkserver.progress import COLLECTIVE, OTHER, RECEIVE, SEND, KindCode, Slot
from labkit.clusters.local.computing import Computing
from labkit.clusters.local.gpu import Gpu
from labkit.clusters.program import call_site
from labkit.torch_versions.groups import run_after_backward
from labkit.trace import Columns, Kind, Membership, Trace, in_order

MAX_EVENTS = 200_000
"""Maximum per rank. Later events are counted and left out, so that a long training does not fill the memory."""
_CODES: dict[Kind, KindCode] = {Kind.SEND: SEND, Kind.RECEIVE: RECEIVE, Kind.COLLECTIVE: COLLECTIVE}
_TAG_BITS = 31
monotonic = time.monotonic


class Recorder:
    """This rank's events. Safe to use from any thread; the thread that creates it runs the rank's program."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        ranks_per_machine: int,
        seconds: Callable[[], float],
        slot: Slot,
        tracing: bool,
    ) -> None:
        """`seconds` returns those since the job began. Without `tracing` only `slot` is written."""
        self.rank = rank
        self.slot = slot
        self.left_out = 0
        self._world_size = world_size
        self._ranks_per_machine = ranks_per_machine
        self._origin = monotonic() - seconds()
        self.tracing = tracing
        self._computing = Computing(self._computed) if tracing else None
        self._groups: dict[str, tuple[int, ...]] = {}
        self._memberships: list[Membership] = []
        self._names: set[str] = set()
        """Names of the groups since the last `init_process_group`: the next one uses them again."""
        self._inits = 1
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._starts, self._ends = array("d"), array("d")
        # the other fields of each event, as tuples of plain values: the garbage collector stops tracking those
        self._rows: list[tuple[str, str, int, int | None, str, int, str]] = []
        self._first_row = 0
        """Number of the first of these rows: operations that began before `start_over` have lower ones."""
        self._joined: list[Group] = []
        self._gpus: dict[int, Gpu] = {}
        self._making_gpu = threading.Lock()
        self._awaited: list[Operation] = []
        """Operations that the running backward pass waits for at its end."""

    def joined(self, name: str, ranks: tuple[int, ...], backend: str) -> Group:
        """Record a new process group."""
        if name in self._names:
            self._inits += 1
            self._names.clear()
        self._names.add(name)
        label = name if self._inits == 1 else f"{name} of init {self._inits}"
        self._groups[label] = ranks
        self._memberships.append(Membership(self.rank, label, backend, monotonic() - self._origin, None))
        self.slot.group(label, ranks)
        self._joined.append(Group(label, ranks, self))
        return self._joined[-1]

    @contextmanager
    def making_a_group(self) -> Iterator[None]:
        """Within the context, waiting for the other members is neither computing nor an operation of the trace."""
        entry = self.slot.begin(OTHER, *call_site())
        self.rests()
        try:
            yield
        finally:
            self.slot.end(entry)
            self.computes()

    def computes(self) -> None:
        """Record that the rank's program goes on."""
        if self._computing is not None:
            self._computing.begin(monotonic())

    def rests(self) -> None:
        """Record that the rank's program waits, or has ended."""
        if self._computing is not None:
            self._computing.end(monotonic())

    def without_sleep(self, sleep: Callable[..., None]) -> Callable[..., None]:
        """`sleep`, during which nothing counts as computing."""

        @functools.wraps(sleep)
        def sleeping(seconds: float, /) -> None:
            # a GPU goes on until it has finished its queued work
            gpus = list(self._gpus.values()) if threading.get_ident() == self._thread else []
            self.rests()
            for gpu in gpus:
                gpu.pause()
            try:
                sleep(seconds)
            finally:
                for gpu in gpus:
                    gpu.resume()
                self.computes()

        return sleeping

    def begin(
        self, kind: Kind, name: str, nbytes: int, peer: int | None, group: Group, sequence: int, tag: int, line: str
    ) -> Operation:
        """Begin an operation; until `computes` the program waits for it."""
        label = group.label
        entry = self.slot.begin(_CODES[kind], name, line, label, sequence, peer, tag, nbytes, spins=group.on_gpu)
        if not self.tracing:
            return Operation(self, -1, entry)
        now = monotonic()
        if self._computing is not None:
            self._computing.end(now)
        return Operation(self, self._add(now, nan, (kind.value, name, nbytes, peer, label, sequence, line)), entry)

    def ended(self, row: int, peer: int | None, sequence: int) -> None:
        """End the operation in `row`; `peer`: the sending rank, if it was unknown before."""
        row -= self._first_row
        if row >= 0 and isnan(self._ends[row]):
            self._ends[row] = monotonic()
            if peer is not None:
                kind, name, nbytes, _, group, _, line = self._rows[row]
                self._rows[row] = kind, name, nbytes, peer, group, sequence, line

    def gpu(self, device: int) -> Gpu:
        """A GPU of this rank. From now on the rank computes there, and its thread only feeds the GPU."""
        with self._making_gpu:
            known = self._gpus.get(device)
            if known is None:
                self.rests()
                self._computing = None
                known = self._gpus[device] = Gpu(device, MAX_EVENTS if self.tracing else 0)
        return known

    def awaited_after_backward(self, operation: Operation) -> bool:
        """Plan a wait at the end of the backward pass, for code that asks for a future during it, as DDP does.

        Returns False if no backward pass is running.
        """
        # this operation comes before those that DDP will ask for, and those asked for then come after it
        known = any([not earlier.over for earlier in self._awaited])
        if known or run_after_backward(self._backward_is_through):
            self._awaited.append(operation)
            return True
        return False

    def _backward_is_through(self) -> None:
        for operation in self._awaited:
            operation.wait()
        if self._computing is not None:
            self._computing.pause()
        for gpu in self._gpus.values():
            gpu.pause()
        run_after_backward(self._backward_is_over)

    def _backward_is_over(self) -> None:
        for operation in self._awaited:
            operation.held = False
            operation.dropped()
        self._awaited.clear()
        if self._computing is not None:
            self._computing.resume()
        for gpu in self._gpus.values():
            gpu.resume()

    def _computed(self, start: float, end: float) -> None:
        self._add(start, end, (Kind.COMPUTE.value, "compute", 0, None, "", -1, ""))

    def _add(self, start: float, end: float, row: tuple[str, str, int, int | None, str, int, str]) -> int:
        with self._lock:
            number = len(self._rows)
            if number >= MAX_EVENTS:
                self.left_out += 1
                return -1
            self._rows.append(row)
            self._starts.append(start)
            self._ends.append(end)
            return self._first_row + number

    def start_over(self) -> None:
        """Begin another cell: forget everything except the groups, in which operations count from 0 again."""
        with self._lock:
            self._first_row += len(self._rows)
            self._starts, self._ends, self._rows = array("d"), array("d"), []
            self._awaited.clear()
            self.left_out = 0
            for group in self._joined:
                group.count_anew()
        for gpu in self._gpus.values():
            gpu.start_over()

    def trace(self) -> Trace:
        """The trace until now. Operations that were not waited for end now."""
        self.rests()
        for gpu in self._gpus.values():
            for row, start, end in gpu.spans():
                if row < 0:
                    self._computed(start, end)
                elif row >= self._first_row:
                    self._starts[row - self._first_row], self._ends[row - self._first_row] = start, end
        now, origin = monotonic(), self._origin
        with self._lock:
            starts = np.array(self._starts) - origin
            ends = np.array(self._ends) - origin
            rest = [list(column) for column in zip(*self._rows, strict=True)] or [[] for _ in range(7)]
        ends[np.isnan(ends)] = now - origin
        kinds, names, *rest = rest
        # a compute span is recorded at its end
        columns = in_order([[self.rank] * len(starts), kinds, names, starts.tolist(), ends.tolist(), *rest])
        return Trace(
            self._world_size,
            Columns(len(starts), lambda: columns),
            "measured",
            dict(self._groups),
            memberships=tuple(self._memberships),
            ranks_per_machine=self._ranks_per_machine,
        )


class Operation:
    """One operation under way."""

    __slots__ = ("_entry", "held", "marked", "over", "recorder", "row")

    def __init__(self, recorder: Recorder, row: int, entry: int) -> None:
        self.recorder = recorder
        self.row = row
        self._entry = entry
        self.marked = False
        """Whether a future, or a mark on a GPU's stream, shows its end."""
        self.held = False
        """Whether the running backward pass will wait for it."""
        self.over = False

    def wait(self) -> None:
        """Record that the program waits for it from now on."""
        if not self.over:
            self.recorder.slot.wait(self._entry)

    def end(self, peer: int | None = None, sequence: int = -1) -> None:
        """Record its end; only the first call counts."""
        if not self.over:
            self.over = True
            self.recorder.ended(self.row, peer, sequence)
            self.recorder.slot.end(self._entry)

    def told_by(self, future: Any) -> None:
        """End the operation when `future` is complete."""
        future.add_done_callback(self._tell)
        self.marked = True

    def _tell(self, _: object) -> None:
        self.end()

    def awaited_by(self, future: Any) -> None:
        """Record that code holds `future`, and will wait for it unobserved."""
        if self.recorder.awaited_after_backward(self):
            self.held = True
        elif not self.marked:
            self.told_by(future)

    def dropped(self) -> None:
        """End the operation, as no code can wait for it any more, unless a future or mark shows its end."""
        if not (self.marked or self.held):
            self.end()


class Group:
    """The operations of one process group, with their sequence numbers."""

    def __init__(self, label: str, ranks: tuple[int, ...], recorder: Recorder) -> None:
        self.label = label
        self.ranks = ranks
        self.recorder = recorder
        self.on_gpu = False
        """Whether a GPU carries out its operations."""
        self.count_anew()

    def count_anew(self) -> None:
        """Restart the sequence numbers of collectives, and of the messages of each peer and tag, at 0."""
        self._collectives = itertools.count()
        self._messages: defaultdict[tuple[Kind, int, int], Iterator[int]] = defaultdict(itertools.count)

    def collective(self, name: str, nbytes: int) -> Operation:
        """Begin a collective."""
        number = next(self._collectives)
        return self.recorder.begin(Kind.COLLECTIVE, name, nbytes, None, self, number, 0, call_site()[1])

    def message(self, kind: Kind, fallback: str, nbytes: int, peer: int | None, tag: int) -> Operation:
        """Begin a send or receive; `fallback` is its name if no function of torch.distributed was called.

        peer: global rank at the other end, None for any rank.
        """
        name, line = call_site()
        number = -1 if peer is None else self.number(kind, peer, tag)
        return self.recorder.begin(kind, name or fallback, nbytes, peer, self, number, tag, line)

    def number(self, kind: Kind, peer: int, tag: int) -> int:
        """Number that the send and the receive of one message share: messages of one tag arrive in order."""
        return (tag << _TAG_BITS) + next(self._messages[kind, peer, tag])
