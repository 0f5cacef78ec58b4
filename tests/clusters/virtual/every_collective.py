"""A rank's walk over torch.distributed, run by test_equal_to_gloo.py on real and on virtual ranks.

Each case is a name and its outcome: the result as text, or the type of the exception. Data is integer-valued, drawn
from a seed, so that every order of summation gives the same; where it is not, the name begins with `near`.
"""

from __future__ import annotations

import builtins
import functools
import itertools
import random
import warnings
import zlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _coalescing_manager

DTYPES = [
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.bool, torch.complex64,
]  # fmt: skip
REDUCTIONS = ["SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM"]
SHAPES = [(), (0,), (1,), (5,), (2, 3), (3, 0, 2), (7, 1), (2, 2, 2)]
WHOLE_SHAPES = [(0,), (1,), (5,), (2, 3), (3, 0, 2)]
"""Shapes that can be split along their first dimension: gloo crashes on others."""


class Walk:
    """One rank's cases."""

    def __init__(self) -> None:
        self.rank, self.n = dist.get_rank(), dist.get_world_size()
        self.found: dict[str, str | list[float]] = {}
        self.same = random.Random(self.n)
        """Draws the same on all ranks."""
        self.name = ""

    def case(self, name: str, body: Callable[[], Any]) -> None:
        self.name = name
        try:
            result = body()
        except Exception as error:  # only the type is compared
            kinds = [kind.__name__ for kind in type(error).__mro__]
            # our own errors derive from the one that gloo raises
            self.found[name] = next(kind for kind in kinds if hasattr(builtins, kind))
            return
        self.found[name] = _flat(result) if name.startswith("near") else _text(result)

    def data(self, dtype: torch.dtype, shape: tuple[int, ...], salt: int = 0) -> Tensor:
        """This rank's own draw, from -2 to 2 where the dtype is signed."""
        seed = zlib.crc32(f"{self.name} {self.rank} {salt} {self.n}".encode())
        low = -2 if dtype.is_signed else 0
        drawn = torch.randint(low, 3, shape, generator=torch.Generator().manual_seed(seed))
        return drawn.to(dtype)

    def shape(self, shapes: list[tuple[int, ...]] = SHAPES) -> tuple[int, ...]:
        return self.same.choice(shapes)


def _text(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype}{list(value.shape)}{value.detach().tolist()}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_text(item) for item in value)}]"
    return repr(value)


def _flat(value: Any) -> list[float]:
    return [float(x) for tensor in value for x in tensor.detach().double().reshape(-1)]


def operation(name: str) -> Any:
    return dist._make_nccl_premul_sum(2.0) if name == "PREMUL_SUM" else getattr(dist.ReduceOp, name)


def reductions(walk: Walk) -> None:
    for dtype, op in itertools.product(DTYPES, REDUCTIONS):
        _reductions_of(walk, dtype, op)
    for dtype in (torch.float16, torch.float32, torch.float64):
        walk.case(f"near {dtype}", functools.partial(_fractions, walk.rank, dtype))


def _reductions_of(walk: Walk, dtype: torch.dtype, op: str) -> None:
    n, rank, data = walk.n, walk.rank, walk.data
    how, root = operation(op), walk.same.randrange(n)
    shape, whole, asynchronous = walk.shape(), walk.shape(WHOLE_SHAPES), walk.same.random() < 0.5

    def all_reduce() -> Any:
        x = data(dtype, shape)
        work = dist.all_reduce(x, how, async_op=asynchronous)
        return [x if work is None else (work.wait(), x)[1]]

    def all_reduce_coalesced() -> Any:
        x = [data(dtype, shape), data(dtype, whole, 1)]
        dist.all_reduce_coalesced(x, how)
        return x

    def reduce() -> Any:
        x = data(dtype, shape)
        dist.reduce(x, root, how)
        return x if rank == root else None  # undefined on the others

    def reduce_scatter() -> Any:
        x = data(dtype, shape)
        dist.reduce_scatter(x, [data(dtype, shape, i) for i in range(n)], how)
        return x

    def reduce_scatter_tensor() -> Any:
        x = data(dtype, whole)
        dist.reduce_scatter_single(x, data(dtype, (n * whole[0], *whole[1:]), 1), how)
        return x

    def coalescing() -> Any:
        x, y = data(dtype, shape), data(dtype, whole, 1)
        with _coalescing_manager():
            dist.all_reduce(x, how)
            dist.all_reduce(y, how)
        return x, y

    others = [all_reduce_coalesced, reduce, reduce_scatter, reduce_scatter_tensor, coalescing]
    for body in (all_reduce, *walk.same.sample(others, 2)):  # the nine world sizes draw different ones
        walk.case(f"{body.__name__} {dtype} {op} {list(shape)}", body)


