"""`FSDPTrainer` trains as one process does and as the solution's `DDPTrainer`; its state is in shards of all ranks, or
of those of a node.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from waiting import BROKEN_SECONDS

from labkit import Job, catalogue, local, virtual
from labkit.clusters import Cluster
from labkit.course.phase3_multi_node.zero.given.fsdp_trainer import FSDPTrainer, sharding_units

EXERCISE = catalogue.find("ddp")
MODULES = {one.name: one.source("solution")[0] for one in (*EXERCISE.builds_on, EXERCISE)}
STEPS, SAMPLES = 4, 32
SCHEDULE = {"learning_rate": 0.01, "base_batch_size": 4, "warmup_steps": 2}

MODEL = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.ModuleList(nn.Linear(5, 5) for _ in range(3))
        self.head = nn.Linear(5, 5)
        self.head.weight = self.layers[0].weight  # tied across units
        self.layers[1].bias.requires_grad_(False)
        self.scale = nn.Parameter(torch.rand(5))
        self.register_buffer("shift", torch.rand(5))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(x) * self.scale + self.shift


generator = torch.Generator().manual_seed(5)
inputs, targets = (torch.randn(32, 5, generator=generator) for _ in range(2))
"""

TRAIN = """
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.tensor import DTensor
from labkit.exercises import ddp, process_group
from labkit.course.phase3_multi_node.zero.given.fsdp_trainer import FSDPTrainer

config = process_group.DDPConfig.from_env(backend="gloo")
size = 32 // 4 // config.world_size


def train(trainer, wrap):
    trainer.setup_distributed()
    model = wrap(trainer)(Net(seed=config.rank), torch.optim.AdamW)
    sampler = trainer.create_distributed_sampler(32, seed=1)
    sampler.set_epoch(1)
    mine, losses = torch.tensor(list(sampler)), []
    for step in range(4):
        chosen = torch.arange(32).view(4, config.world_size, size)[step, config.rank]
        loss = trainer.train_step((inputs[chosen], targets[chosen]), nn.functional.mse_loss)
        losses.append(trainer.all_reduce_metrics({"loss": loss, "rank": config.rank}))
    rate = trainer.optimizer.param_groups[0]["lr"]
    trainer.barrier()
    return model, {"losses": losses, "samples": mine.tolist(), "rate": rate, "first": trainer.is_main_process()}


model, theirs = train(ddp.DDPTrainer(config, batch_size=size, **SCHEDULE), lambda one: one.wrap_model)
results = []
for options in OPTIONS:
    trainer = FSDPTrainer(config, batch_size=size, **SCHEDULE, **options)
    model, mine = train(trainer, lambda one: one.wrap_model_fsdp)
    state = trainer.optimizer.state
    held = [p.to_local() for p in model.parameters()]
    held += [moment.to_local() for entry in state.values() for moment in entry.values() if isinstance(moment, DTensor)]
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    results.append({
        **mine, "names": [name for name, _ in model.named_parameters()], "held": sum(t.numel() for t in held),
        "moments": len(state), "weights": {name: value for name, value in whole.items()},
    })
trainer.cleanup()
trainer.cleanup()
[theirs, results, dist.is_initialized(), trainer.is_main_process()]
"""


def one_process() -> tuple[list[float], dict[str, Any], nn.Module]:
    """Train on whole batches; return the losses, the weights and the model."""
    space: dict[str, Any] = {}
    exec(MODEL, space)
    model = space["Net"](seed=0)
    optimizer, losses = torch.optim.AdamW(model.parameters()), []
    for step, chosen in enumerate(torch.arange(32).view(STEPS, -1)):
        # a batch of 8 is twice the base of 4: the rate doubles in two steps
        optimizer.param_groups[0]["lr"] = 0.01 * (1 + min(1.0, step / 2))
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(space["inputs"][chosen]), space["targets"][chosen])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict(), model


