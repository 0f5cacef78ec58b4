"""Whole predictions: their content, that they follow from their parts, and that no input is ignored."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import pytest
from torch import nn, zeros

from labkit.hardware import Topology, topology
from labkit.predict import COMPONENTS, FITTED, OneOf, Plan, Range, count, model, predict, predict_range
from labkit.predict.ranges import corners


def a100(gpus: int) -> Topology:
    return topology("dgx-a100", nnodes=max(1, gpus // 8), nproc_per_node=min(8, gpus), nics_per_node=min(8, gpus))


def test_the_terms_add_up_and_say_where_they_are_from() -> None:
    made = predict(model("gpt-39b"), Plan(1536, 4, 32, 8, 2, recompute="full"), a100(512))
    assert made.step_seconds == pytest.approx(sum(made.breakdown().values()))
    assert {"forward", "backward", "recomputation", "tensor parallel", "bubble", "optimizer"} <= set(made.breakdown())
    assert all(term.formula and term.source and term.seconds >= 0 for term in made.terms)
    text = made.explain()
    assert "Korthikanti" in text and "MFU" in text and "all-reduces of microbatch x sequence x width" in text
    assert json.loads(json.dumps(made.to_plain()))["gpus"] == 512


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_explained_numbers_give_the_terms(recompute: str) -> None:
    """Multiplying the factors in a formula gives the number in front of it."""
    made = predict(model("gpt-39b"), Plan(1536, 4, 32, 8, 2, recompute=recompute, overlap=False), a100(512))  # type: ignore[arg-type]
    formulas = {term.name: term.formula for term in made.terms}
    once = math.prod(numbers(formulas["forward"])) / 1e3
    assert once == pytest.approx(made.seconds("forward"), rel=1e-3)
    assert math.prod(numbers(formulas["backward"])[:3]) / 1e3 == pytest.approx(made.seconds("backward"), rel=1e-3)
    megabytes, ranks, each, m, layers, layer, ends, end = numbers(formulas["tensor parallel"])
    assert m * (layers * layer + ends * end) / 1e3 == pytest.approx(made.seconds("tensor parallel"), rel=1e-3)
    assert (megabytes, ranks, each) == (
        pytest.approx(4 * 2048 * 8192 * 2 / 1e6, rel=1e-3),
        8,
        4 + 2 * (recompute == "full"),
    )
    two, sends, _, one = numbers(formulas["pipeline sends"])
    assert two * sends * one / 1e3 == pytest.approx(made.seconds("pipeline sends"), rel=1e-3)
    p, v, forward, backward, _ = numbers(formulas["bubble"].split(", p = ")[1])
    assert (p - 1) * (forward + backward) / v / 1e3 == pytest.approx(made.seconds("bubble"), rel=1e-3)
    parameters, nbytes, rate, *_ = numbers(formulas["optimizer"])
    assert parameters * nbytes / rate / 1e9 == pytest.approx(made.seconds("optimizer"), rel=1e-2), "and four launches"
    layer_flops = numbers(made.explain().split("forward of one layer")[1])[0]
    assert layer_flops == pytest.approx(24 * 4 * 2048 * 8192**2 / 8 / 1e12, rel=1e-3)


def numbers(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.])", text)]


def test_rates_follow_from_the_step() -> None:
    made = predict(model("gpt-13b"), Plan(64, 1, 8, 4), a100(32))
    assert made.tokens_per_second == pytest.approx(64 * 2048 / made.step_seconds)
    assert made.mfu() == pytest.approx(made.flops() / made.step_seconds / 32 / 312e12)
    assert made.mfu("6n") < made.mfu() == made.mfu("hardware")
    assert 0.2 < made.mfu() < 0.7
    with pytest.raises(ValueError, match="convention must be one of"):
        made.mfu("best")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["gpt-1.3b", "llama3-8b", "vit-l16", "resnet50", "mlp-784x256x10"])
def test_more_gpus_with_the_same_batch_take_less_time_but_not_in_proportion(name: str) -> None:
    steps = [predict(model(name), Plan(512, 8, n), a100(n)).step_seconds for n in (8, 16, 32)]
    assert steps[0] > steps[1] > steps[2]
    assert steps[2] > steps[0] / 4


def test_recomputation_trades_time_for_memory() -> None:
    made = {
        how: predict(model("gpt-6.7b"), Plan(32, 2, 4, 8, recompute=how, attention="parts"), a100(32))  # type: ignore[arg-type]
        for how in ("none", "selective", "full")
    }
    assert made["none"].step_seconds < made["selective"].step_seconds < made["full"].step_seconds
    assert made["none"].memory.total > made["selective"].memory.total > made["full"].memory.total


def test_recomputation_that_stops_early_leaves_out_a_layers_last_product() -> None:
    """h x 4h of the 4h + 8h of a layer's products: a third of them, and nothing else changes."""
    plan = Plan(32, 4, 8, recompute="full")
    whole, early = (predict(model("gpt-6.7b"), replace(plan, early_stop=stop), a100(8)) for stop in (False, True))
    assert 0.65 < early.seconds("recomputation") / whole.seconds("recomputation") < 0.78
    assert early.seconds("forward") == whole.seconds("forward")
    assert early.seconds("backward") == whole.seconds("backward")


