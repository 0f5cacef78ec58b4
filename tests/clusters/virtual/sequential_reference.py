"""Expected outcome of a random program, computed without clocks: each rank runs as far as it can, until none can.

What time decides is taken from the trace, and must be possible: whose message a receive from any source takes, and what
a failing rank had begun with others and not finished.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from random_programs import COLLECTIVES, Op, Program, value

Place = tuple[int, int]
"""(rank, index among its calls)"""


@dataclass
class Outcome:
    """How the program must end."""

    ended: set[int] = field(default_factory=set)
    errors: dict[int, set[str]] = field(default_factory=dict)
    """Allowed errors of each failing rank."""
    seen: dict[Place, list[int]] = field(default_factory=dict)
    """Values that a call, or a wait, leaves in its tensor; equal ones once."""
    passed: dict[int, list[int]] = field(default_factory=dict)
    """Calls that each rank has completed, in order."""
    messages: set[tuple[Place, Place]] = field(default_factory=set)
    """Matched pairs of sends and receives."""


def outcome(program: Program, taken: dict[Place, int], happened: set[Place]) -> tuple[Outcome, list[str]]:
    """Return the expected outcome, and the events that must not have happened.

    `taken`: whose message each receive from any source took. `happened`: the calls in the trace.
    """
    withdrawn: set[Place] = set()
    while True:
        reference = Reference(program, taken, withdrawn)
        expected = reference.run()
        more = reference.cut_short(happened) - withdrawn
        if not more:
            return expected, reference.impossible()
        withdrawn |= more


class Reference:
    """Computes the outcome, as if the calls in `withdrawn` were never matched."""

    def __init__(self, program: Program, taken: dict[Place, int], withdrawn: set[Place]) -> None:
        self._program = program
        self._taken = taken
        self._withdrawn = withdrawn
        self._at = [0] * program.n
        self._posted: set[Place] = set()
        self._sends: dict[tuple[int, int, int, int], list[Place]] = defaultdict(list)
        self._receives: dict[tuple[int, int, int], list[Place]] = defaultdict(list)
        self._calls: dict[int, dict[int, list[Place]]] = defaultdict(lambda: defaultdict(list))
        self._handles: list[list[int]] = [[i for i, op in enumerate(ops) if op.later] for ops in program.ranks]
        self.outcome = Outcome(passed={rank: [] for rank in range(program.n)})

    def run(self) -> Outcome:
        moving = True
        while moving:
            moving = any([self._advance(rank) for rank in range(self._program.n)])
        self._note_messages()
        self._blame()
        return self.outcome

    def _op(self, place: Place) -> Op:
        return self._program.ranks[place[0]][place[1]]

    def _advance(self, rank: int) -> bool:
        """Let the rank run; return whether it made progress."""
        out, ops, moved = self.outcome, self._program.ranks[rank], False
        while rank not in out.ended and rank not in out.errors:
            if self._at[rank] == len(ops) or ops[self._at[rank]].kind == "return":
                out.ended.add(rank)
                return True
            here = rank, self._at[rank]
            op = self._op(here)
            awaited = (rank, self._handles[rank][op.handle]) if op.kind == "wait" else here
            moved |= self._post(here, op)
            if not op.later and (self._op(awaited).is_message or self._op(awaited).kind in COLLECTIVES):
                state = self._state(awaited)
                if state == "waits":
                    return moved
                if state == "fails":
                    # a member that fails elsewhere meanwhile is reported first
                    out.errors[rank] = (
                        {"MismatchError"} if self._op(awaited).is_message else {"MismatchError", "PeerFailed"}
                    )
                    return True
                result = self._result(awaited)
                if result is not None:
                    out.seen[here] = result
            out.passed[rank].append(self._at[rank])
            self._at[rank] += 1
            moved = True
        return moved

    def _post(self, here: Place, op: Op) -> bool:
        if here in self._posted:
            return False
        self._posted.add(here)
        rank = here[0]
        if op.kind == "send":
            assert op.peer is not None
            self._sends[op.group, rank, op.peer, op.tag].append(here)
        elif op.kind == "recv":
            self._receives[op.group, rank, op.tag].append(here)
        elif op.kind in COLLECTIVES:
            self._calls[op.group][rank].append(here)
        return True

    # Messages -----------------------------------------------------------------------------------------------------

    def _source(self, receive: Place) -> int | None:
        peer = self._op(receive).peer
        return self._taken.get(receive) if peer is None else peer

    def _partner(self, place: Place) -> Place | None:
        """The other end of a message: between two ranks, the k-th send matches the k-th receive."""
        op, rank = self._op(place), place[0]
        source = rank if op.kind == "send" else self._source(place)
        target = op.peer if op.kind == "send" else rank
        if source is None or target is None:
            return None
        sends = self._sends[op.group, source, target, op.tag]
        receives = [r for r in self._receives[op.group, target, op.tag] if self._source(r) == source]
        mine, others = (sends, receives) if op.kind == "send" else (receives, sends)
        number = mine.index(place)
        if number >= len(others) or {place, others[number]} & self._withdrawn:
            return None
        return others[number]

    def cut_short(self, happened: set[Place]) -> set[Place]:
        """Calls that could have been matched and were not, because a receiving or joining rank failed."""
        failed = set(self.outcome.errors)
        cut = set()
        for place in self._posted - happened:
            op = self._op(place)
            if op.is_message and self._state(place) == "done":
                partner = self._partner(place)
                assert partner is not None
                if (place[0] if op.kind == "recv" else partner[0]) in failed:
                    cut |= {place, partner}
            elif op.kind in COLLECTIVES and self._state(place) == "done" and set(self._meeting(place)) & failed:
                cut |= set(self._meeting(place).values())
        return cut

    def _note_messages(self) -> None:
        for sends in self._sends.values():
            for send in sends:
                receive = self._partner(send)
                if receive is not None and self._state(send) == "done":
                    self.outcome.messages.add((send, receive))

    def impossible(self) -> list[str]:
        """List what no scheduler may do: leave a send and its receive pending, or let a later receive go first."""
        found = []
        failed = set(self.outcome.errors)
        for (group, target, tag), receives in self._receives.items():
            sent = [sends for (g, _, to, t), sends in self._sends.items() if (g, to, t) == (group, target, tag)]
            left = [s for sends in sent for s in sends if self._partner(s) is None and not {s[0], target} & failed]
            for number, receive in enumerate(receives):
                if self._partner(receive) is not None:
                    continue
                anybody = self._op(receive).peer is None
                if anybody and left:
                    found.append(f"receive {receive} from anybody did not take {left}")
                if (
                    anybody
                    and target not in failed
                    and any(self._partner(later) is not None for later in receives[number + 1 :])
                ):
                    found.append(f"a receive after {receive} from anybody went first")
        return found

    # Collectives --------------------------------------------------------------------------------------------------

    def _meeting(self, place: Place) -> dict[int, Place]:
        """Participants of the collective so far, by rank: each rank's k-th call in a group is the same collective."""
        calls = self._calls[self._op(place).group]
        number = calls[place[0]].index(place)
        return {rank: made[number] for rank, made in calls.items() if number < len(made)}

    def _signature(self, place: Place) -> object:
        op = self._op(place)
        sized = op.kind in ("all_reduce", "broadcast", "reduce", "all_gather")
        return op.kind, op.peer, op.kind == "all_reduce" and op.reduction, sized and (op.numel, op.dtype)

    # Result of a call -----------------------------------------------------------------------------------------------

    def _state(self, place: Place) -> str:
        op = self._op(place)
        if op.is_message:
            partner = self._partner(place)
            if partner is None:
                return "waits"
            other = self._op(partner)
            return "done" if (op.numel, op.dtype) == (other.numel, other.dtype) else "fails"
        meeting = self._meeting(place)
        if len(meeting) < len(self._program.groups[op.group]) or place in self._withdrawn:
            return "waits"
        return "fails" if self._is_unlike(meeting) else "done"

    def _is_unlike(self, meeting: dict[int, Place]) -> bool:
        return len({self._signature(joined) for joined in meeting.values()}) > 1

    def _result(self, place: Place) -> list[int] | None:
        op = self._op(place)
        if op.is_message:
            sent = self._partner(place) if op.kind == "recv" else place
            assert sent is not None
            return [value(*sent)]
        members = self._program.groups[op.group]
        meeting = self._meeting(place)
        values = [value(*meeting[rank]) for rank in members]
        mine = members.index(place[0])
        match op.kind:
            case "all_reduce":
                return [sum(values) if op.reduction == "SUM" else max(values)]
            case "broadcast":
                return [values[members.index(op.peer)]]  # type: ignore[arg-type]  # the root
            case "reduce":
                return [sum(values)] if place[0] == op.peer else None
            case "scatter":
                return [values[members.index(op.peer)] + mine]  # type: ignore[arg-type]  # as above
            case "all_gather":
                return [v for v in values for _ in range(op.numel)]
            case "all_to_all_single":
                return [v for v in values for _ in range(op.numel // len(members))]
        return [values[mine]]

    # Who is to blame ----------------------------------------------------------------------------------------------

    def _blame(self) -> None:
        """Handle ranks that still wait: if for a failed one, that is their error; otherwise it is a deadlock.

        Unless others called something different in the same collective.
        """
        errors = self.outcome.errors
        waiting = {rank for rank in range(self._program.n) if rank not in self.outcome.ended | set(errors)}
        unlike = {rank for rank in waiting if self._waits_for_unlike(self._awaited(rank))}
        while waiting:
            hopeless = {rank for rank in waiting if self._hopeless(self._awaited(rank))}
            told = hopeless or waiting & unlike or waiting
            kind = "PeerFailed" if hopeless else "MismatchError" if waiting & unlike else "DeadlockError"
            errors |= {rank: {kind} | ({"MismatchError", "PeerFailed"} if rank in unlike else set()) for rank in told}
            waiting -= told

    def _waits_for_unlike(self, place: Place) -> bool:
        return self._op(place).kind in COLLECTIVES and self._is_unlike(self._meeting(place))

    def _awaited(self, rank: int) -> Place:
        op = self._op((rank, self._at[rank]))
        return (rank, self._handles[rank][op.handle]) if op.kind == "wait" else (rank, self._at[rank])

    def _hopeless(self, place: Place) -> bool:
        op, failed = self._op(place), set(self.outcome.errors)
        others = set(self._program.groups[op.group]) - {place[0]}
        if op.is_message:
            return op.peer in failed if op.peer is not None else others <= failed
        if place in self._withdrawn:
            return bool(others & failed)
        return bool((others - set(self._meeting(place))) & failed)
