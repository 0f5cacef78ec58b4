"""The solution of zero equals one process, and torch's FSDP2 in time and memory; states, offloading, 13 billion."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from waiting import BROKEN_SECONDS

from labkit import Job, Run, catalogue, local, virtual
from labkit.course.phase3_multi_node.zero.given import ZeROConfig

EXERCISE = catalogue.find("zero")
MODULES = {EXERCISE.name: EXERCISE.source("solution")[0]}

# Training in one process and sharded, with a tied, a frozen and an integer parameter, and a unit that is used twice.
TRAINING = """
import copy
import torch, torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint
from labkit.exercises import zero

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 6)) for _ in range(3))
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.blocks[1][0].weight.requires_grad_(False)
        self.blocks[2].count = nn.Parameter(torch.tensor([rank + 1]), requires_grad=False)
        self.register_buffer("scale", torch.ones(1))

    def forward(self, tokens):
        x = self.embedding(tokens)
        for number, block in enumerate(self.blocks):
            inside = checkpoint(block, x, use_reentrant=number == 2) if CHECKPOINT else block(x)
            x = x + inside
        return self.head(self.blocks[0](x)) * self.scale


def loss_of(model, tokens):
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1).float(), ((tokens * 3 + 1) % 11).flatten())


def reached(kind, options, start, batches):
    torch.manual_seed(rank)
    model = copy.deepcopy(start) if rank == 0 else Net()
    if kind == 3:
        owner = model = zero.FullyShardedDataParallel(model, **options)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    else:
        owner = optimizer = zero.ZeroOptimizer(model.parameters(), torch.optim.AdamW, kind, lr=0.01, **options)
    norms = []
    for tokens in batches:
        optimizer.zero_grad()
        for part in tokens.chunk(ranks)[rank].chunk(2):
            (loss_of(model, part) / 2).backward()
        norms.append(owner.clip_grad_norm_(0.5).item())
        optimizer.step()
    if kind == 3:
        with model.gather_full_params() as whole:
            return [parameter.clone() for parameter in whole.parameters()], norms, model.state_dict()
    return list(model.parameters()), norms, model.state_dict()


torch.manual_seed(0)
start = Net()
batches = [torch.randint(11, (4 * ranks, 3), generator=torch.Generator().manual_seed(s)) for s in range(STEPS)]
alone = copy.deepcopy(start)
alone.blocks[2].count.fill_(1)  # the first rank's
optimizer, norms = torch.optim.AdamW(alone.parameters(), lr=0.01), []
for tokens in batches:
    optimizer.zero_grad()
    loss_of(alone, tokens).backward()
    norms.append(nn.utils.clip_grad_norm_(alone.parameters(), 0.5).item())
    optimizer.step()
errors = []
for kind, options in KINDS:
    weights, seen, state = reached(kind, options, start, batches)
    assert list(state) == list(alone.state_dict())
    errors.append(max(
        *((a - b).abs().max().item() for a, b in zip(weights, alone.parameters())),
        *(abs(a - b) for a, b in zip(seen, norms)),
    ))