def test_hosts_that_do_not_run_ahead_meet_only_in_pipelines_that_leave_the_node() -> None:
    plan = Plan(64, 1, 1, 4, 2, sequence_parallel=True, run_ahead=False)
    small = model("gpt-1.3b")
    assert (
        predict(small, plan, a100(8)).step_seconds
        == predict(small, replace(plan, run_ahead=True), a100(8)).step_seconds
    )
    wide = replace(plan, data=2)
    waiting = predict(small, wide, a100(16)).seconds("launches")
    assert waiting > 2 * predict(small, replace(wide, run_ahead=True), a100(16)).seconds("launches")


def test_without_running_ahead_a_tensor_parallel_group_over_nodes_pays_for_each_step_between_them() -> None:
    def traffic(tensor: int, **options: object) -> float:
        plan = Plan(64, 8, 32 // tensor, tensor, sequence_parallel=True, **options)  # type: ignore[arg-type]
        return predict(model("gpt-6.7b"), plan, a100(32)).seconds("tensor parallel")

    collectives = 64 // 8 * 32 * 10  # of all microbatches and layers: two all-gathers and two reduce-scatters each way,
    for tensor, crossed in ((8, 0), (16, 1), (32, 3)):  # and two all-gathers of inputs for the gradients of weights
        microbatches = tensor / 32
        more = traffic(tensor, run_ahead=False) - traffic(tensor)
        assert more == pytest.approx(collectives * microbatches * crossed * FITTED.crossing_seconds), tensor


@pytest.mark.parametrize(("name", "precision"), [("bert-large", "bf16"), ("resnet50", "fp16")])
def test_cuda_graphs_leave_no_waiting_for_hosts(name: str, precision: str) -> None:
    plan = Plan(64, 1, 8, precision=precision, fusion="none")  # type: ignore[arg-type]
    made, replayed = (predict(model(name), replace(plan, cuda_graphs=graphs), a100(8)) for graphs in (False, True))
    assert made.seconds("launches") > 0 == replayed.seconds("launches")
    assert replayed.seconds("compute") == made.seconds("compute")


def test_traffic_of_all_but_one_chunk_hides_behind_the_other_chunks() -> None:
    """A network so slow that the backward of one microbatch does not hide the gradients."""
    slow = topology("dgx-a100", nnodes=16, settings={"inter_node.gb_per_s": 1.0})
    plan = Plan(512, 1, 16, 1, 8, gradients="fp32")
    chunked = replace(plan, schedule="interleaved", chunks=4)
    one, four = (predict(model("gpt-6.7b"), made, slow).seconds("gradients") for made in (plan, chunked))
    sent = predict(model("gpt-6.7b"), replace(plan, overlap=False), slow).seconds("gradients")
    assert sent / 4 < four < 0.8 * one < sent


def test_transformer_engine_casts_weights_in_the_first_microbatch_and_activations_where_they_are_made() -> None:
    def forward(precision: str, fusion: str, microbatches: int) -> float:
        plan = Plan(microbatches * 8, 1, 8, precision=precision, fusion=fusion)  # type: ignore[arg-type]
        made = predict(model("gpt-6.7b"), plan, topology("dgx-h100"))
        return made.seconds("forward") / microbatches

    torch = [forward("fp8", "compiled", count) for count in (1, 8)]
    engine = [forward("fp8", "kernels", count) for count in (1, 8)]
    assert torch[0] == pytest.approx(torch[1]), "each microbatch casts all factors"
    assert engine[1] < engine[0] < torch[0] - forward("bf16", "compiled", 1) + forward("bf16", "kernels", 1)
    assert engine[1] < 0.7 * forward("bf16", "kernels", 8)


def test_a_small_model_on_thousands_of_gpus_is_sent_in_few_collectives() -> None:
    """A ring over 434 nodes has 433 steps between nodes: paid once, not by each of 24 layers. MLPerf trains BERT so."""
    cluster = topology("dgx-h100", nnodes=434)
    plan = Plan(12 * 3472, 12, 3472, zero=1, precision="fp8")
    sharded, whole = (predict(model("bert-large"), replace(plan, zero=zero), cluster) for zero in (1, 0))
    assert sharded.step_seconds < 1.3 * whole.step_seconds
    few = predict(model("gpt-13b"), Plan(512, 1, 32, zero=1, overlap=False), a100(32))
    each = topology("dgx-a100", nnodes=4, settings={"inter_node.latency_seconds": 1e-3})
    more = predict(model("gpt-13b"), few.plan, each).seconds("gradients") - few.seconds("gradients")
    assert more > 39 * 3 * 0.8e-3, "layers of 300 million parameters remain collectives of their own"


def test_zero_shards_memory_and_offload_empties_it() -> None:
    totals = [predict(model("gpt-1.3b"), Plan(64, 1, 64, zero=zero), a100(64)).memory.total for zero in range(4)]
    assert totals == sorted(totals, reverse=True)
    kept = predict(model("gpt-1.3b"), Plan(64, 1, 64, zero=1), a100(64))
    moved = predict(model("gpt-1.3b"), Plan(64, 1, 64, zero=1, offload="optimizer"), a100(64))
    assert moved.memory.optimizer == 0 < kept.memory.optimizer
    assert moved.seconds("optimizer") > kept.seconds("optimizer")


def test_overlap_hides_gradients() -> None:
    def exposed(**options: object) -> float:
        return predict(model("gpt-1.3b"), Plan(64, 1, 64, **options), a100(64)).seconds("gradients")  # type: ignore[arg-type]

    assert exposed() < exposed(overlap=False)


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("vit-b16", Plan(256, 2, 64, zero=1, recompute="full", precision="tf32", fusion="none")),
        ("resnet50", Plan(512, 1, 64, zero=2, precision="tf32")),
    ],
)
def test_where_launches_are_waited_for_less_computing_is_never_slower(name: str, plan: Plan) -> None:
    """Traffic and weight gradients proceed while the GPU waits for the host; recomputation is launched again."""
    made = predict(model(name), plan, a100(64))
    assert made.seconds("launches") > 0.1 * made.step_seconds
    quick = {"gpu.memory_gb_per_s": 4000.0, "gpu.fp32_tflops": 40.0, "gpu.tf32_tflops": 300.0}
    quicker = predict(model(name), plan, topology("dgx-a100", nnodes=8, settings=quick))
    assert quicker.step_seconds <= made.step_seconds * (1 + 1e-9)
    again = predict(model(name), replace(plan, recompute="full"), a100(64))
    assert again.step_seconds >= made.step_seconds
    assert again.step_seconds > 1.2 * made.step_seconds or plan.recompute == "full"


