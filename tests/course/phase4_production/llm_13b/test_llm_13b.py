"""The solution of llm_13b: steps of one process, files that a crash leaves, plans, and a run on fake GPUs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from waiting import BROKEN_SECONDS

from labkit import Job, catalogue, local, virtual
from labkit.clusters import Cluster
from labkit.clusters.virtual import kill
from labkit.course.phase4_production.llm_13b.given import MasterAdamW, extended, measured, slices, trigram_loss, windows
from labkit.course.phase4_production.llm_13b.scenarios import cluster_of, model_of, one_process, plan_of
from labkit.data.source_text import source_text
from labkit.exercises import load

EXERCISE = catalogue.find("llm_13b")
MODULES = {one.name: one.source("solution")[0] for one in (*EXERCISE.builds_on, EXERCISE)}
SIZES = [2, 16, 2, 8]


@pytest.fixture(autouse=True)
def written(workspace: Path) -> None:
    """The learner's modules are the solutions."""
    for name, source in MODULES.items():
        catalogue.find(name).save(source)


def trained(plan: Any, backend: str) -> tuple[int, dict[int, float], float | None]:
    import torch.distributed as dist

    from labkit.exercises import llm_13b

    dist.init_process_group(backend)
    report = llm_13b.train(plan)
    return report.first_step, report.losses, report.held_out_loss


def run(cluster: Cluster, plan: Any, backend: str = "gloo") -> list[Any]:
    job = Job.calling(trained, plan, backend, modules=MODULES, timeout=BROKEN_SECONDS)
    return list(cluster.run(job).raise_if_failed().values)


@pytest.mark.parametrize(
    ("make", "layout", "backend"),
    [
        (virtual, {"batch": 6, "microbatch": 3}, "gloo"),
        (virtual, {"batch": 6, "microbatch": 1, "data": 3}, "nccl"),
        (virtual, {"batch": 6, "microbatch": 2, "pipeline": 3, "recompute": "full"}, "gloo"),
        (virtual, {"batch": 8, "microbatch": 2, "data": 2, "tensor": 2, "zero": 0}, "nccl"),
        (local, {"batch": 8, "microbatch": 2, "data": 2, "pipeline": 2}, "gloo"),
    ],
    ids=["one rank", "data", "pipeline", "data and tensor", "data and pipeline, real processes"],
)
def test_losses_are_those_of_one_process(make: Any, layout: dict[str, Any], backend: str) -> None:
    ranks = layout.get("data", 1) * layout.get("pipeline", 1) * layout.get("tensor", 1)
    options = {"learning_rate": 0.01, "seed": 3}
    values = run(make(nproc_per_node=ranks), plan_of(SIZES, layout, 4, **options), backend)
    expected = one_process(SIZES, layout, 4, **options)["losses"]
    seen = [list(losses.values()) for _, losses, _ in values if losses]
    assert seen
    torch.testing.assert_close(seen, [expected] * len(seen), rtol=1e-4, atol=1e-5)


def test_a_killed_training_goes_on_exactly(tmp_path: Path) -> None:
    """With exercise 20's files: a crash leaves different steps in the folders of the two stages, or one file torn."""
    layout = {"batch": 8, "microbatch": 4, "data": 2, "pipeline": 2}
    plan = plan_of(SIZES, layout, 8, held_out=8, checkpoint_every=2)
    job = Job.calling(trained, replace(plan, checkpoint_dir=str(tmp_path / "whole")), "gloo", modules=MODULES)
    whole = virtual(nproc_per_node=4).run(job).raise_if_failed()
    killed = replace(plan, checkpoint_dir=str(tmp_path / "killed"))
    cut = Job.calling(trained, killed, "gloo", modules=MODULES)
    faults = [kill(2, at=0.7 * whole.trace.seconds)]
    assert any(rank.error for rank in virtual(nproc_per_node=4, faults=faults).run(cut).ranks)
    folders = {place: sorted((tmp_path / "killed" / place).glob("step_????????")) for place in ("pp0_tp0", "pp1_tp0")}
    common = {one.name for one in folders["pp0_tp0"]} & {one.name for one in folders["pp1_tp0"]}
    newest = max(common)
    next((tmp_path / "killed" / "pp1_tp0" / newest).glob("rank_*.bin")).write_bytes(b"torn")
    resumed = run(virtual(nproc_per_node=4), killed)
    assert {value[0] for value in resumed} == {int(newest[5:]) - 2 if len(common) > 1 else 0}
    assert [value[2] for value in resumed] == [value[2] for value in whole.values]


def test_16_bit_weights_have_copies_in_32_bits() -> None:
    """Steps far smaller than 16 bits can show add up; in 32 bits the optimizer is torch's."""
    start = torch.full((4,), 1.0)
    dtypes = torch.bfloat16, torch.float32, torch.float32
    half, wide, theirs = (torch.nn.Parameter(start.to(dtype, copy=True)) for dtype in dtypes)
    mine = [MasterAdamW([one], lr=1e-4) for one in (half, wide)]
    other = torch.optim.AdamW([theirs], lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1)
    for _ in range(100):
        for parameter in (half, wide, theirs):
            parameter.grad = torch.ones_like(parameter)
        for optimizer in (*mine, other):
            optimizer.step()
    torch.testing.assert_close(wide, theirs)
    torch.testing.assert_close(half.detach().float(), theirs.detach(), atol=4e-3, rtol=0)
    assert half[0] < 0.995