errors
"""
HYBRID = """
groups = [[dist.new_group([0, 1]), dist.new_group([2, 3])], [dist.new_group([0, 2]), dist.new_group([1, 3])]]
errors = [max((a - b).abs().max().item() for a, b in zip(
    reached(3, {"group": groups[0][rank // 2], "hybrid": groups[1][rank % 2]}, start, batches)[0], alone.parameters()
))]
errors
"""
ALL = [
    (1, {}),
    (1, {"bucket_cap_mb": 1e-4}),
    (2, {"bucket_cap_mb": 1e-4}),
    (3, {}),
    (3, {"prefetch": False}),
    (3, {"cpu_offload": True}),
]


def trained(make: Any, ranks: int, kinds: list[Any], checkpoint: bool = False, steps: int = 3, more: str = "") -> Run:
    head = f"import torch\nKINDS, CHECKPOINT, STEPS = {kinds!r}, {checkpoint}, {steps}\n"
    run = make(nproc_per_node=ranks).run(Job(source=head + TRAINING + more, modules=MODULES, timeout=BROKEN_SECONDS))
    assert isinstance(run, Run)
    return run.raise_if_failed()


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_training_equals_one_process(ranks: int) -> None:
    kinds = ALL if ranks in (1, 3) else ALL[2:4]
    for errors in trained(virtual, ranks, kinds, checkpoint=ranks % 2 == 1, steps=2).values:
        assert max(errors) < 1e-6


def test_twenty_steps_equal_one_process() -> None:
    for errors in trained(virtual, 2, ALL[2:4], checkpoint=True, steps=20).values:
        assert max(errors) < 2e-6


def test_local_ranks_compute_the_same() -> None:
    for errors in trained(local, 3, [ALL[1], ALL[2], ALL[3], ALL[5]]).values:
        assert max(errors) < 1e-6


def test_shards_inside_a_node_are_averaged_between_nodes() -> None:
    for errors in trained(virtual, 4, [], more=HYBRID).values:
        assert max(errors) < 1e-6


PRECISION = """
import torch, torch.distributed as dist
from torch import nn
from labkit.exercises import zero

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
dtypes = []
model[2].register_forward_hook(lambda module, args, output: dtypes.append((args[0].dtype, module.weight.dtype)))
sharded = zero.FullyShardedDataParallel(model, mixed_precision=torch.bfloat16)
sharded(torch.ones(4, 8)).sum().backward()
[*dtypes, *{(shard.dtype, shard.grad.dtype) for shard in sharded.parameters()}], sharded.state_dict()["0.weight"].dtype
"""


def test_mixed_precision_computes_in_16_bits_and_keeps_shards_in_32() -> None:
    import torch

    run = virtual(nproc_per_node=2).run(Job(source=PRECISION, modules=MODULES))
    for dtypes, saved in run.raise_if_failed().values:
        assert dtypes == [(torch.bfloat16, torch.bfloat16), (torch.float32, torch.float32)]
        assert saved == torch.float32


NORMS = """
import torch, torch.distributed as dist
from torch import nn
from labkit.exercises import zero

dist.init_process_group("gloo")
torch.manual_seed(0)
block = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
model = nn.Sequential(block, nn.Flatten(), nn.Linear(4, 3))
dtypes = []
block[1].register_forward_hook(lambda norm, args, output: dtypes.append((args[0].dtype, norm.weight.dtype)))
sharded = zero.FullyShardedDataParallel(model, mixed_precision=torch.bfloat16)
sharded(torch.randn(4, 2, 3, 3)).sum().backward()
dtypes, block[1].running_mean.dtype, [(shard.dtype, shard.grad.dtype) for shard in sharded.parameters()]
"""


def test_batch_norms_keep_the_precision_of_their_running_statistics() -> None:
    import torch

    run = virtual(nproc_per_node=2).run(Job(source=NORMS, modules=MODULES))
    for norm, running, shards in run.raise_if_failed().values:
        assert norm == [(torch.bfloat16, torch.float32)]
        assert running == torch.float32
        assert shards == [(torch.float32, torch.float32)] * 3


# A state that one world size saves, another one loads: both go on as one process does.
SAVING = """
import functools
import torch, torch.distributed as dist
from torch import nn
from labkit.exercises import zero
from labkit.course.phase3_multi_node.zero.given import DiskOptimizer

dist.init_process_group("gloo")


def made():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3))


def made_by(stage):
    model = made()
    make = functools.partial(DiskOptimizer, optimizer_class=torch.optim.AdamW, folder=PATH + "-state") if DISK \
        else torch.optim.AdamW
    if not stage:
        return model, torch.optim.AdamW(model.parameters(), lr=0.01)
    if stage == 3:
        model = zero.FullyShardedDataParallel(model, cpu_offload=DISK)
        return model, make(model.parameters(), lr=0.01)
    return model, zero.ZeroOptimizer(model.parameters(), make, stage, lr=0.01)


def step(model, optimizer, number):
    optimizer.zero_grad()
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(number))
    model(x).square().mean().backward()
    optimizer.step()


def states(stage, model, optimizer):
    return model.state_dict(), (model.optimizer_state_dict(optimizer) if stage == 3 else optimizer.state_dict())


alone = made_by(0)
for number in range(4):
    step(*alone, number)