def test_weights_gradients_that_wait_for_launches_fill_the_bubble_too() -> None:
    def left(host_seconds: float) -> float:
        cluster = topology("dgx-a100", nnodes=8, settings={"constants.host_seconds": host_seconds})
        bubbles = [
            predict(model("vit-h14"), Plan(16, 1, 4, 2, 8, schedule=schedule, fusion="none"), cluster).seconds("bubble")
            for schedule in ("zb-v", "1f1b")
        ]  # fmt: skip
        return bubbles[0] / bubbles[1]

    assert left(host_seconds=50e-6) == pytest.approx(left(host_seconds=0.0), abs=0.05)


def test_slower_networks_only_lengthen_communication() -> None:
    plan = Plan(256, 1, 64, zero=3)
    quick, slow = (
        predict(model("gpt-13b"), plan, replace(a100(64), inter_node=topology(inter_node=link).inter_node))
        for link in ("ib-hdr", "ethernet-25g")
    )
    assert slow.seconds("communication") > 2 * quick.seconds("communication")
    assert slow.seconds("compute") == quick.seconds("compute")


def test_hybrid_sharding_reduces_between_its_groups_wherever_they_are() -> None:
    """Four of eight GPUs have a model: in one node nothing crosses the network; over two, only gradients of shards."""

    def shards(nnodes: int, zero_ranks: int | None, inter_node: str) -> float:
        cluster = topology("dgx-a100", nnodes=nnodes, nproc_per_node=8 // nnodes, inter_node=inter_node)
        plan = Plan(batch=8, data=8, zero=3, zero_ranks=zero_ranks, overlap=False)
        return predict(model("gpt-1.3b"), plan, cluster).breakdown()["parameter shards"]

    slow, fast = "ethernet-10g", "ib-ndr"
    assert shards(1, 4, slow) == shards(1, 4, fast)
    assert shards(2, 4, slow) > 2 * shards(2, 4, fast)
    assert shards(2, 4, slow) < shards(2, None, slow) / 2


def test_unknown_inputs_stay_ranges() -> None:
    plan = {"batch": 256, "data": 32, "microbatch": OneOf((1, 2, 4)), "recompute": OneOf(("none", "full"))}
    made = predict_range(model("gpt-1.3b"), plan, a100(32), data_seconds=Range(0.0, 0.1))
    assert len(made.cases) == 12
    assert made.step_seconds.low < made.step_seconds.high
    assert made.memory_bytes.high > 1.5 * made.memory_bytes.low
    models = OneOf((model("gpt-1.3b"), model("gpt-1.7b")))
    assert len(predict_range(models, {"batch": 256, "data": 32}, a100(32)).cases) == 2
    known = predict_range(model("gpt-1.3b"), {"batch": 256, "data": 32}, a100(32))
    assert known.step_seconds.low == known.step_seconds.high
    with pytest.raises(ValueError, match="multiple of microbatch x data"):
        predict_range(model("gpt-1.3b"), {"batch": 31, "data": 32}, a100(32))


def test_the_best_of_a_range_of_whole_numbers_may_lie_inside() -> None:
    """Small microbatches compute inefficiently, large ones leave the pipeline idle."""
    plan = {"batch": 256, "data": 2, "tensor": 4, "pipeline": 4, "recompute": "full", "microbatch": Range(1, 32)}
    made = predict_range(model("gpt-1.3b"), plan, a100(32))
    assert len(made.cases) == 6, "powers of two: others do not divide the batch"
    ends = [made.cases[0].step_seconds, made.cases[-1].step_seconds]
    assert made.step_seconds.low < min(ends)
    assert (
        len(corners(Range(1, 1000))) == 64
        and corners(Range(2, 5)) == (2, 3, 4, 5)
        and corners(Range(0.0, 1.0)) == (0, 1)
    )


def test_a_module_of_ones_own_can_be_predicted() -> None:
    counted = count(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)), zeros(4, 64))
    made = predict(counted, Plan(64, 8, 8, precision="fp32"), a100(8))
    assert made.step_seconds > 0 and made.memory.parameters == 4 * counted.parameters


