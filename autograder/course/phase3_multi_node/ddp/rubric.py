"""Hidden rubric of ddp: 25 points, 12 for gradients and weights, 11 for buckets, overlap and memory, 2 for the rest.

The judge draws the gradient of every parameter on every rank, so it knows each mean, and no rank knows another's part.
Time is that of the virtual clock: each layer's backward pass takes a known time, and nothing else does. The all-reduces
of the same sizes, alone on the same network, say how long a pass takes at least.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from labkit.checks import Args, Draw, Ranks, Submission, check, expect, group_of, work
from labkit.clusters import Run
from labkit.course.phase3_multi_node.ddp.scenarios import layers, noted_calls, passes
from labkit.trace import Event, Kind

FORBIDDEN = {
    "torch.nn.parallel.DataParallel",
    "torch.nn.parallel.DistributedDataParallel",
    "torch.distributed.Reducer",
    "torch.distributed._composable.replicate",
    "torch.distributed.fsdp.fully_shard",
    "torch.distributed.fsdp.FullyShardedDataParallel",
}
"""Names that `labkit integrity` reports, under any alias; using them costs no marks by itself."""
MB = 1 << 20
CLUSTERS: list[tuple[dict[str, Any], float]] = [
    ({"nproc_per_node": 1, "inter_node": "ethernet-10g"}, 1e-3),
    ({"nproc_per_node": 4, "intra_node": "nvlink3"}, 2e-5),
    ({"nproc_per_node": 2, "intra_node": "nvlink4", "inter_node": "ib-hdr"}, 1e-4),
]
"""Networks of four ranks, and the seconds of a layer's backward pass that suit each: about those of its all-reduce."""
SLACK = 1.03
"""Allowance for the time of a pass."""
BIG = 12 * MB
"""Bytes of each of four layers where the kernel counts memory."""
NOISE = 12 * MB
"""Allowance for bytes that the kernel counts for each process beside its tensors and what torch takes."""


# What runs on the ranks -----------------------------------------------------------------------------------------------


def failure(*given: Any, **how: Any) -> str:
    """On a rank: return the error of one of the passes."""
    try:
        passes(*given, **how)
    except RuntimeError as error:
        return str(error)
    return ""