found = []
for stage in STAGES:
    model, optimizer = made_by(stage)
    if LOAD:
        weights, state = torch.load(f"{PATH}-{stage}")
        model.load_state_dict(weights)
        model.load_optimizer_state_dict(optimizer, state) if stage == 3 else optimizer.load_state_dict(state)
    for number in range(2 if LOAD else 0, 4 if LOAD or DISK else 2):
        step(model, optimizer, number)
    if not LOAD and not DISK:
        saved = states(stage, model, optimizer)
        if dist.get_rank() == 0:
            torch.save(saved, f"{PATH}-{stage}")
    weights = model.state_dict()
    found.append(max((weights[name] - value).abs().max().item() for name, value in alone[0].state_dict().items()))
found
"""


def saved(ranks: int, path: Path, *, load: bool = False, disk: bool = False) -> list[Any]:
    head = f"PATH, LOAD, DISK, STAGES = {str(path)!r}, {load}, {disk}, [1, 2, 3]\n"
    run = virtual(nproc_per_node=ranks).run(Job(source=head + SAVING, modules=MODULES, timeout=BROKEN_SECONDS))
    return run.raise_if_failed().values


def test_a_state_goes_on_at_another_world_size(tmp_path: Path) -> None:
    saved(3, tmp_path / "state")
    for ranks in (2, 4):
        for errors in saved(ranks, tmp_path / "state", load=True):
            assert max(errors) < 1e-6


def test_optimizer_state_in_files_gives_the_same_steps(tmp_path: Path) -> None:
    for errors in saved(2, tmp_path / "state", disk=True):
        assert max(errors) < 1e-6
    assert {path.name for path in (tmp_path / "state-state").iterdir()} == {"0", "1"}


# Shapes only: times and memory beside FSDP2's, and what an estimate of memory is worth.
STEP = """
import time
import torch, torch.distributed as dist
import labkit
from torch.nn.functional import cross_entropy
from labkit.models import GPT, GPTConfig

dist.init_process_group("nccl")
config = GPTConfig(LAYERS, HEADS, WIDTH, context=LENGTH)
with torch.device("meta"):
    model = GPT(config)
if STAGE == "FSDP2":
    from torch.distributed.fsdp import fully_shard
    for block in [*model.blocks, model]:
        fully_shard(block)
    model.to_empty(device="cpu")
else:
    from labkit.exercises import zero
    model = zero.FullyShardedDataParallel(model, cpu_offload=STAGE in ("offload", "disk"))
if STAGE == "disk":
    from labkit.course.phase3_multi_node.zero.given import DiskOptimizer
    optimizer = DiskOptimizer(model.parameters(), torch.optim.AdamW, PATH)
else:
    optimizer = torch.optim.AdamW(model.parameters())
tokens = torch.randint(config.vocab, (1, config.context))
for step in range(2):
    optimizer.zero_grad()
    labkit.reset_peak_memory_stats()
    began = time.perf_counter()
    cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    optimizer.step()
    if step == STEPS - 1:
        break
time.perf_counter() - began, labkit.max_memory_allocated(), labkit.memory_allocated(), config.parameters
"""


def stepped(
    stage: str, size: tuple[int, int, int, int], steps: int = 2, path: Path = Path(), **cluster: Any
) -> tuple[float, int, int, int]:
    head = f"PATH = {str(path)!r}\nLAYERS, HEADS, WIDTH, LENGTH = {size}\nSTAGE, STEPS = {stage!r}, {steps}\n"
    run = virtual(fake=True, **cluster).run(Job(source=head + STEP, modules=MODULES, timeout=BROKEN_SECONDS))
    values = run.raise_if_failed().values
    return max(value[0] for value in values), *values[0][1:]


@pytest.mark.parametrize("network", [{"intra_node": "nvlink3"}, {"nnodes": 2, "inter_node": "ethernet-100g"}])
def test_no_slower_and_no_larger_than_fsdp2(network: dict[str, Any]) -> None:
    size = (3, 8, 1024, 512)
    ours, theirs = (stepped(stage, size, nproc_per_node=2, **network) for stage in ("ours", "FSDP2"))
    assert ours[0] <= 1.01 * theirs[0]
    assert ours[1] <= theirs[1]


def test_thirteen_billion_parameters_take_what_the_estimate_tells() -> None:
    _, _, held, parameters = stepped("ours", (40, 40, 5120, 1024), steps=1, nproc_per_node=4)
    assert parameters == pytest.approx(13e9, rel=0.01)
    assert held == pytest.approx(16 * parameters / 4, rel=0.03)


def test_offloaded_states_leave_the_gpu(tmp_path: Path) -> None:
    size = (4, 4, 512, 64)
    seconds = []
    for where in ("ours", "offload", "disk"):
        took, peak, held, parameters = stepped(where, size, path=tmp_path, nproc_per_node=2)
        seconds.append(took)
        if where != "ours":
            # two units, gradients of one twice, and the root's embedding and head
            assert held < 0.01 * parameters * 16 < peak < 4 * parameters * 4
    # copies over PCIe, and then files as well
    assert 1.5 * seconds[0] < seconds[1] < seconds[2]


REFUSED = """
import torch, torch.distributed as dist
from torch import nn
from labkit.exercises import zero

