"""Plans that contradict themselves, their model or their cluster are refused with the constraint's name."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.hardware import topology
from labkit.predict import Plan, Transformer, model

GROUPED: dict[str, Any] = {"pipeline": 4, "schedule": "interleaved", "chunks": 2}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch": 10, "data": 4}, "batch 10 must be a multiple of microbatch x data = 1 x 4"),
        ({"batch": 0}, "batch must be a whole number from 1 up, got 0"),
        ({"batch": 8, "tensor": -1}, "tensor must be a whole number"),
        ({"batch": 8, "schedule": "2f2b"}, "schedule must be one of gpipe, 1f1b"),
        ({"batch": 8, "precision": "int4"}, "precision must be one of fp32"),
        ({"batch": 8, "zero": 4}, "zero must be 0, 1, 2 or 3"),
        ({"batch": 8, "chunks": 2}, "need schedule 'interleaved'"),
        ({"batch": 8, "chunks": 2, "schedule": "interleaved"}, "they need pipeline above 1"),
        ({"batch": 8, "pipeline": 2, "schedule": "interleaved"}, "needs chunks of 2 or more"),
        ({"batch": 8, "data": 8, "zero": 3, "compression": "fp16"}, "with zero 3 it must be 'none'"),
        ({"batch": 6, "pipeline": 4, "schedule": "interleaved", "chunks": 2}, "6 microbatches must be a multiple"),
        ({"batch": 8, "pipeline": 2, "microbatch_group": 2}, "it needs schedule 'interleaved'"),
        ({**GROUPED, "batch": 10, "microbatch_group": 3}, "must be from pipeline = 4 to 10 microbatches, got 3"),
        ({**GROUPED, "batch": 10, "microbatch_group": 11}, "must be from pipeline = 4 to 10 microbatches, got 11"),
        ({**GROUPED, "batch": 11, "microbatch_group": 4}, "leaves 3 of 11 microbatches for the last group"),
        ({"batch": 8, "sequence_parallel": True}, "needs tensor above 1"),
        ({"batch": 8, "data": 8, "zero": 1, "zero_ranks": 3}, "zero_ranks 3 must divide data x context = 8"),
        ({"batch": 8, "data": 8, "zero_ranks": 4}, "needs zero 1, 2 or 3"),
        ({"batch": 8, "data": 8, "expert": 3}, "expert 3 must divide data = 8"),
        ({"batch": 8, "offload": "optimizer+parameters"}, "needs zero 3"),
        ({"batch": 8, "recompute": "full", "recomputed_layers": 0}, "recomputed_layers is a share"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Plan(**options)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("gpt-13b", {"tensor": 16}, "tensor 16 must divide gpt-13b's 40 heads"),
        ("llama3-8b", {"tensor": 32, "batch": 8}, None),
        ("gpt-13b", {"pipeline": 64}, "gpt-13b has 40"),
        ("gpt-13b", {"pipeline": 16, "chunks": 2, "schedule": "interleaved", "batch": 16}, None),
        ("gpt-13b", {"pipeline": 16, "chunks": 3, "schedule": "interleaved", "batch": 16}, "need as many layers"),
        ("gpt-13b", {"context": 3}, "2 x context = 6 must divide the sequence of 2048"),
        ("gpt-13b", {"expert": 4, "data": 4}, "gpt-13b has no experts"),
        ("mixtral-8x7b", {"expert": 16, "data": 16}, "expert 16 must divide mixtral-8x7b's 8 experts"),
        ("resnet50", {"tensor": 2}, "tensor parallelism is predicted for transformers"),
    ],
)
def test_a_plan_that_does_not_suit_the_model_is_refused(name: str, options: dict[str, Any], said: str | None) -> None:
    plan = Plan(**{"batch": 64, **options})
    if said is None:
        plan.check(model(name))
        return
    with pytest.raises(ValueError, match=said):
        plan.check(model(name))


def test_the_number_of_gpus_is_never_ignored() -> None:
    with pytest.raises(ValueError, match="= 4 ranks, but the cluster has 16 GPUs"):
        Plan(batch=8, data=4).check(model("gpt-13b"), topology("dgx-a100", nnodes=2))


def test_ranks_and_microbatches_follow() -> None:
    plan = Plan(batch=512, microbatch=4, data=8, tensor=4, pipeline=2, context=2, zero=1)
    assert (plan.ranks, plan.microbatches, plan.shared_by, plan.sharded_over) == (128, 16, 16, 16)
    assert Plan(batch=8, data=8, zero=3, zero_ranks=4).sharded_over == 4
    experts = Transformer("moe", 4, 64, 4, experts=8)
    Plan(batch=8, data=8, expert=4).check(experts)