def reduced_alone(sizes: list[int], pause: Any) -> None:
    """On a rank: all-reduce so many bytes each, one after the other."""
    import torch
    import torch.distributed as dist

    for size in sizes:
        pause()
        dist.all_reduce(torch.zeros(size // 4))


def trained(state: dict[str, Tensor], batches: list[Tensor], **options: Any) -> Any:
    """On a rank: take a step with each batch; return the weights."""
    import torch

    from labkit.exercises import ddp

    model = net()
    model.load_state_dict(state)
    model.embedding.weight.data = model.embedding.weight.data.t().contiguous().t()
    wrapped = ddp.DistributedDataParallel(model, **options)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9)
    for batch in batches:
        optimizer.zero_grad()
        wrapped(batch).square().mean().backward()
        optimizer.step()
    return [parameter.detach().contiguous() for parameter in model.parameters()]


def net() -> Any:
    """A net with a weight that is used twice, and a frozen one."""
    import torch
    from torch import nn

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Linear(6, 9, bias=False)
            self.body = nn.Sequential(nn.Linear(9, 20), nn.Tanh(), nn.Linear(20, 9))
            self.head = nn.Linear(6, 9)
            self.head.weight = self.embedding.weight
            self.body[0].bias.requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = torch.tanh(self.body(self.embedding(x)))
            outputs: torch.Tensor = self.head(h @ self.embedding.weight)
            return outputs

    return Tied()


def held(size: int, fill: list[float], **options: Any) -> Any:
    """On a rank: two passes of four large layers; return an element of each gradient."""
    import torch
    from torch import nn

    from labkit.exercises import ddp

    class Large(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.ParameterList(torch.zeros(size) for _ in range(4))

        def forward(self, fill: float) -> torch.Tensor:
            outputs = torch.zeros(1)
            for weight in self.weights:
                outputs = outputs + fill * weight.sum()
            return outputs

    wrapped = ddp.DistributedDataParallel(Large(), **options)
    seen = []
    for value in fill:
        wrapped.zero_grad(set_to_none=True)
        wrapped(value).sum().backward()
        seen.append([weight.grad[size // 2].item() for weight in wrapped.module.weights])
    return seen


def saved(number: float, fails: bool, restarts: bool) -> Any:
    """On a rank: save twice, the second time with something that cannot be saved; load, wrapped or not."""
    import contextlib
    import multiprocessing.util
    import os
    import shutil
    import tempfile

    import torch
    from torch import nn

    from labkit.exercises import ddp

    class Unwritable:
        def __reduce__(self) -> Any:
            raise OSError("no space left")

    folder = tempfile.mkdtemp(dir=multiprocessing.util.get_temp_dir())
    path = os.path.join(folder, "state.pt")
    with contextlib.contextmanager(noted_calls)(path) as calls:
        model: Any = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
        optimizer = torch.optim.Adam(model.parameters(), lr=number)
        wrapped = ddp.DistributedDataParallel(model)
        wrapped(torch.ones(2, 2) * torch.arange(2)[:, None]).sum().backward()
        optimizer.step()
        keeper = ddp.DDPCheckpointer(path)
        keeper.save(wrapped if restarts else model, optimizer, epoch=int(number))
        before = [tensor.clone() for tensor in model.state_dict().values()]
        raised = ""
        nn.init.zeros_(model[0].weight)
        try:
            keeper.save(model, optimizer, epoch=0, more=Unwritable() if fails else 1)
        except OSError as error:
            raised = str(error)
    fresh: Any = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    again = torch.optim.Adam(fresh.parameters(), lr=1.0)
    more = ddp.DDPCheckpointer(path).load(fresh if restarts else ddp.DistributedDataParallel(fresh), again)
    files = os.listdir(folder)
    shutil.rmtree(folder)
    same = all(torch.equal(a, b) for a, b in zip(before[1:], list(fresh.state_dict().values())[1:], strict=True))
    return {
        "zero": not fresh[0].weight.any().item(),
        "same": same,
        "raised": raised,
        "epoch": more["epoch"],
        "rate": again.param_groups[0]["lr"],
        "moments": len(again.state_dict()["state"]),
        "files": files,
        "calls": calls,
    }


def whole_training(batches: list[Tensor], rate: float, warmup_steps: int, bad: bool = False) -> Any:
    """On a rank: train with DDPTrainer from an environment's config; return weights, samples and learning rates."""
    import torch
    from torch import nn

    from labkit.exercises import ddp, process_group

    config = process_group.DDPConfig.from_env(backend="gloo", gradient_as_bucket_view=True)
    training = ddp.DDPTrainer(config, rate, len(batches[0]), base_batch_size=8, warmup_steps=warmup_steps)
    device = training.setup_distributed()
    model = nn.Linear(3, 1)
    nn.init.constant_(model.weight, float(config.rank))
    nn.init.zeros_(model.bias)
    training.wrap_model(model, torch.optim.SGD)
    sampler = training.create_distributed_sampler(11, shuffle=False)
    rates = []
    for batch in batches:
        training.train_step((batch, batch.sum(1, keepdim=True)), nn.functional.mse_loss)
        rates.append(training.optimizer.param_groups[0]["lr"])
    mean = training.all_reduce_metrics({"rank": float(config.rank)})["rank"]
    training.barrier()
    first = training.is_main_process()
    errors = []
    for options in ({"module": nn.Tanh()}, {"module": model, "bucket_cap_mb": 0}):
        try:
            ddp.DistributedDataParallel(**options)
            errors.append("nothing")
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")
    training.cleanup()
    return {
        "weights": [parameter.detach() for parameter in model.parameters()],
        "samples": list(sampler), "rates": rates, "mean": mean, "first": first, "errors": errors,
        "device": str(device), "open": torch.distributed.is_initialized(),
    }  # fmt: skip


# What the judge knows -------------------------------------------------------------------------------------------------


def drawn(draw: Draw, world_size: int, sizes: Sequence[int], dtypes: Sequence[str] = ()) -> list[list[Tensor]]:
    """Return each rank's gradients. They are multiples of the number of ranks, so the mean is exact in any order."""
    names = dtypes or ["float32"] * len(sizes)
    return [
        [world_size * draw.tensor(size, getattr(torch, name)) for size, name in zip(sizes, names, strict=True)]
        for _ in range(world_size)
    ]


def mean(gradients: Sequence[Sequence[Tensor]], layer: int) -> Tensor:
    return torch.stack([mine[layer] for mine in gradients]).sum(0) / len(gradients)


def go(submission: Submission, ranks: Ranks, given: Sequence[Args | None], **hardware: Any) -> Run:
    return ranks(len(given), **hardware).call(submission.used_by(passes), given)


def same_for_all(gradients: list[list[Tensor]], orders: list[list[int]], **how: Any) -> list[Args]:
    return [Args(mine, orders, **how) for mine in gradients]


def is_mean(run: Run, gradients: list[list[Tensor]], number: int, times: int = 1, layers: Any = None) -> None:
    """Check `grad` of every rank after pass `number`."""
    for layer in range(len(gradients[0])) if layers is None else layers:
        seen = [value["grads"][number][layer] for value in run.values]
        expect(seen, f"gradient of layer {layer} after pass {number}").equals(
            [times * mean(gradients, layer)] * len(seen)
        )


def reduces(run: Run, rank: int = 0) -> list[Event]:
    """Return a rank's all-reduces, in the order of their launch."""
    found = [event for event in run.trace.collectives(rank) if event.operation.startswith("all_reduce")]
    return sorted(found, key=lambda event: (event.start, event.sequence))


def cut(parameters: Sequence[tuple[int, str, int]], cap: float) -> list[list[int]]:
    """Return the layers in each bucket: (layer, dtype, bytes) in the order in which gradients come."""
    full: list[list[int]] = []
    filling: dict[str, tuple[list[int], int]] = {}
    seen: set[str] = set()
    for layer, dtype, nbytes in parameters:
        held, total = filling.get(dtype, ([], 0))
        filling[dtype] = [*held, layer], total + nbytes
        if total + nbytes >= (cap if dtype in seen else min(cap, MB)):
            full.append(filling.pop(dtype)[0])
            seen.add(dtype)
    return full + [held for held, _ in filling.values()]


# Values ---------------------------------------------------------------------------------------------------------------


@check(points=2, todo=3, title="steps are those of one process", look_at="tied and frozen parameters; what divides")
def one_process(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for view in (False, True):
        world_size, size = draw.choice([2, 3, 4]), draw.randrange(2, 5)
        model = net()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(draw.tensor(tuple(parameter.shape)) / 16)
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        batches = [[draw.tensor((size, 6)) / 8 for _ in range(world_size)] for _ in range(3)]
        cap = draw.choice([25, 1e-4, 3e-4])
        given = [
            Args(
                state if rank == 0 else {name: tensor + 1 for name, tensor in state.items()},
                [one[rank] for one in batches],
                bucket_cap_mb=cap,
                gradient_as_bucket_view=view,
            )
            for rank in range(world_size)
        ]
        run = ranks(world_size).call(submission.used_by(trained, net), given)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for one in batches:
            optimizer.zero_grad()
            model(torch.cat(one)).square().mean().backward()
            optimizer.step()
        for number, parameter in enumerate(model.parameters()):
            seen = [value[number] for value in run.values]
            expect(seen, "a weight after three steps").close_to([parameter.detach()] * world_size, rel=1e-4)


@check(
    points=2,
    todo=3,
    title="the mean to the last bit, in every pass",
    look_at="what divides, and what grad is afterwards",
)
def exact(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    sizes = [draw.randrange(2, 60) for _ in range(4)]
    orders = [[0, 1, 2, 3]] * 2
    for world_size, clear in ((draw.choice([2, 5]), True), (draw.choice([2, 4]), False)):
        gradients = drawn(draw, world_size, sizes)
        how = {"cap": draw.choice([25, 1e-4]), "clear": clear, "gradient_as_bucket_view": draw.choice([False, True])}
        run = go(submission, ranks, same_for_all(gradients, orders, **how))
        is_mean(run, gradients, 0)
        is_mean(run, gradients, 1, times=1 if clear else 2)


@check(points=1, todo=3, title="several dtypes, frozen layers, and layers without elements", look_at="assign")
def dtypes(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    names = ["float32", "float64", "bfloat16", "float32", "float64", "float32"]
    sizes = [draw.randrange(1, 40) for _ in names]
    sizes[draw.choice([1, 2, 4])] = 0
    gradients = drawn(draw, 2, sizes, names)
    for mine in gradients:
        for gradient in mine:
            if gradient.dtype == torch.float64:
                gradient.mul_(1 + 2**-40)  # which float32 cannot hold
    for cap in (25, 1e-5):
        run = go(submission, ranks, same_for_all(gradients, [[0, 1, 2, 3, 4, 5]] * 2, cap=cap, frozen=[3]))
        for number in (0, 1):
            is_mean(run, gradients, number, layers=[0, 1, 2, 4, 5])
            seen = [value["grads"][number][3] for value in run.values]
            expect(seen, "gradient of a frozen layer").equals([None] * 2)


@check(points=1, todo=3, title="one equal start, by one broadcast", look_at="__init__, which is given")
def start(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    gradients = drawn(draw, 3, [draw.randrange(2, 50) for _ in range(4)])
    first = draw.randrange(3, 30)
    run = go(submission, ranks, [Args(mine, [], start=float(first + rank)) for rank, mine in enumerate(gradients)])
    for rank, value in enumerate(run.values):
        expect(value["state"], f"a weight and a buffer at the start, on rank {rank}").equals([float(first), first])
        expect(value["keys"], "keys of the state").equals(["calls", "count", *(f"weights.{n}" for n in range(4))])
    events = [event.operation for event in run.trace.collectives(0)]
    expect(set(events), "collectives at the start").equals({"broadcast"})
    # one for each dtype is right, too
    expect(len(events), "broadcasts at the start").at_most(2)


@check(points=1, todo=3, title="buffers of the first rank, or each rank's own", look_at="forward, which is given")
def buffers(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    gradients = drawn(draw, 3, [9, 9])
    for sends in (True, False):
        given = same_for_all(gradients, [[0, 1]] * 3, broadcast_buffers=sends)
        run = go(submission, ranks, given)
        for rank, value in enumerate(run.values):
            own, first = float(gradients[rank][0][0]), float(gradients[0][0][0])
            wanted = [n * first + own if sends else (n + 1) * own for n in range(3)]
            expect(value["buffers"], f"a buffer that grows in each pass, broadcast_buffers={sends}").equals(wanted)


@check(points=1, todo=3, title="a group of some of the ranks", look_at="collectives: in the group, not in the world")
def groups(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    parts = [[0, 3], [1, 2, 4]]
    found = {rank: drawn(draw, len(part), [7, 30])[0] for part in parts for rank in part}
    part_of = {rank: part for part in parts for rank in part}
    given = [
        Args(found[rank], [[0, 1]] * 2, start=float(rank), cap=1e-5, group=group_of(part_of[rank])) for rank in range(5)
    ]
    run = go(submission, ranks, given)
    for part in parts:
        for rank in part:
            expect(run.values[rank]["state"][0], "a weight at the start, the group's first rank's").equals(
                float(part[0])
            )
            for layer in range(2):
                wanted = mean([found[r] for r in part], layer)
                expect(run.values[rank]["grads"][1][layer], "gradient").equals(wanted)


@check(points=1, todo=3, title="no_sync, and several forward passes before one backward pass", look_at="collect")
def no_sync(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    sizes, orders = [draw.randrange(2, 40) for _ in range(3)], [[0, 1, 2]] * 4
    for view in (False, True):
        gradients = drawn(draw, 2, sizes)
        how = {"clear": False, "without_sync": 2, "gradient_as_bucket_view": view, "broadcast_buffers": False}
        run = go(submission, ranks, same_for_all(gradients, orders[:3], mark=work("pass", 1e-6), **how))
        for rank, value in enumerate(run.values):
            for layer in range(3):
                expect(value["grads"][1][layer], "gradient within no_sync").equals(2 * gradients[rank][layer])
        is_mean(run, gradients, 2, times=3)
        expect(len(reduces(run)), "all-reduces of three passes, two of them within no_sync, one bucket").equals(1)
    gradients = drawn(draw, 2, sizes)
    run = go(submission, ranks, same_for_all(gradients, orders[:3], together=True))
    is_mean(run, gradients, 2, times=3)
    expect(len(reduces(run)), "all-reduces of a backward pass after three forward passes").equals(1)


@check(
    points=2,
    todo=3,
    title="unused parameters: zero where others have a gradient, None where nobody has, and an error that names them",
    look_at="finish: which gradients exist on this rank, and which on any",
)
def unused(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    sizes = [draw.randrange(2, 40) for _ in range(5)]
    for view, cap in zip((False, True), draw.sample([25, 1e-6], 2), strict=True):  # one bucket, and one for each layer
        gradients = drawn(draw, 3, sizes)
        # layer 4 is used nowhere, layer 1 on one rank only, and layer 2 by one rank only in the second pass
        alone = draw.randrange(3)
        orders = [[[0, 3], [0, 2, 3]] if rank != alone else [[0, 1, 2, 3], [0, 1, 3]] for rank in range(3)]
        how = {"find_unused_parameters": True, "cap": cap, "gradient_as_bucket_view": view}
        run = go(submission, ranks, [Args(mine, order, **how) for mine, order in zip(gradients, orders, strict=True)])
        for number in (0, 1):
            for layer in range(5):
                users = [rank for rank in range(3) if layer in orders[rank][number]]
                wanted = sum(gradients[rank][layer] for rank in users) / 3 if users else None
                seen = [value["grads"][number][layer] for value in run.values]
                expect(seen, f"gradient of layer {layer}, used on {len(users)} of 3 ranks").equals([wanted] * 3)
    gradients = drawn(draw, 2, sizes)
    given = same_for_all(gradients, [[0, 2, 3, 4], [0, 1, 2, 3, 4]])
    for raised in ranks(2).call(submission.used_by(failure, passes, layers), given).values:
        expect(raised, "error of a forward pass after a pass without layer 1").contains("weights.1")
        expect("weights.2" in raised, "it names another layer").equals(False)


@check(points=1, todo=3, title="a communication hook", look_at="collect: who divides; finish: what the future has")
def comm_hook(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    gradients = drawn(draw, 2, [draw.randrange(2, 40) for _ in range(3)])
    for view in (False, True):
        run = go(submission, ranks, same_for_all(gradients, [[0, 1, 2]], cap=1e-6, hook=(-1.0, 0.0),
                                                 gradient_as_bucket_view=view))  # fmt: skip
        for value in run.values:
            expect(value["calls"], "index, is_last, parameters and gradients of each bucket").equals(
                [(0, False, 1, 1), (1, False, 1, 1), (2, True, 1, 1)]
            )
            for layer in range(3):
                expect(value["grads"][0][layer], "gradient, of a hook that turns its sign").equals(
                    -mean(gradients, layer)
                )
        gradients = drawn(draw, 2, [draw.randrange(2, 40) for _ in range(3)])


# Buckets, overlap and memory ------------------------------------------------------------------------------------------


@check(
    points=3,
    todo=3,
    title="buckets: how many, how large, in which order, before and after they are made again",
    look_at="assign; and that each bucket is one all-reduce",
)
def buckets(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for names in (["float32"] * 7, ["float32", "float64", "float32", "float64", "float32", "float64", "float32"]):
        sizes, cap = [draw.randrange(20, 400) for _ in names], draw.choice([800, 1200, 2000])
        order = draw.sample(range(7), 7)
        gradients = drawn(draw, 2, sizes, names)
        run = go(submission, ranks, same_for_all(gradients, [order] * 2, cap=cap / MB, mark=work("pass", 1e-6)))
        is_mean(run, gradients, 1)
        width = {"float32": 4, "float64": 8}
        for number, came in enumerate((list(range(7))[::-1], order[::-1])):
            wanted = [
                sum(sizes[layer] * width[names[layer]] for layer in bucket)
                for bucket in cut([(layer, names[layer], sizes[layer] * width[names[layer]]) for layer in came], cap)
            ]
            for rank in range(2):
                begins = [e.start for e in run.trace.of(rank, Kind.COMPUTE) if e.operation == "pass"]
                seen = [e.nbytes for e in reduces(run, rank) if begins[number] < e.start < begins[number + 1]]
                which = (
                    "the first pass" if number == 0 else "the second pass, whose buckets are in the order of arrival"
                )
                expect(seen, f"bytes of each all-reduce in {which}").equals(wanted)
    # the first bucket is full at 1 MB
    sizes = [300_000, 300_000, 125_000, 150_000]
    gradients = [[torch.full((size,), float(draw.randrange(9))) for size in sizes] for _ in range(2)]
    run = go(submission, ranks, same_for_all(gradients, [[0, 1, 2, 3]], cap=2))
    expect([e.nbytes for e in reduces(run)], "bytes of the all-reduces, with bucket_cap_mb=2").equals(
        [1_100_000, 2_400_000]
    )


@check(
    points=4,
    todo=3,
    title="overlap: on three clusters a pass takes no longer than its all-reduces allow",
    look_at="when buckets are launched, and what waits for what",
)
def overlap(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for (hardware, seconds), view in zip(CLUSTERS, draw.sample([False, True, False], 3), strict=True):
        count, size = 6, draw.randrange(20, 40) * 1024
        gradients = [[torch.full((size,), 4.0 * draw.randrange(9)) for _ in range(count)] for _ in range(4)]
        together = draw.choice([1, 2])
        how = {"backward": work("layer", seconds), "mark": work("mark", 1e-9), "broadcast_buffers": False}
        arguments = same_for_all(
            gradients, [list(range(count))] * 2, cap=(together * 4 * size - 8) / MB, gradient_as_bucket_view=view, **how
        )
        run = go(submission, ranks, arguments, **hardware)
        is_mean(run, gradients, 0)
        is_mean(run, gradients, 1)
        nbytes = [together * 4 * size] * (count // together)
        alone = ranks(4, **hardware).call(submission.used_by(reduced_alone), [Args(nbytes[:2], work("pause", 1.0))] * 4)
        each = max(event.end - event.start for event in reduces(alone))
        # bucket k is full when its last layer is done; the network serves one after the other
        done = 0.0
        for number in range(len(nbytes)):
            done = max(done, (number + 1) * together * seconds) + each
        for rank in range(4):
            expect([event.nbytes for event in reduces(run, rank)], "bytes of each all-reduce").equals(nbytes * 2)
            work_events = [e for e in run.trace.of(rank, Kind.COMPUTE) if e.operation in ("layer", "mark")]
            times = sorted(work_events, key=lambda event: event.start)
            took = times[-1].start - times[-1 - count].start
            what = f"seconds of a backward pass on {'four machines' if hardware['nproc_per_node'] == 1 else hardware}"
            expect(took, what, unit="seconds").at_most(SLACK * done + 2e-5)


@check(
    points=2,
    todo=3,
    title="one order on all ranks, and unused parameters hold nothing up",
    look_at="collect: which bucket may leave next",
)
def one_order(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    sizes = draw.sample(range(20, 300), 5)
    gradients = drawn(draw, 3, sizes)
    orders = [draw.sample(range(5), 5) for _ in range(3)]
    given = [Args(mine, [order] * 2, cap=1e-6) for mine, order in zip(gradients, orders, strict=True)]
    run = go(submission, ranks, given)
    is_mean(run, gradients, 0)
    is_mean(run, gradients, 1)
    wanted = [4 * size for size in sizes[::-1]] + [4 * sizes[layer] for layer in orders[0][::-1]]
    for rank in range(3):
        seen = [event.nbytes for event in reduces(run, rank)]
        expect(seen, f"bytes of the all-reduces of rank {rank}, whose gradients come in another order").equals(wanted)
    # the last layer is in the first bucket, and used on no rank, or on one
    seconds = 0.01
    for users in (set[int](), {draw.randrange(2)}):
        gradients = drawn(draw, 2, sizes)
        given = [
            Args(
                mine, [[0, 1, 2, 3, *([4] if rank in users else [])]],
                cap=1e-6, backward=work("layer", seconds), find_unused_parameters=True,
            )
            for rank, mine in enumerate(gradients)
        ]  # fmt: skip
        run = go(submission, ranks, given)
        is_mean(run, gradients, 0, layers=range(4))
        for rank in range(2):
            end = max(e.end for e in run.trace.of(rank, Kind.COMPUTE) if e.operation == "layer")
            early = [e for e in reduces(run, rank) if e.nbytes > 4 * 19 and e.start < end - seconds / 2]
            what = "all-reduces that began before the first layer's backward pass ended, of 5 layers, one unused"
            expect(len(early), what).at_least(4)


@check(
    points=2,
    todo=3,
    title="gradient_as_bucket_view: no gradient is stored twice",
    look_at="collect and finish: what `grad` becomes, and when",
    needs={"memory"},
)
def views(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    size = draw.randrange(15_000, 20_000)
    fill = [[float(2 * draw.randrange(9)) for _ in range(3)] for _ in range(2)]
    wanted = [[(a + b) / 2] * 4 for a, b in zip(*fill, strict=True)]
    peaks = {}
    for view in (True, False):
        given = [Args(size, mine, bucket_cap_mb=1e-3, gradient_as_bucket_view=view) for mine in fill]
        run = ranks(2, account=True).call(submission.used_by(held), given)
        expect(run.values, "elements of the gradients").equals([wanted] * 2)
        peaks[view] = max(run.trace.peak_memory(rank) for rank in range(2))
    # parameters, their gradients, and one gradient that autograd has just computed
    limit = 4 * size * (4 + 4 + 1.6)
    expect(peaks[True], "peak bytes of a rank with 4 layers", unit="bytes").at_most(limit)
    size = BIG // 4 + draw.randrange(1000)
    given = [Args(size, mine, bucket_cap_mb=1, gradient_as_bucket_view=True) for mine in fill]
    processes, nbytes = ranks.processes(2).measured(submission.used_by(held), given)
    expect(processes.values, "elements of the gradients, on real processes").equals([wanted] * 2)
    what = f"bytes that a process holds at most with 4 gradients of {BIG // MB} MB, by the kernel's count"
    expect(nbytes / 2 - NOISE, what, unit="bytes").at_most(4 * size * (4 + 4 + 2.5))


# Checkpoints and the trainer ------------------------------------------------------------------------------------------


@check(points=1, todo=4, title="checkpoints: the old one or the new one, wrapped or not", look_at="write")
def checkpoints(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    number = float(draw.randrange(2, 9))
    for fails, restarts in ((True, draw.choice([True, False])), (False, True)):
        run = ranks(2).call(
            submission.used_by(saved, noted_calls), [Args(number + rank, fails, restarts) for rank in range(2)]
        )
        for value in run.values:
            expect(value["zero"], "what was loaded is the second checkpoint").equals(not fails)
            expect(value["epoch"], "epoch").equals(int(number) if fails else 0)
            expect(value["rate"], "learning rate of the first rank").equals(number)
            expect(value["moments"], "parameters in Adam's state").equals(4)
            expect(value["raised"], "error of save").equals("no space left" if fails else "")
        expect(run.values[0]["same"], "biases and buffers are those that were saved").equals(True)
        expect(run.values[0]["files"], "files in the folder").equals(["state.pt"])
        expect(run.values[1]["files"], "files that another rank has written").equals([])
        expect(run.values[0]["calls"][:2], "what was called in os for the first checkpoint").equals(
            ["fsync", "replace"]
        )


@check(points=1, todo=4, title="DDPTrainer, and bad arguments", look_at="its methods, which are given")
def training(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size, size, rate = 2, 8, 0.05
    batches = [[draw.tensor((size, 3)) / 8 for _ in range(world_size)] for _ in range(3)]
    given = [Args([one[rank] for one in batches], rate, 2) for rank in range(world_size)]
    run = ranks(world_size).call(submission.used_by(whole_training, joined=False), given)
    model = nn.Linear(3, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    rates = [rate, 1.5 * rate, 2 * rate]
    for one, now in zip(batches, rates, strict=True):
        model.zero_grad()
        whole = torch.cat(one)
        nn.functional.mse_loss(model(whole), whole.sum(1, keepdim=True)).backward()
        torch.optim.SGD(model.parameters(), lr=now).step()
    for rank, value in enumerate(run.values):
        for seen, parameter in zip(value["weights"], model.parameters(), strict=True):
            expect(seen, "a weight after three steps").close_to(parameter.detach(), rel=1e-4)
        for seen, now in zip(value["rates"], rates, strict=True):
            expect(seen, "learning rate").close_to(now)
        expect(value["samples"], "samples of this rank, of 11").equals(list(range(rank, 10, 2)))
        expect([value["mean"], value["first"], value["open"]], "mean rank, main process, group after cleanup").equals(
            [0.5, rank == 0, False]
        )
        for error, name in zip(value["errors"], ("module", "bucket_cap_mb"), strict=True):
            expect(error.split(":")[0], f"a bad {name} raises").equals("ValueError")
            expect(error, "message").contains(name)