def test_what_does_not_fit_says_so() -> None:
    assert not predict(model("gpt-13b"), Plan(8, 1, 8), a100(8)).fits
    assert predict(model("gpt-1.3b"), Plan(8, 1, 8, zero=3), a100(8)).fits


def test_both_ends_of_a_tensor_parallel_model_add_up_once() -> None:
    """Shoeybi et al. 2019: four all-reduces a layer, one of the embedding's rows, one of the head's input gradients."""
    gpt = model("gpt-1.3b")
    one, all_of_them = (
        predict(replace(gpt, layers=layers), Plan(1, 1, tensor=8), a100(8)).seconds("tensor parallel")
        for layers in (1, 24)
    )
    assert all_of_them / one == pytest.approx((24 * 4 + 2) / (4 + 2))


def test_eager_gradients_are_added_up_in_memory() -> None:
    """16-bit, each microbatch after the first reads two and writes one; with Megatron's kernels the product does it."""
    gpt = model("gpt-1.3b")

    def backward(fusion: str, microbatches: int, zero: int = 0) -> float:
        plan = Plan(microbatches * 8, 1, 8, fusion=fusion, zero=zero)  # type: ignore[arg-type]
        return predict(gpt, plan, a100(8), constants=COMPONENTS).seconds("backward") / microbatches

    weights = 24 * 12 * 2048**2
    more = backward("none", 10) - backward("none", 1)
    assert more == pytest.approx(0.9 * 2 * weights / (2039e9 * 0.81), rel=0.01)
    assert backward("kernels", 10) == pytest.approx(backward("kernels", 1))
    assert backward("none", 10, zero=3) == pytest.approx(backward("none", 1, zero=3)), "FSDP adds up shards"
