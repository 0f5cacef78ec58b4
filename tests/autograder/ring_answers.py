"""Ring all-reduce as ten people might write it independently, and eight ways to disguise a copy.

Nine fill in all blanks of the template but the first, `_exchange`; `freely` starts from scratch. They are read, never
run.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Callable
from textwrap import indent

from labkit.catalogue import Exercise

RING = Exercise("phase3_multi_node/ring_allreduce")
BLANK = "    # YOUR CODE HERE\n    raise NotImplementedError()\n"

BLANKS = {
    "plain": (
        """
n = ring.size
current = (ring.rank - 1) % n
for _ in range(n - 1):
    target = (current - 1) % n
    _exchange(shards[current], buffer[: len(shards[target])], ring)
    combine(shards[target], buffer[: len(shards[target])], out=shards[target])
    current = target
""",
        """
shards[ring.rank][:] = own
current = ring.rank
for _ in range(ring.size - 1):
    previous = (current - 1) % ring.size
    _exchange(shards[current], shards[previous], ring)
    current = previous
""",
        """
ring_reduce_scatter(tensor, group, op=op)
mine = _shards("tensor", tensor, dist.get_world_size(group))[dist.get_rank(group)]
ring_all_gather(mine, group, out=tensor)
""",
    ),
    "while_loop": (
        """
rounds = ring.size - 1
index = ring.rank + rounds
while rounds > 0:
    to_send = shards[index % ring.size]
    index -= 1
    to_update = shards[index % ring.size]
    space = buffer.narrow(0, 0, to_update.numel())
    _exchange(to_send, space, ring)
    to_update.copy_(combine(to_update, space))
    rounds -= 1
""",
        """
if own.data_ptr() != shards[ring.rank].data_ptr():
    shards[ring.rank].copy_(own)
index, rounds = ring.rank + ring.size, ring.size - 1
while rounds > 0:
    _exchange(shards[index % ring.size], shards[(index - 1) % ring.size], ring)
    index -= 1
    rounds -= 1
""",
        """
return ring_all_gather(ring_reduce_scatter(tensor, group, op=op), group, out=tensor)
""",
    ),
    "order_list": (
        """
order = [(ring.rank - k) % ring.size for k in range(1, ring.size + 1)]
for send_id, recv_id in zip(order, order[1:]):
    piece = shards[recv_id]
    landing = buffer[0 : piece.numel()]
    _exchange(shards[send_id], landing, ring)
    combine(piece, landing, out=piece)
""",
        """
order = [(ring.rank - k) % ring.size for k in range(ring.size)]
shards[order[0]].copy_(own)
for send_id, recv_id in zip(order, order[1:]):
    _exchange(shards[send_id], shards[recv_id], ring)
""",
        """
piece = ring_reduce_scatter(tensor, group=group, op=op)
tensor = ring_all_gather(piece, group=group, out=tensor)
""",
    ),
    "recursion": (
        """
def pass_on(left_to_do: int) -> None:
    if left_to_do == 0:
        return
    leaving = shards[(ring.rank + left_to_do) % ring.size]
    arriving = shards[(ring.rank + left_to_do - 1) % ring.size]
    inbox = buffer[: arriving.numel()]
    _exchange(leaving, inbox, ring)
    combine(inbox, arriving, out=arriving)
    pass_on(left_to_do - 1)

pass_on(ring.size - 1)
""",
        """
def forward(have: int, hops: int) -> None:
    if hops < ring.size:
        want = have - 1 if have else ring.size - 1
        _exchange(shards[have], shards[want], ring)
        forward(want, hops + 1)

shards[ring.rank].copy_(own)
forward(ring.rank, 1)
""",
        """
if dist.get_world_size(group) > 1 or op == ReduceOp.AVG:
    scattered = ring_reduce_scatter(tensor, group, op=op)
    ring_all_gather(scattered, group, out=tensor)
else:
    ring_reduce_scatter(tensor, group, op=op)
""",
    ),
    "own_messages": (
        """
for round in range(1, ring.size):
    src, dst = shards[ring.rank - round], shards[ring.rank - round - 1]
    request = dist.isend(src, ring.right, group) if src.numel() else None
    if dst.numel():
        dist.recv(buffer[: dst.numel()], ring.left, group)
        combine(dst, buffer[: dst.numel()], out=dst)
    if request is not None:
        request.wait()
""",
        """