dist.init_process_group("gloo")
layer = nn.Linear(2, 2)
tried = {
    "stage": lambda: zero.ZeroOptimizer(layer.parameters(), torch.optim.SGD, 3, lr=1),
    "params": lambda: zero.ZeroOptimizer([layer.weight, layer.weight], torch.optim.SGD, 1, lr=1),
    "params ": lambda: zero.ZeroOptimizer([], torch.optim.SGD, 1, lr=1),
    "bucket_cap_mb": lambda: zero.ZeroOptimizer(layer.parameters(), torch.optim.SGD, 1, bucket_cap_mb=0, lr=1),
    "module": lambda: zero.FullyShardedDataParallel(nn.Tanh()),
    "mixed_precision": lambda: zero.FullyShardedDataParallel(layer, mixed_precision=torch.int8),
    "hybrid": lambda: zero.FullyShardedDataParallel(layer, hybrid=dist.group.WORLD),
    "num_gpus": lambda: zero.estimate_memory(1e9, 0, 1),
    "stage ": lambda: zero.estimate_memory(1e9, 1, 4),
    "offload_params": lambda: zero.ZeROConfig(stage=2, offload_params=True),
}
found = {}
for name, call in tried.items():
    try:
        call()
    except ValueError as error:
        found[name] = str(error)
found
"""


def test_bad_arguments_are_refused_before_anything_is_sent() -> None:
    run = virtual(nproc_per_node=2).run(Job(source=REFUSED, modules=MODULES)).raise_if_failed()
    for errors in run.values:
        assert len(errors) == 10
        assert all(text.startswith(name.strip()) for name, text in errors.items()), errors
    assert not run.trace.collectives()


def test_the_published_figures_follow_from_the_formula() -> None:
    namespace: dict[str, Any] = {"__name__": "zero"}
    exec(compile(MODULES[EXERCISE.name], "zero", "exec"), namespace)
    estimate = namespace["estimate_memory"]
    found = [estimate(13e9, 8, stage) for stage in range(4)]
    assert [one["zero_gb"] for one in found] == [208, 117, 71.5, 26]
    assert {one["baseline_gb"] for one in found} == {208}
    assert found[3]["reduction_factor"] == 8 and found[3]["max_parameters"] == 40e9
    assert estimate(13e9, 8, 2, offload_optimizer=True)["zero_gb"] == 52
    assert estimate(13e9, 8, 3, offload_optimizer=True, offload_params=True)["max_parameters"] == math.inf
    assert ZeROConfig() == ZeROConfig(stage=3, offload_optimizer=False, offload_params=False, overlap_comm=True)


def test_a_unit_that_computes_without_its_parameters_is_an_error_not_a_crash() -> None:
    source = """
import torch, torch.distributed as dist
from labkit.exercises import zero

class Forgetful(zero.FullyShardedDataParallel):
    def gather(self, unit, following):
        if dist.get_rank() == 0:
            super().gather(unit, following)

dist.init_process_group("gloo")
Forgetful(torch.nn.Sequential(torch.nn.Linear(3, 3)))(torch.ones(1, 3))
"""
    run = virtual(nproc_per_node=2).run(Job(source=source, modules=MODULES, timeout=BROKEN_SECONDS))
    error = run.ranks[1].error
    assert error is not None
    assert "gather returned before the parameters of unit '0' were there" in error.message