def _fractions(rank: int, dtype: torch.dtype) -> Any:
    x = torch.rand(50, generator=torch.Generator().manual_seed(rank)).to(dtype) + 0.5
    y, z = x.clone(), x.clone()
    dist.all_reduce(x)
    dist.all_reduce(y, dist.ReduceOp.AVG)
    dist.all_reduce(z, dist.ReduceOp.PRODUCT)
    return x, y, z


def movements(walk: Walk) -> None:
    for dtype in DTYPES:
        _movements_of(walk, dtype)


def _movements_of(walk: Walk, dtype: torch.dtype) -> None:
    n, rank, data = walk.n, walk.rank, walk.data
    root = walk.same.randrange(n)
    shape, whole = walk.shape(), walk.shape(WHOLE_SHAPES)
    splits = [[walk.same.randrange(3) for _ in range(n)] for _ in range(n)]

    def broadcast() -> Any:
        x = data(dtype, shape)
        dist.broadcast(x, root)
        return x

    def all_gather() -> Any:
        xs = [data(dtype, shape, 9) for _ in range(n)]
        dist.all_gather(xs, data(dtype, shape))
        return xs

    def all_gather_tensor() -> Any:
        x = data(dtype, (n * whole[0], *whole[1:]), 9)
        dist.all_gather_single(x, data(dtype, whole))
        return x

    def all_gather_coalesced() -> Any:
        xs = [[data(dtype, shape, 8), data(dtype, whole, 9)] for _ in range(n)]
        dist.all_gather_coalesced(xs, [data(dtype, shape), data(dtype, whole, 1)])
        return xs

    def gather() -> Any:
        xs = [data(dtype, shape, 9) for _ in range(n)] if rank == root else None
        dist.gather(data(dtype, shape), xs, root)
        return xs

    def scatter() -> Any:
        x = data(dtype, shape, 9)
        dist.scatter(x, [data(dtype, shape, i) for i in range(n)] if rank == root else None, root)
        return x

    def all_to_all() -> Any:
        xs = [data(dtype, shape, 9) for _ in range(n)]
        dist.all_to_all(xs, [data(dtype, shape, i) for i in range(n)])
        return xs

    def all_to_all_single() -> Any:
        x = data(dtype, (n * whole[0], *whole[1:]), 9)
        dist.all_to_all_single(x, data(dtype, tuple(x.shape)))
        return x

    def all_to_all_splits() -> Any:
        gives, gets = splits[rank], [splits[source][rank] for source in range(n)]
        x = data(dtype, (sum(gets), 2), 9)
        dist.all_to_all_single(x, data(dtype, (sum(gives), 2)), gets, gives)
        return x

    def ring() -> Any:
        x = data(dtype, shape, 9)
        work = dist.isend(data(dtype, shape), (rank + 1) % n, tag=3)
        dist.recv(x, (rank - 1) % n, tag=3)
        work.wait()
        return x

    bodies = [broadcast, all_gather, all_gather_tensor, all_gather_coalesced, gather, scatter, all_to_all,
              all_to_all_single, all_to_all_splits] + [ring] * (n > 1)  # fmt: skip
    for body in bodies:
        walk.case(f"{body.__name__} {dtype} {list(shape)} {list(whole)}", body)


def layouts(walk: Walk) -> None:
    """Tensors that are not contiguous, need gradients, or were made in inference mode."""
    n, data = walk.n, walk.data

    def transposed(salt: int = 0) -> Tensor:
        return data(torch.float32, (2, 3), salt).t()

    def in_place(x: Tensor, call: Callable[[Tensor], Any]) -> Tensor:
        call(x)
        return x

    def gathered() -> Any:
        xs = [transposed(9) for _ in range(n)]
        dist.all_gather(xs, transposed())
        return xs

    def inference() -> Any:
        with torch.inference_mode():
            x = data(torch.float32, (3,))
        return in_place(x, dist.all_reduce)

    walk.case("all_reduce, transposed", lambda: in_place(transposed(), dist.all_reduce))
    walk.case("broadcast, transposed", lambda: in_place(transposed(), lambda x: dist.broadcast(x, n - 1)))
    walk.case("all_gather, transposed", gathered)
    walk.case(
        "all_to_all_single, transposed",
        lambda: dist.all_to_all_single(torch.zeros(n * 3, 2), data(torch.float32, (2, n * 3)).t()),
    )
    walk.case("leaf", lambda: in_place(data(torch.float32, (3,)).requires_grad_(), dist.all_reduce))
    walk.case("no leaf", lambda: in_place(data(torch.float32, (3,)).requires_grad_() * 1, dist.all_reduce))
    walk.case("inference", inference)