shards[ring.rank].copy_(own)
for round in range(ring.size - 1):
    src, dst = shards[ring.rank - round], shards[ring.rank - round - 1]
    request = dist.isend(src, ring.right, group) if src.numel() else None
    if dst.numel():
        dist.recv(dst, ring.left, group)
    if request is not None:
        request.wait()
""",
        """
ring_all_gather(ring_reduce_scatter(tensor, group, op=op), group, out=tensor)
""",
    ),
    "parity": (
        """
even = ring.rank % 2 == 0
for t in range(ring.size - 1):
    s, r = (ring.rank - 1 - t) % ring.size, (ring.rank - 2 - t) % ring.size
    hole = buffer[: shards[r].numel()]
    if even and shards[s].numel():
        dist.send(shards[s], ring.right, group)
    if hole.numel():
        dist.recv(hole, ring.left, group)
        shards[r].copy_(combine(shards[r], hole))
    if not even and shards[s].numel():
        dist.send(shards[s], ring.right, group)
""",
        """
shards[ring.rank].copy_(own)
even = ring.rank % 2 == 0
for t in range(ring.size - 1):
    s, r = (ring.rank - t) % ring.size, (ring.rank - 1 - t) % ring.size
    if even and shards[s].numel():
        dist.send(shards[s], ring.right, group)
    if shards[r].numel():
        dist.recv(shards[r], ring.left, group)
    if not even and shards[s].numel():
        dist.send(shards[s], ring.right, group)
""",
        """
reduced = ring_reduce_scatter(tensor, group, op=op)
gathered = ring_all_gather(reduced, group, out=tensor)
assert gathered is tensor
""",
    ),
    "swapping_buffers": (
        """
acc = shards[(ring.rank - 1) % ring.size].clone()
for i in range(2, ring.size + 1):
    local = shards[(ring.rank - i) % ring.size]
    temp = torch.empty_like(local)
    _exchange(acc, temp, ring)
    acc = combine(local, temp)
shards[ring.rank].copy_(acc)
""",
        """
moving = own.clone()
shards[ring.rank].copy_(moving)
for i in range(1, ring.size):
    place = shards[(ring.rank - i) % ring.size]
    temp = torch.empty_like(place)
    _exchange(moving, temp, ring)
    place.copy_(temp)
    moving = temp
""",
        """
part = ring_reduce_scatter(tensor, group, op=op).clone()
ring_all_gather(part, group, out=tensor)
""",
    ),
    "rotated": (
        """
rotated = shards[ring.rank :] + shards[: ring.rank]
while len(rotated) > 1:
    outgoing = rotated.pop()
    incoming = rotated[-1]
    view = buffer[: incoming.shape[0]]
    _exchange(outgoing, view, ring)
    torch.Tensor.copy_(incoming, combine(incoming, view))
""",
        """
rotated = shards[ring.rank + 1 :] + shards[: ring.rank + 1]
rotated[-1].copy_(own)
for _ in shards[1:]:
    outgoing = rotated.pop()
    _exchange(outgoing, rotated[-1], ring)
""",
        """
for step, out in ((ring_reduce_scatter, None), (ring_all_gather, tensor)):
    result = step(tensor, group, op=op) if out is None else step(result, group, out=out)
""",
    ),
    "modulo_helper": (
        """
at = lambda offset: shards[(ring.rank + offset) % ring.size]
for offset in reversed(range(ring.size - 1)):
    held = at(offset)
    received = torch.zeros_like(held)
    _exchange(at(offset + 1), received, ring)
    combine(held, received, out=held)
""",
        """
at = lambda offset: shards[(ring.rank + offset) % ring.size]
at(0).copy_(own)
for offset in range(ring.size, 1, -1):
    _exchange(at(offset), at(offset - 1), ring)
""",
        """
begin = ring_reduce_scatter(tensor, group, op=op)
end = ring_all_gather(begin, group, out=tensor)
if end.data_ptr() != tensor.data_ptr():
    raise RuntimeError("not in place")
