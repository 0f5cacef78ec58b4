"""The solution of autotune: beside searches that measure everything, on virtual ranks and on local processes."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import BROKEN_SECONDS

from labkit import Job, catalogue, local, virtual
from labkit.course.phase4_production.autotune.given import (
    STRATEGIES,
    LayoutSpace,
    LogUniform,
    Measurement,
    Recipe,
    predicted,
)
from labkit.exercises import load
from labkit.hardware import topology
from labkit.predict import Plan, model

EXERCISE = catalogue.find("autotune")
SOURCE = EXERCISE.source("solution")[0]
MODULES = {EXERCISE.name: SOURCE}


@pytest.fixture(scope="module")
def autotune() -> ModuleType:
    return load(EXERCISE, SOURCE)


@given(count=st.integers(0, 3000), share=st.floats(0, 1.2))
def test_the_largest_that_fits_is_found_by_few_tries(autotune: ModuleType, count: int, share: float) -> None:
    fit = min(count, int(share * count))
    tried: list[int] = []

    def fits(candidate: int) -> bool:
        tried.append(candidate)
        return candidate <= fit

    assert autotune.largest_that_fits(fits, range(1, count + 1)) == (fit or None)
    assert len(tried) == len(set(tried)) <= 2 * math.ceil(math.log2(fit + 1)) + 1


# each rank has its own limit; a failed step leaves nothing behind, on a real process no more than elsewhere
SIZES = """
import gc, torch, torch.distributed as dist, weakref
from labkit.exercises import autotune

dist.init_process_group({backend!r})
limit = {limits}[dist.get_rank()]
held, alive = [], []

def step(batch_size):
    gc.disable()
    alive.append(sum(one() is not None for one in held))
    tensor = torch.zeros(batch_size)
    cycle = [tensor]
    cycle.append(cycle)
    held.append(weakref.ref(tensor))
    if batch_size > limit:
        raise {error}