def test_a_plan_fits_and_a_run_of_slices_confirms_it() -> None:
    """1 billion parameters on 4 virtual A100 with 20 GB, in fake tensors."""
    solution = load(EXERCISE, MODULES[EXERCISE.name])
    cluster = cluster_of("dgx-a100", 1, nproc_per_node=4, memory_gb=20.0)
    plan = solution.plan(model_of(24, 1792, 14, 2048, 50304), cluster, 32, 1e9)
    assert plan.layout.ranks == 4 and plan.steps == 15_259
    ranks = virtual("dgx-a100", nproc_per_node=4, fake=True, settings={"gpu.memory_gb": 20.0})
    job = Job.calling(measured, slices(plan), modules=MODULES, trace=False)
    step = extended(plan, ranks.run(job).raise_if_failed().values)
    assert step.nbytes <= 20e9
    assert step.seconds == pytest.approx(plan.forecast.step_seconds, rel=0.25)


TWO_STAGES = {"batch": 10, "data": 2, "pipeline": 2}


@pytest.mark.parametrize(
    ("sizes", "layout", "decides"),
    [
        ([16, 1024, 8, 2048, 16000], {"batch": 7, "pipeline": 4}, ("logits", "blocks")),
        ([6, 5120, 40, 2048, 50304], {**TWO_STAGES, "recompute": "full"}, ("logits", "logits")),
        ([6, 2048, 16, 1024, 512], TWO_STAGES, ("blocks", "blocks")),
        ([6, 2048, 16, 1024, 512], {**TWO_STAGES, "recompute": "full"}, ("blocks", "blocks")),
    ],
    ids=["logits in slices, blocks in the whole", "logits, recomputed", "blocks", "blocks, recomputed"],
)
def test_slices_extended_are_the_whole_plan(sizes: list[int], layout: dict[str, Any], decides: tuple[str, str]) -> None:
    """With ZeRO 1. The peak of a whole step is not linear in layers: where another part decides in the whole plan than
    in its slices, the peaks of whole steps, extended, miss more than 10 %."""
    plan = plan_of(sizes, {**layout, "precision": "bf16"}, 2)
    job = Job.calling(measured, [*slices(plan), plan], modules=MODULES, trace=False)
    values = virtual("dgx-a100", nproc_per_node=4, fake=True).run(job).raise_if_failed().values
    peaks = [
        max((nbytes, part) for found in values for part, nbytes in found[cell].peaks.items()) for cell in (1, 3, 4)
    ]
    few, many, whole = (nbytes for nbytes, _ in peaks)
    assert ["logits" if "head" in part else "blocks" for _, part in (peaks[0], peaks[2])] == list(decides)
    step = extended(plan, values)
    assert step.nbytes == pytest.approx(whole, rel=0.005)
    assert step.seconds == pytest.approx(max(found[4].seconds for found in values), rel=0.005)
    stages = plan.layout.pipeline
    of_whole_steps = few + (sizes[0] - stages) / stages * (many - few)
    assert (abs(of_whole_steps / whole - 1) > 0.1) == (decides[0] != decides[1])


def test_slices_have_a_block_in_each_stage() -> None:
    """The head costs as much as 2.3 blocks: with two layers the last stage would have none."""
    plan = plan_of([24, 1792, 14, 2048, 50304], {"batch": 8, "microbatch": 1, "pipeline": 2}, 1)
    assert [one.model.layers for one in slices(plan)] == [4, 4, 6, 6]
    job = Job.calling(measured, slices(plan), modules=MODULES, trace=False)
    values = virtual("dgx-a100", nproc_per_node=2, fake=True).run(job).raise_if_failed().values
    assert [[cell.blocks for cell in found] for found in values] == [[3, 3, 4, 4], [1, 1, 2, 2]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 0}, "batch must be an integer from 1, got 0"),
        ({"tokens": -1.0}, "tokens must be a number above 0, got -1.0"),
        ({"model": "gpt"}, "model must be a causal Transformer with tied embeddings, got 'gpt'"),
        ({"cluster": 4}, "cluster must be a Topology, got 4"),
    ],
    ids=str,
)
def test_bad_arguments_are_named(changes: dict[str, Any], message: str) -> None:
    solution = load(EXERCISE, MODULES[EXERCISE.name])
    arguments = {"model": model_of(*SIZES), "cluster": cluster_of("dgx-a100", 1), **changes}
    with pytest.raises(ValueError, match=message):
        solution.plan(**arguments)


def test_the_trigram_model_is_better_with_more_text_and_a_prior() -> None:
    tokens = windows(32, 50)
    assert tokens.shape == (50, 33)
    read = source_text()[: 4_000_000 // 33 * 33].long().view(-1, 33)
    assert 1.5 < trigram_loss(tokens, read, 10.0) < trigram_loss(tokens, read) < trigram_loss(tokens, read[:3000]) < 4