""",
    ),
}

FREELY = '''"""My ring."""

import math

import torch
import torch.distributed as dist

__all__ = ["ring_all_gather", "ring_all_reduce", "ring_reduce_scatter"]

COMBINE = {
    dist.ReduceOp.SUM: lambda a, b: a.add_(b),
    dist.ReduceOp.AVG: lambda a, b: a.add_(b),
    dist.ReduceOp.PRODUCT: lambda a, b: a.mul_(b),
    dist.ReduceOp.MAX: lambda a, b: a.copy_(torch.maximum(a, b)),
    dist.ReduceOp.MIN: lambda a, b: a.copy_(torch.minimum(a, b)),
}


class Neighbours:
    def __init__(self, group):
        members = dist.get_process_group_ranks(group)
        self.here = members.index(dist.get_rank())
        self.count = len(members)
        self.next = members[self.here + 1 - self.count]
        self.last = members[self.here - 1]
        self.group = group

    def swap(self, give, take):
        jobs = []
        if give.nelement():
            jobs.append(dist.isend(give, dst=self.next, group=self.group))
        if take.nelement():
            jobs.append(dist.irecv(take, src=self.last, group=self.group))
        for job in jobs:
            job.wait()


def pieces(tensor, count, what):
    if not torch.is_tensor(tensor):
        raise ValueError(what + " must be a tensor")
    if not tensor.is_contiguous():
        raise ValueError(what + " must be contiguous")
    size = math.ceil(tensor.nelement() / count)
    line = tensor.view(tensor.nelement())
    return [line[min(k * size, len(line)) : min((k + 1) * size, len(line))] for k in range(count)]


def ring_reduce_scatter(tensor, group=None, *, op=dist.ReduceOp.SUM):
    if op not in COMBINE:
        raise ValueError("op is not supported")
    us = Neighbours(group)
    parts = pieces(tensor, us.count, "tensor")
    for distance in range(1, us.count):
        mine = parts[us.here - distance - 1]
        theirs = torch.empty_like(mine)
        us.swap(parts[us.here - distance], theirs)
        COMBINE[op](mine, theirs)
    if op == dist.ReduceOp.AVG:
        parts[us.here] /= us.count
    return parts[us.here]


def ring_all_gather(shard, group=None, *, out=None):
    us = Neighbours(group)
    if out is None:
        out = torch.empty(us.count * shard.nelement(), dtype=shard.dtype)
    parts = pieces(out, us.count, "out")
    if parts[us.here].shape != shard.shape:
        raise ValueError("out has no room")
    parts[us.here].copy_(shard)
    for distance in range(us.count - 1):
        us.swap(parts[us.here - distance], parts[us.here - distance - 1])
    return out


def ring_all_reduce(tensor, op=dist.ReduceOp.SUM, group=None):
    ring_all_gather(ring_reduce_scatter(tensor, group, op=op), group, out=tensor)
    return tensor
'''


def answers() -> dict[str, str]:
    """Return modules by author; they have nothing in common but the exercise."""
    template = RING.source("template")[0]
    return {name: filled(template, blanks) for name, blanks in BLANKS.items()} | {"freely": FREELY}


def filled(template: str, blanks: tuple[str, str, str]) -> str:
    """Fill in the template's blanks but the first: most answers to `_exchange` would be alike."""
    first, rest = template.split(BLANK, 1)
    for blank in blanks:
        rest = rest.replace(BLANK, indent(blank.strip("\n") + "\n", "    "), 1)
    return f"{first}{BLANK}{rest}"


# Disguises ------------------------------------------------------------------------------------------------------------

Disguise = Callable[[str, random.Random], str]