found = autotune.find_batch_size(step, largest=4000)
[found, sum(alive)]
"""
ERRORS = st.sampled_from(
    ["torch.OutOfMemoryError('CUDA out of memory')", 'RuntimeError("DefaultCPUAllocator: can\'t allocate memory")']
)


def sizes(limits: list[int], backend: str, error: str) -> Job:
    return Job(
        source=SIZES.format(limits=limits, backend=backend, error=error), modules=MODULES, timeout=BROKEN_SECONDS
    )


@settings(max_examples=4)
@given(
    limits=st.lists(st.integers(1, 5000), min_size=1, max_size=4),
    backend=st.sampled_from(["gloo", "nccl"]),
    error=ERRORS,
)
def test_all_virtual_ranks_find_the_batch_that_fits_the_smallest(limits: list[int], backend: str, error: str) -> None:
    run = virtual(nproc_per_node=len(limits)).run(sizes(limits, backend, error)).raise_if_failed()
    assert run.values == [[min(*limits, 4000), 0]] * len(limits)


def test_local_processes_find_the_batch_that_fits_the_smallest() -> None:
    run = local(nproc_per_node=3).run(sizes([90, 33, 70], "gloo", "MemoryError()")).raise_if_failed()
    assert run.values == [[33, 0]] * 3


@given(valley=st.floats(0.1, 3000), total=st.floats(0.1, 3000), base=st.floats(0, 1), scale=st.floats(0.001, 1))
def test_the_best_bucket_size_is_that_of_all_sizes(
    autotune: ModuleType, valley: float, total: float, base: float, scale: float
) -> None:
    asked = []

    def seconds(size: float) -> float:
        used = min(size, total)
        return base + scale * (used / valley + valley / used)

    def measure(size: float) -> float:
        asked.append(size)
        return seconds(size)

    sizes = [2.0**power for power in range(-2, 11)]
    assert seconds(autotune.tune_bucket_size(measure, sizes)) == min(map(seconds, sizes))
    assert len(asked) == len(set(asked)) <= 8


@given(gpus=st.integers(1, 512), per_gpu=st.integers(1, 64), optimizer=st.sampled_from(["sgd", "adam"]))
def test_a_scaled_recipe_sees_as_many_samples(autotune: ModuleType, gpus: int, per_gpu: int, optimizer: str) -> None:
    recipe = Recipe(256, 0.1, 4000, 200, optimizer)  # type: ignore[arg-type]  # one of both
    made = autotune.scale_recipe(recipe, gpus, per_gpu)
    assert made.batch_size == gpus * per_gpu
    assert 0 <= made.steps * made.batch_size - 4000 * 256 < made.batch_size
    assert made.learning_rate == pytest.approx(0.1 * (made.batch_size / 256) ** (1 if optimizer == "sgd" else 0.5))
    assert autotune.scale_recipe(recipe, gpus, per_gpu, max_batch=gpus).batch_size == gpus


@given(budget=st.integers(1, 3000), reduction=st.integers(2, 5), min_steps=st.integers(1, 9), seed=st.integers(0, 99))
def test_the_budget_is_kept_and_the_best_trial_goes_on(
    autotune: ModuleType, budget: int, reduction: int, min_steps: int, seed: int
) -> None:
    budget = max(budget, min_steps)
    space = {"rate": LogUniform(1e-4, 1)}

    def objective(configuration: dict[str, float], steps: int) -> float:
        return abs(math.log(configuration["rate"])) + 1 / steps

    result, again = (
        autotune.tune(objective, space, budget, seed=seed, reduction=reduction, min_steps=min_steps) for _ in range(2)
    )
    assert result == again
    assert result.total_steps <= budget and result.trials[0].steps >= min_steps
    first = [trial for trial in result.trials if trial.steps == result.trials[0].steps]
    assert result.configuration == min(first, key=lambda trial: trial.loss).configuration
    assert len([trial for trial in result.trials if trial.steps == result.steps]) == 1


def test_a_trial_that_fails_is_never_the_result(autotune: ModuleType) -> None:
    def objective(configuration: dict[str, int], steps: int) -> float:
        if configuration["width"] == 4:
            raise MemoryError
        return {1: math.nan, 2: 1.0, 3: -math.inf}[configuration["width"]]

    result = autotune.tune(objective, {"width": [1, 2, 3, 4]}, 100)
    assert result.configuration == {"width": 2}
    with pytest.raises(RuntimeError, match="all 3 trials failed"):
        autotune.tune(lambda configuration, steps: math.nan, {"width": [1, 2, 3]}, 10)
    with pytest.raises(ZeroDivisionError):
        autotune.tune(lambda configuration, steps: 1 / 0, {"width": [1, 2, 3]}, 10)


def counted(measure: Callable[[Plan], Measurement]) -> tuple[Callable[[Plan], Measurement], list[Plan]]:
    plans: list[Plan] = []

    def counting(plan: Plan) -> Measurement:
        plans.append(plan)
        return measure(plan)

    return counting, plans


@pytest.mark.parametrize(
    ("name", "preset", "nodes"),
    [
        ("gpt2-xl", "workstation-4090", 1),
        ("resnet50", "dgx-a100", 2),
        ("gpt-6.7b", "dgx-a100", 1),
        ("gpt-13b", "p4d", 1),
    ],
)
def test_searches_are_within_5_percent_of_the_best_of_all(
    autotune: ModuleType, name: str, preset: str, nodes: int
) -> None:
    described, cluster = model(name), topology(preset, nnodes=nodes)
    space, measure = LayoutSpace(described, cluster), predicted(described, cluster)
    capacity = 1e9 * cluster.gpu.memory_gb

    def best(plans: list[Plan]) -> float:
        return min(found.seconds for found in map(measure, plans) if found.nbytes <= capacity)

    counting, asked = counted(measure)
    plan = autotune.search_layout(described, cluster, measure=counting)
    assert measure(plan).nbytes <= capacity
    assert measure(plan).seconds <= 1.05 * best(space.all())
    assert len(asked) == len(set(asked)) <= 96
    counting, asked = counted(measure)
    choice = autotune.choose_strategy(described, cluster, measure=counting)
    assert measure(choice.plan).nbytes <= capacity
    assert choice.seconds <= 1.05 * best([plan for name in STRATEGIES for plan in space.strategy(name)])
    assert len(asked) == len(set(asked)) <= 20


def test_nothing_is_found_where_nothing_fits_or_was_measured(autotune: ModuleType) -> None:
    large, small = model("gpt-39b"), topology("cloud-l4")
    for search in (autotune.search_layout, autotune.choose_strategy):
        with pytest.raises(ValueError, match="no layout of gpt-39b"):
            search(large, small)
    with pytest.raises(ValueError, match="batch 3 of resnet50 cannot be divided"):
        autotune.search_layout(model("resnet50"), small, 3)
