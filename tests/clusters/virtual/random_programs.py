"""Random programs of torch.distributed from a small grammar: what each rank does, and its text as a learner writes it.

A program begins as steps in one order that all ranks agree on, so it cannot deadlock; then it is disturbed: calls are
made asynchronous and waited for later, in any order, swapped, left out, or get another size, dtype, tag or kind.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

COLLECTIVES = ("all_reduce", "broadcast", "reduce", "all_gather", "scatter", "all_to_all_single", "barrier")


@dataclass(frozen=True)
class Op:
    """One call of one rank."""

    kind: str
    """`send`, `recv`, one of COLLECTIVES, `wait`, `sleep`, `compute` or `return`."""
    peer: int | None = None
    """Global rank of a message's other end, or of a collective's root; None: any source, or no root."""
    group: int = 0
    tag: int = 0
    numel: int = 1
    dtype: str = "int64"
    reduction: str = "SUM"
    later: bool = False
    """Asynchronous: with or without a later `wait`."""
    handle: int = -1
    """For `wait`: index of the rank's asynchronous call, counted from 0."""

    @property
    def is_message(self) -> bool:
        return self.kind in ("send", "recv")


@dataclass
class Program:
    """The calls of each rank. `groups[0]` is the default group."""

    seed: int
    groups: list[tuple[int, ...]]
    ranks: list[list[Op]] = field(default_factory=list)

    @property
    def n(self) -> int:
        return len(self.groups[0])


def generate(seed: int) -> Program:
    """Return the program of this seed, on 2 to 9 ranks."""
    draw = random.Random(seed)
    n = draw.randint(2, 9)
    groups = [tuple(range(n))]
    groups += [tuple(sorted(draw.sample(range(n), draw.randint(2, n)))) for _ in range(draw.randint(0, 2))]
    program = Program(seed, groups, [[] for _ in range(n)])
    for _ in range(draw.randint(3, 14)):
        _add_step(program, draw)
    disturbances = draw.choice((0, 0, 1, 1, 2, 4))
    if draw.random() < 0.3:
        # the trace shows what a message for any source matches; one that does not fit leaves no event there
        _receive_from_anybody(program, draw)
        mishaps = [_swap, _drop, _leave]
    else:
        mishaps = [_swap, _swap, _drop, _leave, _alter, _alter]
    for ops in program.ranks:
        _make_asynchronous(ops, draw)
    for _ in range(disturbances):
        draw.choice(mishaps)(program.ranks[draw.randrange(n)], draw)
    return program


def _add_step(program: Program, draw: random.Random) -> None:
    group = draw.randrange(len(program.groups))
    members = program.groups[group]
    what = draw.random()
    if what < 0.6:
        source, target = draw.sample(members, 2)
        numel, dtype = draw.choice((1, 3, 2000)), draw.choice(("int64", "float32"))
        sent = Op("send", target, group, draw.choice((0, 0, 7)), numel, dtype)
        program.ranks[source].append(sent)
        program.ranks[target].append(replace(sent, kind="recv", peer=source))
    elif what < 0.85:
        kind = draw.choice(COLLECTIVES)
        root = draw.choice(members) if kind in ("broadcast", "reduce", "scatter") else None
        numel = draw.choice((1, 4)) * (len(members) if kind == "all_to_all_single" else 1)
        for rank in members:
            program.ranks[rank].append(Op(kind, root, group, numel=numel))
    else:
        program.ranks[draw.choice(members)].append(Op(draw.choice(("sleep", "compute"))))


def _make_asynchronous(ops: list[Op], draw: random.Random) -> None:
    """Make some calls return at once. Most are waited for, in random order, at random times."""
    for index, op in reversed(list(enumerate(ops))):
        if (op.is_message or op.kind in COLLECTIVES) and draw.random() < 0.4:
            ops[index] = replace(op, later=True)
            if draw.random() < 0.9:
                ops.insert(draw.randint(index + 1, len(ops)), Op("wait", handle=-2 - index))
    # handles count asynchronous calls; until now each wait named the call by its place before anything was inserted
    places = [index for index, op in enumerate(op for op in ops if op.kind != "wait") if op.later]
    for index, op in enumerate(ops):
        if op.kind == "wait":
            ops[index] = replace(op, handle=places.index(-2 - op.handle))


def _receive_from_anybody(program: Program, draw: random.Random) -> None:
    for ops in program.ranks:
        for index, op in enumerate(ops):
            if op.kind == "recv" and draw.random() < 0.6:
                ops[index] = replace(op, peer=None)
    for ops in program.ranks:  # one size for all, since any message may come
        ops[:] = [replace(op, numel=2, dtype="int64") if op.is_message else op for op in ops]


def _swap(ops: list[Op], draw: random.Random) -> None:
    if len(ops) > 1:
        at = draw.randrange(len(ops) - 1)
        if not {ops[at].kind, ops[at + 1].kind} & {"wait"} and not (ops[at].later and ops[at + 1].later):
            ops[at], ops[at + 1] = ops[at + 1], ops[at]