def wrong_use(walk: Walk) -> None:
    n, rank = walk.n, walk.rank
    x, three = torch.zeros, torch.zeros(3)
    cases: dict[str, Callable[[], Any]] = {
        "list too long": lambda: dist.all_gather([x(3)] * (n + 1), three),
        "list of other shapes": lambda: dist.all_gather([x(4)] * n, three),
        "list of other shapes of one size": lambda: dist.all_gather([x(3, 1)] * n, three),
        "list of another dtype": lambda: dist.all_gather([x(3, dtype=torch.int64)] * n, three),
        "gathered: wrong size": lambda: dist.all_gather_single(x(3 * n + 1), three),
        "gathered: stacked": lambda: dist.all_gather_single(x(n, 3), three),
        "gathered: another dtype": lambda: dist.all_gather_single(x(3 * n, dtype=torch.int64), three),
        "scattered: wrong size": lambda: dist.reduce_scatter_single(three, x(3 * n + 1)),
        "scattered: stacked": lambda: dist.reduce_scatter_single(three, x(n, 3)),
        "scattered: another dtype": lambda: dist.reduce_scatter_single(x(3, dtype=torch.int64), x(3 * n)),
        "reduce_scatter: list too long": lambda: dist.reduce_scatter(three, [x(3)] * (n + 1)),
        "reduce_scatter: other shapes": lambda: dist.reduce_scatter(x(4), [x(3)] * n),
        "all_to_all: list too long": lambda: dist.all_to_all([x(2)] * (n + 1), [x(2)] * (n + 1)),
        "splits that are too many": lambda: dist.all_to_all_single(x(2 * n), x(2 * n), [2] * (n + 1), [2] * n),
        "splits of another sum": lambda: dist.all_to_all_single(x(2 * n), x(2 * n), [3] * n, [2] * n),
        "all_to_all_single: other sizes": lambda: dist.all_to_all_single(x(2 * n), x(3 * n)),
        "two dtypes": lambda: dist.all_reduce_coalesced([x(3), x(3, dtype=torch.int32)]),
        "no tensors": lambda: dist.all_reduce_coalesced([]),
        "no tensor": lambda: dist.all_reduce([1, 2]),
        "no reduction": lambda: dist.all_reduce(x(3), "SUM"),
        "root too large": lambda: dist.broadcast(x(3), n),
        "root below 0": lambda: dist.broadcast(x(3), -1),
        "no root": lambda: dist.broadcast(x(3)),
        "reduce to nobody": lambda: dist.reduce(x(3), n + 2),
        "no list on the root": lambda: rank == n - 1 and dist.gather(x(3), None, n - 1),
        "no list to scatter": lambda: rank == n - 1 and dist.scatter(x(3), None, n - 1),
        "send to itself": lambda: dist.send(x(3), rank),
        "not contiguous": lambda: dist.send(x(3, 2).t(), (rank + 1) % n),
        "a batch of nothing": lambda: dist.batch_isend_irecv([]),
        "a group with strangers": lambda: dist.new_group([0, n]),
        "a group with twins": lambda: dist.new_group([0, 0]),
        "mixed coalescing": lambda: _mixed_coalescing(n),
        "another init": lambda: dist.init_process_group("gloo"),
        "split_group": lambda: dist.split_group(split_ranks=[[0]]),
    }
    for name, body in cases.items():
        if n > 1 or name not in ("all_to_all_single: other sizes", "not contiguous"):
            walk.case(name, body)


def _mixed_coalescing(n: int) -> None:
    with _coalescing_manager():
        dist.all_reduce(torch.zeros(3))
        dist.all_gather_single(torch.zeros(3 * n), torch.zeros(3))


