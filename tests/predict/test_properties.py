"""Properties of every prediction, for random models, plans and numbers of GPUs."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args, get_origin

from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.hardware import Topology, topology
from labkit.predict import MODELS, Plan, Prediction, Transformer, model, predict
from labkit.predict.command import PLAN

PRESETS = ("dgx-1", "dgx-a100", "dgx-h100", "dgx-b200", "p4d", "cloud-t4")
NAMES = sorted({*MODELS, "mlp-784x256x10"})
CHOICES = {
    name: (False, True) if hint is bool else get_args(hint)
    for name, hint in PLAN.items()
    if hint is bool or get_origin(hint) is Literal
}
SOME = st.fixed_dictionaries({}, optional={name: st.sampled_from(of) for name, of in CHOICES.items()})
POWERS = (1, 2, 4, 8, 16)


@dataclass
class Case:
    """One input: a model, fields of a plan, and a preset."""

    model: str
    plan: dict[str, Any]
    preset: str

    def predicted(self, **changed: Any) -> Prediction:
        plan = Plan(**{**self.plan, **changed})
        return predict(model(self.model), plan, cluster(self.preset, plan.ranks))


def cluster(preset: str, gpus: int) -> Topology:
    node = topology(preset)
    each = min(gpus, node.nproc_per_node)
    return replace(node, nnodes=gpus // each, nproc_per_node=each)


@st.composite
def anything(draw: st.DrawFn) -> Case:
    """Mostly contradictory plans, on 1 GPU to millions."""
    plan = {name: draw(st.sampled_from(POWERS)) for name in ("tensor", "pipeline", "context", "expert", "microbatch")}
    plan |= draw(SOME)
    plan |= {"zero": draw(st.integers(0, 3)), "chunks": draw(st.integers(1, 3)), "data": 2 ** draw(st.integers(0, 13))}
    plan["batch"] = plan["data"] * draw(st.sampled_from([1, 3, 16, 64]))
    return Case(draw(st.sampled_from(NAMES)), plan, draw(st.sampled_from(PRESETS)))


@st.composite
def possible(draw: st.DrawFn) -> Case:
    """Consistent plans, on 1 to 131,072 GPUs; twice the data ranks would suit them too."""
    name, preset = draw(st.sampled_from(NAMES)), draw(st.sampled_from(PRESETS))
    described = model(name)
    plan: dict[str, Any] = {
        **draw(SOME),
        "offload": "none",
        "balance": "layers",
        "microbatch": draw(st.sampled_from(POWERS)),
    }
    if preset not in ("dgx-h100", "dgx-b200"):
        plan["precision"] = "bf16" if plan.get("precision") == "fp8" else plan.get("precision", "bf16")
    for option in ("fp8_activations", "fp8_transfers"):
        plan[option] = plan.get(option, False) and plan.get("precision") == "fp8"
    tensor = pipeline = context = 1
    if isinstance(described, Transformer):
        divides = [t for t in POWERS if described.heads % t == described.queries_groups % t == described.inner % t == 0]
        tensor = draw(st.sampled_from(divides))
        pipeline = draw(st.sampled_from([p for p in POWERS if p == 1 or described.layers % (2 * p) == 0]))
        context = draw(st.sampled_from([c for c in (1, 2, 4) if c == 1 or described.sequence % (2 * c) == 0]))
    plan["sequence_parallel"] = plan.get("sequence_parallel", False) and tensor > 1
    if plan.get("schedule") == "interleaved":
        plan |= {"chunks": 2} if pipeline > 1 else {"schedule": "1f1b"}
    data = 2 ** draw(st.integers(1, 8))
    zero = draw(st.integers(0, 3 if pipeline == 1 else 1))
    if zero:
        plan["compression"] = "none"
    batch = 2 * data * plan["microbatch"] * pipeline * draw(st.sampled_from([1, 4]))
    plan |= {"tensor": tensor, "pipeline": pipeline, "context": context, "data": data, "zero": zero, "batch": batch}
    return Case(name, plan, preset)


@given(anything())
@settings(max_examples=300)
def test_every_plan_is_predicted_whole_or_refused_by_the_name_of_a_constraint(case: Case) -> None:
    try:
        found = case.predicted()
    except ValueError as error:
        assert any(field.name in str(error) for field in fields(Plan)), error
        return
    holds_together(found)


@given(possible())
@settings(max_examples=150)
def test_what_is_possible_is_predicted_whole(case: Case) -> None:
    holds_together(case.predicted())


def holds_together(found: Prediction) -> None:
    assert found.plan.ranks == found.cluster.world_size
    assert found.step_seconds > 0 and all(0 <= term.seconds < math.inf for term in found.terms)
    assert all(0 <= nbytes < math.inf for nbytes in found.memory.categories().values())
    assert 0 < found.mfu() <= found.mfu("hardware") < (2 if found.plan.precision == "fp8" else 1)


@given(possible())
@settings(max_examples=100)
def test_more_data_ranks_for_the_same_batch_compute_no_longer(case: Case) -> None:
    """Messages that are gathered are decoded, one from each: not with compression."""
    few = case.predicted(compression="none")
    more = case.predicted(compression="none", data=2 * case.plan["data"])
    assert more.seconds("compute") <= few.seconds("compute") * (1 + 1e-9)


@given(possible())
@settings(max_examples=100)
def test_memory_never_grows_with_zeros_stage(case: Case) -> None:
    stages = range(4 if case.plan["pipeline"] == 1 else 2)
    totals = [
        case.predicted(
            zero=zero, compression="none", data=16 * case.plan["data"], batch=16 * case.plan["batch"]
        ).memory.total
        for zero in stages
    ]
    assert totals == sorted(totals, reverse=True)


@given(possible())
@settings(max_examples=100)
def test_recomputing_more_keeps_no_more_and_takes_no_less(case: Case) -> None:
    none, selective, full = (case.predicted(recompute=how) for how in ("none", "selective", "full"))
    assert none.seconds("recomputation") <= selective.seconds("recomputation") <= full.seconds("recomputation")
    assert none.memory.activations >= selective.memory.activations >= full.memory.activations


@given(possible())
@settings(max_examples=100)
def test_a_faster_network_never_lengthens_a_step_and_hiding_never_exposes(case: Case) -> None:
    hidden, found = case.predicted(overlap=True), case.predicted(overlap=False)
    assert hidden.step_seconds <= found.step_seconds * (1 + 1e-9)
    link = found.cluster.inter_node
    quicker = replace(found.cluster, inter_node=replace(link, gb_per_s=2 * link.gb_per_s))
    assert predict(found.model, found.plan, quicker).step_seconds <= found.step_seconds * (1 + 1e-9)