@pytest.mark.parametrize(
    ("cluster", "options"),
    [
        (virtual(nproc_per_node=1), [{}]),
        (virtual(nproc_per_node=2), [{}, {"cpu_offload": True}]),
        (local(nproc_per_node=2), [{}, {"activation_checkpointing": True, "cpu_offload": True}]),
        (virtual(nproc_per_node=4), [{}, {"activation_checkpointing": True, "mixed_precision": torch.float32}]),
        (local(nnodes=2, nproc_per_node=2), [{"shard_ranks": 2}, {"shard_ranks": 2, "cpu_offload": True}]),
        (virtual(nnodes=2, nproc_per_node=2), [{"shard_ranks": 2}, {"shard_ranks": 1}]),
    ],
)
def test_it_trains_as_one_process_and_as_ddp(cluster: Cluster, options: list[dict[str, Any]]) -> None:
    losses, weights, model = one_process()
    source = f"import torch\nSCHEDULE, OPTIONS = {SCHEDULE}, {options}\n" + MODEL + TRAIN
    run = cluster.run(Job(source=source, modules=MODULES, timeout=BROKEN_SECONDS)).raise_if_failed()
    for rank, (theirs, results, still_open, alone) in enumerate(run.values):
        assert not still_open and alone
        for mine in (theirs, *results):
            assert [entry["loss"] for entry in mine["losses"]] == pytest.approx(losses, rel=1e-5)
            assert {entry["rank"] for entry in mine["losses"]} == {(len(run.values) - 1) / 2}, "the mean over the ranks"
            assert mine["rate"] == pytest.approx(0.02)
            assert mine["first"] == (rank == 0)
        for mine in results:
            if rank == 0:  # the state dict is gathered there
                torch.testing.assert_close(mine["weights"], weights, rtol=1e-5, atol=1e-6)
            assert mine["names"] == [name for name, _ in model.named_parameters()]
            assert mine["moments"] == sum(p.requires_grad for p in model.parameters())
    trained = [p for p in model.parameters() if p.requires_grad]
    whole = sum(p.numel() for p in model.parameters()) + 2 * sum(p.numel() for p in trained)
    for chosen, *results in zip(options, *(values[1] for values in run.values), strict=True):
        ranks = chosen.get("shard_ranks", len(results))
        for first in range(0, len(results), ranks):
            held = [mine["held"] for mine in results[first : first + ranks]]
            assert sum(held) == whole, "each element is on one rank of those that have a model together"
            # shards are along the first dimension, of 5 rows: no rank has more than its even part, rounded up
            assert max(held) <= -(-5 // ranks) / 5 * whole
        assert sorted(sample for mine in results for sample in mine["samples"]) == list(range(SAMPLES))


WIDE = """
import os
import torch
import labkit
from types import SimpleNamespace
from labkit.course.phase3_multi_node.zero.given.fsdp_trainer import FSDPTrainer

rank = int(os.environ["RANK"])
config = SimpleNamespace(backend="gloo", init_method="env://", world_size=4, rank=rank, local_rank=rank % 2)
trainer = FSDPTrainer(config, 0.1, 2, base_batch_size=4, shard_ranks=SHARD_RANKS)
trainer.setup_distributed()
model = torch.nn.Sequential(*(torch.nn.Linear(256, 256, bias=False) for _ in range(4)))
trainer.wrap_model_fsdp(model, torch.optim.AdamW)
for _ in range(2):
    trainer.barrier()
    trainer.train_step((torch.ones(2, 256), torch.ones(2, 256)), torch.nn.functional.mse_loss)
labkit.memory_allocated()
"""


def test_hybrid_shards_stay_inside_a_node_and_only_their_gradients_cross() -> None:
    nbytes = 4 * 256 * 256
    crossing, inside, held = {}, {}, {}
    for shard_ranks in (None, 2):
        job = Job(source=f"SHARD_RANKS = {shard_ranks}\n{WIDE}", timeout=BROKEN_SECONDS)
        run = virtual("dgx-a100", nnodes=2, nproc_per_node=2).run(job).raise_if_failed()
        sent = {True: 0, False: 0}
        for event in run.trace.since_barrier().collectives(0):
            members = run.trace.members(event)
            # of its ring: a rank's input is its shard in an all-gather, and everything in the other two
            turns = {"all_gather": len(members), "reduce_scatter": 1, "all_reduce": 2}[event.operation]
            sent[len({rank // 2 for rank in members}) > 1] += turns * event.nbytes * (len(members) - 1) // len(members)
        crossing[shard_ranks], inside[shard_ranks], held[shard_ranks] = sent[True], sent[False], run.values
    # each of four layers is gathered twice and reduced once
    assert crossing == {None: 3 * 4 * 3 * nbytes // 4, 2: 4 * nbytes // 2}
    assert inside == {None: 0, 2: 4 * 3 * nbytes // 2}
    # parameters, gradients and two moments
    assert held == {None: [4 * 4 * nbytes // 4] * 4, 2: [4 * 4 * nbytes // 2] * 4}


CHECKPOINT = """
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from labkit.exercises import process_group
from labkit.course.phase3_multi_node.zero.given.fsdp_trainer import FSDPTrainer

config = process_group.DDPConfig.from_env(backend="gloo")
size = 8 // config.world_size
trainer = FSDPTrainer(config, batch_size=size, shard_ranks=SHARD_RANKS, **SCHEDULE)
trainer.setup_distributed()
model = trainer.wrap_model_fsdp(Net(seed=config.rank), torch.optim.AdamW)
if BEGIN:
    states = dict(zip(("model", "optimizer"), get_state_dict(model, trainer.optimizer)))
    dcp.load(states, checkpoint_id=FOLDER)
    set_state_dict(model, trainer.optimizer, model_state_dict=states["model"], optim_state_dict=states["optimizer"])
    trainer.steps = BEGIN
losses = []
for step in range(BEGIN, END):
    chosen = torch.arange(32).view(4, config.world_size, size)[step, config.rank]
    loss = trainer.train_step((inputs[chosen], targets[chosen]), nn.functional.mse_loss)
    losses.append(trainer.all_reduce_metrics({"loss": loss})["loss"])
if not BEGIN:
    dcp.save(dict(zip(("model", "optimizer"), get_state_dict(model, trainer.optimizer))), checkpoint_id=FOLDER)
trainer.cleanup()
losses
"""


def test_a_hybrid_checkpoint_is_resumed_on_another_number_of_ranks(tmp_path: Path) -> None:
    wanted, _, _ = one_process()
    losses: list[float] = []
    for cluster, shard_ranks, begin, end in (
        (local(nnodes=2, nproc_per_node=2), 2, 0, 2),
        (local(nproc_per_node=2), None, 2, STEPS),
    ):
        head = (
            f"SCHEDULE, SHARD_RANKS, BEGIN, END, FOLDER = {SCHEDULE}, {shard_ranks}, {begin}, {end}, {str(tmp_path)!r}"
        )
        job = Job(source=f"{head}\n{MODEL}{CHECKPOINT}", modules=MODULES, timeout=BROKEN_SECONDS)
        values = cluster.run(job).raise_if_failed().values
        assert values == [values[0]] * len(values)
        losses += values[0]
    assert losses == pytest.approx(wanted, rel=1e-5)


HALF = """
import os
import torch
from types import SimpleNamespace
from labkit.course.phase3_multi_node.zero.given.fsdp_trainer import FSDPTrainer

rank = int(os.environ["RANK"])
config = SimpleNamespace(backend="gloo", init_method="env://", world_size=4, rank=rank, local_rank=rank % 2)
options = {"mixed_precision": torch.float16, "shard_ranks": SHARD_RANKS}
trainer = FSDPTrainer(config, 1e-6, 2, base_batch_size=8, **options)
trainer.setup_distributed()
model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(2)))
trainer.wrap_model_fsdp(model, torch.optim.SGD)
dtypes, seen = set(), []
model[0].register_forward_hook(lambda module, inputs, output: dtypes.add(str(output.dtype)))
for step in range(4):
    before = [p.to_local().clone() for p in model.parameters()]
    x = torch.full((2, 8), 6e4 if step == 1 and rank == 3 else 1.0)  # which float16 has, but not its gradient
    loss = trainer.train_step((x, torch.zeros(2, 8)), torch.nn.functional.mse_loss)
    moved = any(bool((p.to_local() != old).any()) for p, old in zip(model.parameters(), before))
    seen.append((trainer.scaler.get_scale(), moved))
[dtypes, seen, all(bool(p.to_local().isfinite().all()) for p in model.parameters())]
"""


@pytest.mark.parametrize("shard_ranks", [None, 2])
@pytest.mark.parametrize("make", [local, virtual])
def test_in_float16_an_overflow_on_one_rank_skips_the_step_on_all(make: Any, shard_ranks: int | None) -> None:
    job = Job(source=f"SHARD_RANKS = {shard_ranks}\n{HALF}", timeout=BROKEN_SECONDS)
    for dtypes, seen, finite in make(nnodes=2, nproc_per_node=2).run(job).raise_if_failed().values:
        assert dtypes == {"torch.float16"} and finite
        assert seen == [(2.0**16, True), (2.0**15, False), (2.0**15, True), (2.0**15, True)]


def test_in_bfloat16_units_compute_twice_and_shards_and_loss_stay_in_float32() -> None:
    source = """
import os
import torch
from types import SimpleNamespace
from labkit.course.phase3_multi_node.zero.given.fsdp_trainer import FSDPTrainer

seen = []


class Unit(torch.nn.Linear):
    def forward(self, x):
        seen.append((self is model[0], x.dtype))  # the recomputation ends at the last tensor that it needs
        return super().forward(x)


rank = int(os.environ["RANK"])
config = SimpleNamespace(backend="gloo", init_method="env://", world_size=2, rank=rank, local_rank=rank)
options = {"mixed_precision": torch.bfloat16, "activation_checkpointing": True}
trainer = FSDPTrainer(config, 0.1, 2, base_batch_size=4, **options)
trainer.setup_distributed()
model = torch.nn.Sequential(Unit(4, 4), Unit(4, 4))
trainer.wrap_model_fsdp(model, torch.optim.SGD)
loss = trainer.train_step((torch.ones(2, 4), torch.ones(2, 4)), torch.nn.functional.mse_loss)
[[(first, str(dtype)) for first, dtype in seen], [str(one.dtype) for one in (loss, model[0].weight.grad)]]
"""
    run = virtual(nproc_per_node=2).run(Job(source=source, timeout=BROKEN_SECONDS)).raise_if_failed()
    forward = [(first, "torch.bfloat16") for first in (True, False, False, True)]
    assert run.values == [[forward, ["torch.float32"] * 2]] * 2


def test_units_are_children_and_those_of_lists_except_where_parameters_are_shared() -> None:
    space: dict[str, Any] = {}
    exec(MODEL, space)
    net = space["Net"](seed=0)
    assert sharding_units(net) == [net.layers[1], net.layers[2]], "the first layer shares its weight with the head"
    net.head.weight = nn.Parameter(torch.zeros(5, 5))
    assert sharding_units(net) == [*net.layers, net.head]
    net.scale = net.layers[1].bias
    assert sharding_units(net) == [net.layers[0], net.layers[2], net.head], "shared with the model itself"
    nested = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Tanh()), nn.TransformerEncoderLayer(4, 2, 8))
    assert sharding_units(nested) == [nested[0][0], nested[1]]
    assert sharding_units(nested, nn.Linear) == [
        nested[0][0], nested[1].self_attn.out_proj, nested[1].linear1, nested[1].linear2,
    ]  # fmt: skip


def test_units_by_parameter_count_leave_out_what_inner_units_have() -> None:
    inner = [nn.Linear(10, 10), nn.Linear(10, 10)]  # 110 parameters each
    small = [nn.Linear(4, 4), nn.Linear(4, 4)]  # 20
    few = nn.Sequential(*small, small[0])  # a module in two places is one unit
    model = nn.ModuleDict({
        "layers": nn.ModuleList([nn.Sequential(*inner)]), "few": few, "attention": nn.MultiheadAttention(8, 2),
    })  # fmt: skip
    assert sharding_units(model, min_parameters=100) == [*inner, model["attention"]]
    assert sharding_units(model, min_parameters=21) == [*inner, few, model["attention"]]
    assert sharding_units(model, min_parameters=200) == [model["layers"][0], model["attention"]]
    assert sharding_units(model, min_parameters=10) == [
        inner[0], inner[1], small[0], small[1], model["attention"],
    ]  # fmt: skip
    inner[1].weight = small[1].weight = nn.Parameter(torch.zeros(10, 10))
    assert sharding_units(model, min_parameters=100) == [inner[0], model["attention"]]
    with pytest.raises(ValueError, match="min_parameters must be None with unit_types"):
        sharding_units(model, nn.Linear, 100)


def test_it_trains_in_units_by_parameter_count() -> None:
    source = WIDE.replace("torch.optim.AdamW)", "torch.optim.AdamW, min_parameters=256 * 256 * UNITS)")
    gathers = []
    for least in (1, 2):
        job = Job(source=f"SHARD_RANKS, UNITS = None, {least}\n{source}", timeout=BROKEN_SECONDS)
        run = virtual("dgx-a100", nnodes=2, nproc_per_node=2).run(job).raise_if_failed()
        gathers.append(run.trace.since_barrier().collective_counts(0)["all_gather"])
    assert gathers == [8, 1], "four units; the model alone, which stays gathered"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("learning_rate", 0), ("batch_size", -1), ("base_batch_size", 0), ("warmup_steps", -1),
        ("mixed_precision", torch.float64), ("shard_ranks", 0), ("shard_ranks", 3),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(name: str, value: object) -> None:
    arguments: dict[str, Any] = {"learning_rate": 0.1, "batch_size": 2, name: value}
    with pytest.raises(ValueError, match=name):
        FSDPTrainer(SimpleNamespace(world_size=2), **arguments)


def test_float16_and_offload_exclude_each_other_on_gpus() -> None:
    with pytest.raises(ValueError, match=r"cpu_offload must be False with mixed_precision torch\.float16 on GPUs"):
        config = SimpleNamespace(world_size=2, backend="nccl")
        FSDPTrainer(config, 0.1, 2, mixed_precision=torch.float16, cpu_offload=True)


@pytest.mark.parametrize(
    ("batch_size", "warmup", "rates"), [(8, 2, [0.1, 0.25, 0.4, 0.4]), (8, 0, [0.4, 0.4]), (1, 2, [0.1, 0.075, 0.05])]
)
def test_the_learning_rate_grows_to_that_of_the_global_batch(batch_size: int, warmup: int, rates: list[float]) -> None:
    config = SimpleNamespace(world_size=2)
    trainer = FSDPTrainer(config, 0.1, batch_size, base_batch_size=4, warmup_steps=warmup)
    for step, rate in enumerate(rates):
        trainer.steps = step
        assert trainer.learning_rate_now() == pytest.approx(rate)