def renamed(source: str, draw: random.Random) -> str:
    """Rename everything that the module defines: functions, parameters, fields and variables."""
    tree = ast.parse(source)
    public = {"ring_all_gather", "ring_all_reduce", "ring_reduce_scatter", "tensor", "group", "op", "shard", "out"}
    imported = {
        a.asname or a.name for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom) for a in n.names
    }
    made = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    made |= {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    made |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
    made = {name for name in made - public - imported if not name.startswith("__")}
    new = {name: f"{draw.choice(['tmp', 'my', 'x', 'cur'])}_{i}" for i, name in enumerate(sorted(made))}
    for node in ast.walk(tree):
        for field in ("id", "name", "arg", "attr"):
            if isinstance(old := getattr(node, field, None), str) and old in new and not isinstance(node, ast.alias):
                setattr(node, field, new[old])
    return ast.unparse(tree)


def reordered_functions(source: str, draw: random.Random) -> str:
    """Reorder functions and classes; the module's constants stay in between."""
    tree = ast.parse(source)
    places = [i for i, n in enumerate(tree.body) if isinstance(n, ast.FunctionDef)]
    shuffled = [tree.body[i] for i in draw.sample(places, len(places))]
    for place, node in zip(places, shuffled, strict=True):
        tree.body[place] = node
    return ast.unparse(tree)


def reformatted(source: str, draw: random.Random) -> str:
    """Change layout, docstrings and comments, and drop types."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
            for arg in ast.walk(node.args):
                if isinstance(arg, ast.arg):
                    arg.annotation = None
            if ast.get_docstring(node) is not None:
                node.body[0] = ast.Expr(ast.Constant(f"Does step {draw.randrange(9)} of my work."))
    lines = ast.unparse(tree).splitlines()
    return "\n\n".join(
        f"{line}  # {draw.choice(['first', 'then', 'now', 'ok'])}" if line.strip() else "" for line in lines
    )


def padded(source: str, draw: random.Random) -> str:
    """Add statements without effect to every block, and an unused function."""

    def nothing() -> list[ast.stmt]:
        return ast.parse(
            draw.choice(
                [
                    f"unused_{draw.randrange(99)} = {draw.randrange(99)} * 2",
                    "pass",
                    "if False:\n    print('never')",
                    "debug = []",
                    "counter = 0\ncounter += 1",
                    "print('here')",
                    "assert True",
                    "for _ in range(0):\n    pass",
                ]
            )
        ).body

    tree = ast.parse(source)
    for node in list(ast.walk(tree)):
        if isinstance(node, ast.FunctionDef | ast.For | ast.While | ast.If):
            node.body = [s for old in node.body for s in (*nothing(), old)]
    tree.body += ast.parse(
        "def not_needed(a, b):\n    c = a + b\n    for i in range(c):\n        b *= i\n    return b"
    ).body
    return ast.unparse(ast.fix_missing_locations(tree))


class _Swap(ast.NodeTransformer):
    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.Add | ast.Mult):
            node.left, node.right = node.right, node.left
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        turned = {ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.Eq: ast.Eq, ast.NotEq: ast.NotEq}
        if len(node.ops) == 1 and type(node.ops[0]) in turned:
            node.left, node.comparators[0] = node.comparators[0], node.left
            node.ops[0] = turned[type(node.ops[0])]()
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.target, ast.Name):
            return node
        return ast.Assign([node.target], ast.BinOp(ast.Name(node.target.id), node.op, node.value))

    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        node.test, node.body, node.orelse = (
            ast.UnaryOp(ast.Not(), node.test),
            node.orelse or [ast.Pass()],
            node.body,
        )
        return node


def swapped(source: str, draw: random.Random) -> str:
    """Reverse operands, comparisons and branches; write out `x += 1`."""
    return ast.unparse(ast.fix_missing_locations(_Swap().visit(ast.parse(source))))


def split_up(source: str, draw: random.Random) -> str:
    """Assign arguments of calls to variables, a line before."""
    tree = ast.parse(source)
    count = 0
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.For | ast.While | ast.If):
            continue
        body: list[ast.stmt] = []
        for statement in node.body:
            call = statement.value if isinstance(statement, ast.Expr | ast.Assign) else None
            if isinstance(call, ast.Call):
                for i, argument in enumerate(call.args):
                    if isinstance(argument, ast.Subscript | ast.BinOp | ast.Call):
                        body.append(ast.Assign([ast.Name(f"part{count}", ast.Store())], argument))
                        call.args[i] = ast.Name(f"part{count}")
                        count += 1
            body.append(statement)
        node.body = body
    return ast.unparse(ast.fix_missing_locations(tree))


def other_imports(source: str, draw: random.Random) -> str:
    """Import the same library under other names."""
    tree = ast.parse(source.replace("import torch.distributed as dist", "import torch.distributed as td"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == "dist":
            node.id = "td"
    tree.body[2:2] = ast.parse("from torch import empty_like, add, maximum, minimum").body
    text = ast.unparse(tree)
    for name in ("empty_like", "maximum", "minimum"):
        text = text.replace(f"torch.{name}", name)
    return text


def moved_statements(source: str, draw: random.Random) -> str:
    """Swap neighbouring assignments that are independent."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list) or isinstance(node, ast.Module):
            continue
        for i in range(len(body) - 1):
            first, second = body[i], body[i + 1]
            if isinstance(first, ast.Assign | ast.Expr) and isinstance(second, ast.Assign):
                made = {n.id for n in ast.walk(first) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
                if not made & {n.id for n in ast.walk(second) if isinstance(n, ast.Name)}:
                    body[i], body[i + 1] = second, first
    return ast.unparse(tree)


DISGUISES: dict[str, Disguise] = {
    f.__name__: f
    for f in (
        renamed,
        reordered_functions,
        reformatted,
        padded,
        swapped,
        split_up,
        other_imports,
        moved_statements,
    )
}


def all_at_once(source: str, draw: random.Random) -> str:
    """All eight, one after the other."""
    for disguise in DISGUISES.values():
        source = disguise(source, draw)
    return renamed(source, draw)