def objects(walk: Walk) -> None:
    n, rank = walk.n, walk.rank
    last = n - 1

    def collectives() -> Any:
        everyone: list[Any] = [None] * n
        dist.all_gather_object(everyone, {"rank": rank, "text": "x" * rank})
        gathered = [None] * n if rank == last else None
        dist.gather_object(("from", rank), gathered, last)
        sent = [rank, "b"]
        dist.broadcast_object_list(sent, last)
        mine: list[Any] = [None]
        dist.scatter_object_list(mine, [f"for {i}" for i in range(n)] if rank == last else None, last)
        return everyone, gathered, sent, mine

    def messages() -> Any:
        received: list[Any] = [None, None]
        if rank == 0:
            dist.send_object_list([1, {"to": 1}], 1)
        elif rank == 1:
            dist.recv_object_list(received, 0)
        return received

    walk.case("objects", collectives)
    if n > 1:
        walk.case("object messages", messages)


def messages(walk: Walk) -> None:
    n, rank = walk.n, walk.rank
    if n == 1:
        return

    def anybody() -> Any:
        x = torch.zeros(2)
        if rank:
            dist.send(torch.full((2,), float(rank)), 0, tag=5)
            return None
        sources = []
        for _ in range(n - 1):
            source = dist.recv(x, tag=5)
            sources.append((source, x[0].item()))
        return sorted(sources)

    def tags() -> Any:
        first, second = torch.zeros(2), torch.zeros(2)
        if rank == 0:
            works = [dist.isend(torch.full((2,), float(tag)), 1, tag=tag) for tag in (1, 2)]
            return [work.wait() for work in works]
        if rank == 1:
            second_work, first_work = dist.irecv(second, 0, tag=2), dist.irecv(first, 0, tag=1)
            return second_work.wait(), first_work.wait(), first, second
        return None

    def batch() -> Any:
        x = torch.zeros(3)
        there = dist.P2POp(dist.isend, torch.full((3,), float(rank)), (rank + 1) % n)
        here = dist.P2POp(dist.irecv, x, (rank - 1) % n)
        works = dist.batch_isend_irecv([there, here])
        return [work.wait() for work in works], x

    for body in (anybody, tags, batch):
        walk.case(body.__name__, body)


