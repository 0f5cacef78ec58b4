"""Diagnose a hang of real ranks from each rank's status: who waits in which operation, who is missing, what to try."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from labkit.clusters import cycles
from labkit.clusters.rank_lists import named_ranks, ranges
from labkit.clusters.rank_status import PendingOperation, RankStatus

_LONGEST_TEXT = 60
"""Longest line of code in the table, in characters."""
_MOST_FINDINGS = 5
_MOST_ROWS = 8
"""Rows of the table beyond which ranks that wait for different peers share a row."""
_ROOTED = ("broadcast", "reduce", "gather", "scatter")
_EXCUSES = {
    "unknown": ("has not reported where it is", "have not reported where they are"),
    "apart": ("does not take part: the cell does not run there", "do not take part: the cell does not run there"),
    "ended": ("is missing: it has ended", "are missing: they have ended"),
    "elsewhere": ("is missing: it is", "are missing: they are"),
    "outside": ("is missing", "are missing"),
    "past": ("is already past it: it waits in", "are already past it: they wait in"),
    "waits": ("is missing: it waits in", "are missing: they wait in"),
}
"""Reason why a rank is missing: (for one rank, for several)."""


def is_hang(statuses: Iterable[RankStatus]) -> bool:
    """Whether any rank waits for others. If nothing moves and none waits, the ranks are merely quiet."""
    return any(status.waits_in is not None for status in statuses)


def report(statuses: Sequence[RankStatus]) -> list[str]:
    """The table, then the findings."""
    return [*table(statuses), *findings(statuses)]


def table(statuses: Sequence[RankStatus]) -> list[str]:
    """A line for each rank, or for all ranks with equal status: where it is, and what it waits in."""
    alike = _alike(statuses, _state)
    if len(alike) > _MOST_ROWS:
        alike = _alike(statuses, _roughly)
    # ranks that have not begun have nothing to show
    alike = {(place, state): ranks for (place, state), ranks in alike.items() if place or state}
    who = [f"[{ranges(ranks)}]" for ranks in alike.values()]
    widths = max(map(len, who), default=0), max((len(place) for place, _ in alike), default=0)
    return [
        f"{name:<{widths[0]}}  {f'{place:<{widths[1]}}  {state}' if place else state}".rstrip()
        for name, (place, state) in zip(who, alike, strict=True)
    ]


def _alike(statuses: Sequence[RankStatus], state: Callable[[RankStatus], str]) -> dict[tuple[str, str], list[int]]:
    alike: dict[tuple[str, str], list[int]] = defaultdict(list)
    for status in statuses:
        alike[_place(status), state(status)].append(status.rank)
    return alike


def findings(statuses: Sequence[RankStatus]) -> list[str]:
    """Lines that name waiting and missing ranks; the last line says what to try. Empty when no rank waits."""
    return _Diagnosis(statuses).lines()


def _place(status: RankStatus) -> str:
    if not status.frames:
        return status.line
    text = status.frames[-1][3]
    cut = text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…"
    return f"{status.line}: {cut}" if cut else status.line


def _state(status: RankStatus) -> str:
    if status.exit is not None:
        return "has ended" if status.exit == 0 else f"has ended with exit code {status.exit}"
    if status.apart:
        return "not part of this cell, which runs on other ranks"
    if status.under_way is None:
        return ""
    operation = status.waits_in
    if operation is None:
        return "in no operation" if status.frames else "outside the cell's code"
    began = f", begun at {operation.line}" if operation.line and operation.line != status.line else ""
    return f"waits in {_in_full(operation)}{began}"


def _roughly(status: RankStatus) -> str:
    """The rank's state without the peer's number, so that ranks with different peers share a row."""
    operation = status.waits_in
    if operation is None or operation.kind not in ("send", "receive"):
        return _state(status)
    return f"waits in {operation.name}, {'to' if operation.kind == 'send' else 'from'} another rank each"


def _in_full(operation: PendingOperation) -> str:
    parts = [_named(operation)]
    if operation.nbytes:
        parts.append(_size(operation.nbytes))
    if operation.tag:
        parts.append(f"tag {operation.tag}")
    return ", ".join(parts)


def _named(operation: PendingOperation) -> str:
    """`all_reduce #7 of the group 0-3`, `isend to rank 2`."""
    if operation.kind == "collective":
        return f"{_numbered(operation)} of the group {ranges(operation.ranks)}"
    if operation.kind == "send":
        return f"{operation.name} to rank {operation.peer}"
    if operation.kind == "receive":
        return f"{operation.name} from {'any rank' if operation.peer < 0 else f'rank {operation.peer}'}"
    return operation.name


def _numbered(operation: PendingOperation) -> str:
    return f"{operation.name} #{operation.sequence + 1}"


def _size(nbytes: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes} B"


@dataclass(frozen=True)
class _Finding:
    text: str
    advice: str
    depth: int
    """Whether the missing ranks wait themselves. 0: none, so this is the cause; 1: some; 2: all."""
    ranks: tuple[int, ...] = ()
    """Ranks that wait for a message."""


class _Diagnosis:
    def __init__(self, statuses: Sequence[RankStatus]) -> None:
        self._statuses = {status.rank: status for status in statuses}
        self._waiting = {s.rank: s.waits_in for s in statuses if s.waits_in is not None}
        lines = {place for s in statuses for place in (s.line, *(o.line for o in s.under_way or ())) if place}
        self._files = {place.rpartition(", ")[0] for place in lines}

    def lines(self) -> list[str]:
        causes = self._collectives() + self._messages() + self._others()
        deepest = min((finding.depth for finding in causes), default=0)
        causes = [finding for finding in causes if finding.depth == deepest]
        circle, in_circle = self._cycle() if deepest == 2 else ([], [])
        # the cycle already covers these
        causes = [finding for finding in causes if not finding.ranks or not set(finding.ranks) <= set(in_circle)]
        lines = [finding.text for finding in causes[:_MOST_FINDINGS]]
        if len(causes) > _MOST_FINDINGS:
            lines.append(f"... and {len(causes) - _MOST_FINDINGS} more like these")
        if circle:
            return [*lines, *circle]
        # a message's hint can name the missing call
        advice = next((f.advice for f in causes if f.ranks), causes[0].advice) if causes else ""
        return [*lines, f"try: {advice}"] if lines else []

    def _collectives(self) -> list[_Finding]:
        """Collectives in which ranks wait, earliest first."""
        keys = {(o.sequence, o.group, o.ranks) for o in self._waiting.values() if o.kind == "collective" and o.ranks}
        return [self._meeting(*key) for key in sorted(keys)]

    def _meeting(self, sequence: int, group: str, members: tuple[int, ...]) -> _Finding:
        joined: dict[int, PendingOperation] = {}
        for rank in members:
            if (operation := self._taking_part(rank, sequence, group, members)) is not None:
                joined[rank] = operation
        missing = [rank for rank in members if rank not in joined]
        name = f"#{sequence + 1} of the group {ranges(members)}"
        alike: dict[tuple[str, str], list[int]] = defaultdict(list)
        for rank, operation in joined.items():
            alike[operation.name, self._at(operation.line)].append(rank)
        names = {operation.name for operation in joined.values()}
        sizes = {operation.nbytes for operation in joined.values()}
        if len(names) == 1:
            head = f"{next(iter(names))} {name}: "
            parts = [f"{named_ranks(ranks)} {_verb(ranks, 'wait')} in it{line}" for (_, line), ranks in alike.items()]
            advice = self._advice(missing) if missing else self._advice_when_all_are_there(joined)
        else:
            head = f"call {name} differs: "
            parts = [f"{named_ranks(r)} {_verb(r, 'wait')} in {called}{line}" for (called, line), r in alike.items()]
            advice = "all ranks of a group must call the same collectives, in the same order"
        if missing:
            parts += self._excuses(missing, (sequence, group, members))
        elif len(names) == 1 and len(sizes) > 1:
            parts.append("with " + ", ".join(f"{_size(o.nbytes)} on rank {r}" for r, o in list(joined.items())[:8]))
        elif len(names) == 1:
            parts.append("no rank is missing")
        return _Finding(head + ", ".join(parts), advice, 0 if len(names) > 1 else self._depth(missing))

    def _taking_part(self, rank: int, sequence: int, group: str, members: tuple[int, ...]) -> PendingOperation | None:
        for operation in self._under_way(rank):
            key = operation.sequence, operation.group, operation.ranks
            if operation.kind == "collective" and key == (sequence, group, members):
                return operation
        return None

    def _messages(self) -> list[_Finding]:
        """Sends and receives that are not matched by their peer."""
        unmatched = []
        for rank, operation in self._waiting.items():
            if operation.kind not in ("send", "receive"):
                continue
            head = f"rank {rank} waits in {_in_full(operation)}{self._at(operation.line)}"
            peers = [operation.peer] if operation.peer >= 0 else [r for r in operation.ranks if r != rank]
            other = "receive" if operation.kind == "send" else "send"
            posted = [o for p in peers for o in self._posted(p, other)]
            if any(o.peer in (rank, -1) and o.tag == operation.tag and o.group == operation.group for o in posted):
                text, advice = f"{head}, and the matching call is there", "compare the shapes and dtypes on both sides"
            elif posted and other == "receive":
                instead = " and ".join(dict.fromkeys(_from(o) for o in posted[:3]))
                text = f"{head}, but rank {operation.peer} receives {instead}"
                advice = "a send and its receive must name each other, with the same tag and group"
            else:
                text = ", ".join([head, *self._excuses(peers, None)])
                call = f"recv(..., src={rank})" if operation.kind == "send" else f"send(..., dst={rank})"
                advice = f"every {operation.kind} needs a {other}: {named_ranks(peers)} must call {call}"
                if any(self._statuses[peer].apart for peer in peers if peer in self._statuses):
                    advice = self._advice(peers)
            unmatched.append(_Finding(text, advice, self._depth(peers), (rank,)))
        return unmatched

    def _posted(self, rank: int, kind: str) -> list[PendingOperation]:
        return [operation for operation in self._under_way(rank) if operation.kind == kind]

    def _others(self) -> list[_Finding]:
        """Waits that are neither for a collective nor for a message."""
        alike: dict[tuple[str, str], list[int]] = defaultdict(list)
        for rank, operation in self._waiting.items():
            if operation.kind == "other" or (operation.kind == "collective" and not operation.ranks):
                alike[operation.name, self._at(operation.line)].append(rank)
        others = []
        for (name, line), ranks in alike.items():
            missing = [rank for rank in self._statuses if not any(o.name == name for o in self._under_way(rank))]
            head = f"{named_ranks(ranks)} {_verb(ranks, 'wait')} in {name}{line}"
            text = ", ".join([head, *self._excuses(missing, None)])
            others.append(_Finding(text, self._advice(missing), self._depth(missing)))
        return others

    def _under_way(self, rank: int) -> tuple[PendingOperation, ...]:
        status = self._statuses.get(rank)
        return (status.under_way or ()) if status and status.exit is None else ()

    def _excuses(self, missing: Sequence[int], meeting: tuple[int, str, tuple[int, ...]] | None) -> list[str]:
        """Descriptions of what each missing rank does instead; ranks that do the same share an item."""
        alike: dict[tuple[str, str], list[int]] = defaultdict(list)
        for rank in missing:
            alike[self._excuse(rank, meeting)].append(rank)
        return [f"{named_ranks(ranks)} {_EXCUSES[kind][len(ranks) > 1]}{rest}" for (kind, rest), ranks in alike.items()]

    def _excuse(self, rank: int, meeting: tuple[int, str, tuple[int, ...]] | None) -> tuple[str, str]:
        """The rank's key in `_EXCUSES`, and the rest of the sentence."""
        status = self._statuses.get(rank)
        if status is None:
            return "unknown", ""
        if status.exit is not None:
            return "ended", ""
        if status.apart:
            return "apart", ""
        operation = status.waits_in
        if operation is None:
            text = f": {status.frames[-1][3]}" if status.frames and status.frames[-1][3] else ""
            return ("elsewhere", self._at(status.line) + text) if status.line else ("outside", "")
        if operation.kind != "collective" or meeting is None or (operation.group, operation.ranks) != meeting[1:]:
            return "waits", f" {_named(operation)}{self._at(operation.line)}"
        place = f" {_numbered(operation)}{self._at(operation.line)}"
        return ("past", place) if operation.sequence > meeting[0] else ("waits", place)

    def _at(self, line: str) -> str:
        """` at line 5`, with the file's name only when there are several files."""
        if not line:
            return ""
        file, _, number = line.rpartition(", ")
        return f" at {number}" if file and len(self._files) == 1 else f" at {line}"

    def _idle(self, rank: int) -> bool:
        return rank in self._statuses and rank not in self._waiting

    def _depth(self, missing: Sequence[int]) -> int:
        idle = [self._idle(rank) for rank in missing]
        return 0 if all(idle) and idle else 1 if any(idle) else 2

    def _advice(self, missing: Sequence[int]) -> str:
        known = [self._statuses[rank] for rank in missing if rank in self._statuses]
        ended = [status.rank for status in known if status.exit is not None]
        apart = [status.rank for status in known if status.apart]
        busy = [status for status in known if status.exit is None and status.waits_in is None]
        if ended:
            return (
                f"every rank of a group must make all of its calls; {named_ranks(ended)} ended without making this one"
            )
        if apart:
            own = [rank for rank, status in self._statuses.items() if not status.apart]
            only = f"the cell ran only on {named_ranks(own)}"
            return f"{only}, but the group includes {named_ranks(apart)}: leave out --ranks"
        if busy:
            return f"find out why {named_ranks([s.rank for s in busy])} {_verb(busy, 'do', 'does')} not get past " + (
                busy[0].line or "where it is"
            )
        return "all ranks of a group must call the same collectives, in the same order"

    def _advice_when_all_are_there(self, joined: dict[int, PendingOperation]) -> str:
        if len({operation.nbytes for operation in joined.values()}) > 1:
            return "all ranks of a group must pass tensors of the same shape and dtype"
        if {operation.name for operation in joined.values()} & {*_ROOTED}:
            return "all ranks have joined, but it does not finish: all must pass the same src or dst"
        return "all ranks have joined, but it does not finish: check that the nodes can reach each other"

    def _cycle(self) -> tuple[list[str], list[int]]:
        """Lines for the cycle of waiting ranks, with a hint; and the ranks that need no lines of their own."""
        waits = {rank: self._waited_for(rank, operation) for rank, operation in self._waiting.items()}
        cycle = cycles.find(waits)
        operations = [self._waiting[rank] for rank in cycle]
        kinds = {operation.kind for operation in operations}
        lines = [cycles.shown(cycle)]
        if kinds == {"send"} and not any(self._posted(rank, "receive") for rank in cycle):
            return [*lines, f"try: {cycles.SENDS_FIRST}"], cycle
        if kinds == {"receive"}:
            return [*lines, f"try: {cycles.RECEIVES_FIRST}"], cycle
        if kinds == {"collective"} and len({operation.group for operation in operations}) > 1:
            members = [ranges(operation.ranks) for operation in operations]
            return [*lines, f"try: {cycles.in_other_order(list(dict.fromkeys(members)))}"], []
        return [], []

    def _waited_for(self, rank: int, operation: PendingOperation) -> list[int]:
        if operation.kind == "collective":
            key = operation.sequence, operation.group, operation.ranks
            return [peer for peer in operation.ranks if self._taking_part(peer, *key) is None]
        if operation.peer >= 0:
            return [operation.peer]
        return [peer for peer in operation.ranks or self._statuses if peer != rank]


def _from(receive: PendingOperation) -> str:
    tag = f" with tag {receive.tag}" if receive.tag else ""
    return ("from any rank" if receive.peer < 0 else f"from rank {receive.peer}") + tag


def _verb(subjects: Sequence[object], plural: str, singular: str = "") -> str:
    return plural if len(subjects) > 1 else singular or f"{plural}s"