def _drop(ops: list[Op], draw: random.Random) -> None:
    at = draw.randrange(len(ops)) if ops else -1
    if ops and not ops[at].later:
        del ops[at]


def _leave(ops: list[Op], draw: random.Random) -> None:
    ops.insert(draw.randint(0, len(ops)), Op("return"))


def _alter(ops: list[Op], draw: random.Random) -> None:
    """Make one call differ from what the others expect."""
    calls = ("send", "recv", "all_reduce", "broadcast", "barrier")
    places = [index for index, op in enumerate(ops) if op.kind in calls]
    if not places:
        return
    at = draw.choice(places)
    op = ops[at]
    if op.is_message:
        changes: list[dict[str, object]] = [{"numel": op.numel + 1}, {"dtype": "int32"}, {"tag": 3}]
    elif op.kind == "all_reduce":
        changes = [{"numel": op.numel + 1}, {"dtype": "int32"}, {"reduction": "MAX"}, {"kind": "barrier"}]
    else:
        changes = [{"kind": "all_reduce", "peer": None}]
    ops[at] = replace(op, **draw.choice(changes))  # type: ignore[arg-type]  # fields of Op, by their names


HEAD = """\
import time, torch, torch.distributed as dist
from torch import int32, int64, float32
dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
clock = dist.distributed_c10d._get_default_group().endpoint
def full(value, numel, dtype): return torch.full((numel,), value, dtype=dtype)
def done(place, x=None):
    values = [] if x is None else [int(v) for v in x.tolist()]
    print(place, clock.now, values[0] if len(set(values)) == 1 else values, sep="|")
"""


def value(rank: int, place: int) -> int:
    """Return a call's contribution, unique within the program."""
    return 1000 * (rank + 1) + place


def source(program: Program, stubborn: bool = False) -> tuple[str, dict[int, tuple[int, int]]]:
    """Return the program as a cell, and the call of each line: `lines[line] = (rank, place)`.

    A rank prints `place|clock|values` after each call. If `stubborn`, it continues after any exception.
    """
    text = HEAD.splitlines()
    for number, members in enumerate(program.groups):
        text.append(f"g{number} = dist.group.WORLD" if number == 0 else f"g{number} = dist.new_group({list(members)})")
    lines = {}
    for rank, ops in enumerate(program.ranks):
        text.append(f"def program_{rank}():")
        handles: list[int] = []
        for place, op in enumerate(ops):
            if op.later:
                handles.append(place)
            call = _call(program, rank, place, op, handles)
            if stubborn and op.kind != "return":
                text += ["    try:", f"        {call}", "    except RuntimeError: pass"]
                lines[len(text) - 1] = rank, place
            else:
                text.append(f"    {call}")
                lines[len(text)] = rank, place
        text.append("    return")
    text.append("globals()[f'program_{rank}']()")
    return "\n".join(text), lines


def _call(program: Program, rank: int, place: int, op: Op, handles: list[int]) -> str:
    x, members = f"x{place}", program.groups[op.group]
    full = f"{x} = full({value(rank, place)}, {op.numel}, {op.dtype})"
    arguments = f"group=g{op.group}" + ", async_op=True" * op.later
    keep = f"h{place} = " if op.later else ""
    seen = f"done({place}, {x})" if not op.later else f"done({place})"
    match op.kind:
        case "return":
            return "return"
        case "sleep":
            return f"time.sleep(1e-5); done({place})"
        case "compute":
            return f"torch.ones(64, 64) @ torch.ones(64, 64); done({place})"
        case "wait":
            waited = handles[op.handle] if op.handle < len(handles) else -1
            return f"h{waited}.wait(); done({place}, x{waited})"
        case "send" | "recv":
            name = "i" * op.later + op.kind
            call = f"{keep}dist.{name}({x}, {op.peer}, group=g{op.group}, tag={op.tag})"
        case "all_reduce":
            call = f"{keep}dist.all_reduce({x}, dist.ReduceOp.{op.reduction}, {arguments})"
        case "broadcast":
            call = f"{keep}dist.broadcast({x}, {op.peer}, {arguments})"
        case "reduce":
            call = f"{keep}dist.reduce({x}, {op.peer}, {arguments})"
            seen = seen if rank == op.peer else f"done({place})"
        case "all_gather":
            call = f"y = {x}; {x} = full(0, {op.numel * len(members)}, {op.dtype}); "
            call += f"{keep}dist.all_gather(list({x}.chunk({len(members)})), y, {arguments})"
        case "scatter":
            parts = f"[full({value(rank, place)} + k, {op.numel}, {op.dtype}) for k in range({len(members)})]"
            call = f"{keep}dist.scatter({x}, {parts if rank == op.peer else None}, {op.peer}, {arguments})"
        case "all_to_all_single":
            call = f"y = {x}.clone(); {keep}dist.all_to_all_single({x}, y, {arguments})"
        case "barrier":
            call = f"{keep}dist.barrier({arguments})"
        case _:
            raise KeyError(op.kind)
    return f"{full}; {call}; {seen}"