def groups(walk: Walk) -> None:
    n, rank, data = walk.n, walk.rank, walk.data

    def halves() -> Any:
        evens, odds = dist.new_group(list(range(0, n, 2))), dist.new_group(list(range(1, n, 2)) or [0])
        mine = odds if rank % 2 else evens
        x = data(torch.float32, (4,))
        dist.all_reduce(x, group=mine)
        y = data(torch.float32, (4,), 1)
        dist.broadcast(y, group_src=0, group=mine)
        stranger = evens if rank % 2 else odds
        ranks = dist.get_process_group_ranks(mine)
        of_stranger = dist.get_rank(stranger) if rank % 2 or n > 1 else -1
        return (
            x, y, ranks, dist.get_rank(mine), dist.get_world_size(mine), of_stranger, dist.get_global_rank(mine, 0),
            dist.get_group_rank(mine, rank), dist.get_backend(mine),
        )  # fmt: skip

    def subgroups() -> Any:
        mine, everyone = dist.new_subgroups(1)
        x = data(torch.float32, (4,))
        dist.all_reduce(x, group=mine)
        pairs, _ = dist.new_subgroups_by_enumeration([[i, i + 1] for i in range(0, n - 1, 2)])
        return x, len(everyone), pairs and rank < n - n % 2 and dist.get_process_group_ranks(pairs)

    def closed() -> Any:
        group = dist.new_group(list(range(n)))
        dist.destroy_process_group(group)
        dist.destroy_process_group(group)

    def meshes() -> Any:
        rows = 2 if n % 2 == 0 else 1
        mesh = init_device_mesh("cpu", (rows, n // rows), mesh_dim_names=("a", "b"))
        sums = [data(torch.int64, (3,), salt) for salt in range(3)]
        dist.all_reduce(sums[0], group=mesh.get_group("a"))
        dist.all_reduce(sums[1], group=mesh["b"].get_group())
        dist.all_reduce(sums[2], group=mesh["a", "b"]._flatten("all").get_group())
        return mesh.mesh, mesh.get_coordinate(), mesh.get_local_rank("b"), sums

    for body in (halves, subgroups, closed, meshes):
        walk.case(body.__name__, body)
    walk.case("monitored_barrier", lambda: dist.monitored_barrier(timeout=timedelta(seconds=30), wait_all_ranks=True))
    walk.case("backend", lambda: (dist.get_backend(), dist.get_backend_config(), dist.group.WORLD.name()))
    walk.case("coalescing by device", lambda: _coalescing_by_device())


def _coalescing_by_device() -> None:
    with _coalescing_manager(device=torch.device("cpu")):
        dist.all_reduce(torch.zeros(3))


def works(walk: Walk) -> None:
    data, n = walk.data, walk.n

    def states() -> Any:
        x = data(torch.int64, (3,))
        work = dist.all_reduce(x, async_op=True)
        return work.wait(), work.is_completed(), work.is_success(), work.exception(), work.result(), x

    def polling() -> Any:
        x = data(torch.int64, (3,))
        work = dist.all_reduce(x, async_op=True)
        while not work.is_completed():
            pass
        return x

    def callback() -> Any:
        x = data(torch.int64, (3,))
        doubled = dist.all_reduce(x, async_op=True).get_future().then(lambda f: [2 * t for t in f.value()])
        return doubled.wait(), x

    def source() -> Any:
        work = dist.all_reduce(data(torch.int64, (3,)), async_op=True)
        work.wait()
        return work.source_rank()

    def coalesced() -> Any:
        xs, ys = [torch.zeros(3 * n), torch.zeros(2 * n)], [torch.zeros(3), torch.zeros(2)]
        with _coalescing_manager(async_ops=True) as gathering:
            for x, size in zip(xs, (3, 2), strict=True):
                dist.all_gather_single(x, data(torch.float32, (size,), size))
        gathering.wait()
        with _coalescing_manager():
            for y, size in zip(ys, (3, 2), strict=True):
                dist.reduce_scatter_single(y, data(torch.float32, (size * n,), 10 + size))
        return xs, ys

    for body in (states, polling, callback, source, coalesced):
        walk.case(body.__name__, body)


def functionals(walk: Walk) -> None:
    data, n, rank = walk.data, walk.n, walk.rank
    world: Any = dist.group.WORLD
    floats = torch.float32

    def plain() -> Any:
        given = [data(floats, (3,), 1), data(floats, (2,), 2)]
        whole = [data(floats, (3 * n,), 3), data(floats, (2 * n,), 4)]
        results = [
            functional.all_reduce(given[0], "sum", world),
            functional.all_reduce(given[0], "avg", world),
            functional.all_gather_tensor(data(floats, (2, 3), 5), 1, world),
            functional.reduce_scatter_tensor(whole[0], "max", 0, world),
            functional.all_to_all_single(whole[0], None, None, world),
            functional.broadcast(given[1], n - 1, world),
            *functional.all_reduce_coalesced(given, "min", world),
            *functional.all_gather_into_tensor_coalesced(given, world),
            *functional.reduce_scatter_tensor_coalesced(whole, "sum", [0, 0], world),
        ]
        return [result + 0 for result in results]

    def with_gradients() -> Any:
        found = []
        for call in (
            lambda x: functional.all_gather_tensor_autograd(x, 0, world),
            lambda x: functional.reduce_scatter_tensor_autograd(x, "sum", 0, world),
            lambda x: functional.all_to_all_single_autograd(x, [2] * n, [2] * n, world),
            differentiable.all_reduce,
            differentiable.all_gather,
            lambda x: differentiable.broadcast(x, n - 1),
            lambda x: differentiable.gather(x, n - 1),
            lambda x: differentiable.scatter(list(x.chunk(n)), n - 1),
            lambda x: differentiable.reduce_scatter(torch.zeros(2), list(x.chunk(n))),
            lambda x: differentiable.all_to_all([torch.zeros(2) for _ in range(n)], list(x.chunk(n))),
            lambda x: differentiable.all_to_all_single(torch.zeros(2 * n), x),
        ):
            x = data(floats, (2 * n,), len(found)).requires_grad_()
            result = call(x)
            parts = result if isinstance(result, (list, tuple)) else [result]
            sum((part * (rank + 1 + i)).sum() for i, part in enumerate(parts)).backward()
            found.append([[part.detach() + 0 for part in parts], x.grad])
        return found

    walk.case("functional", plain)
    walk.case("with gradients", with_gradients)


def again(walk: Walk) -> None:
    """Destroy the group and make it again."""

    def closed() -> Any:
        dist.destroy_process_group()
        dist.all_reduce(torch.zeros(3))

    def reopened() -> Any:
        dist.init_process_group("gloo")
        x = walk.data(torch.float32, (3,))
        dist.all_reduce(x)
        pair = dist.new_group([walk.n - 1])
        return x, dist.get_rank(pair)

    walk.case("closed", closed)
    walk.case("reopened", reopened)


def walk() -> dict[str, str | list[float]]:
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    rank = Walk()
    for part in (
        reductions, movements, layouts, wrong_use, objects, messages, groups, works, functionals, again,
    ):  # fmt: skip
        part(rank)
    return rank.found
