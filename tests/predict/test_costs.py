"""The parts of a step against known answers: collectives, matrix products, pipeline schedules, memory."""

from __future__ import annotations

import csv
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from labkit.clusters.virtual.scheduler.nccl_cost_model import choose
from labkit.hardware import GPUS, LINKS, Link, topology
from labkit.hardware.nccl import SIMPLE
from labkit.predict import COMPONENTS, Constants, Plan, Transformer, model, predict
from labkit.predict.costs.collectives import Group, Wires, group
from labkit.predict.costs.matmul import Processor
from labkit.predict.costs.memory import states, transformer_memory
from labkit.predict.costs.schedules import idle_seconds, in_flight, split_layers
from labkit.predict.describe.work import Product

PLAIN = replace(
    COMPONENTS,
    collective_base=0.0,
    hop_seconds=0.0,
    gather_base=0.0,
    gather_hop=0.0,
    network_hops=0.0,
    fill_seconds=0.0,
)
TESTS = Path(__file__).parents[1]


def test_a_ring_sends_what_a_ring_must() -> None:
    """2(n-1)/n of the bytes for an all-reduce, (n-1)/n for its halves, at the slowest link on the path."""
    link = Link("round", 100.0, 0.0, "made up")
    wires = Wires(topology("dgx-a100", nnodes=4, intra_node=link, inter_node=Link("net", 10.0, 0.0, "made up")), PLAIN)
    inside, across = group(8, 1, wires.cluster), group(32, 1, wires.cluster)
    assert wires.all_reduce(1e9, inside) == pytest.approx(2 * 7 / 8 * 0.01)
    assert wires.all_gather(1e9, inside) == wires.reduce_scatter(1e9, inside) == pytest.approx(7 / 8 * 0.01)
    # 8 cards of 10 GB/s carry the one ring of a node's 8 ranks
    assert wires.all_gather(1e9, across) == pytest.approx(31 / 32 / 80)
    # 8 rings, each with one rank per node, have one card each
    assert wires.all_reduce(1e9, group(4, 8, wires.cluster)) == pytest.approx(2 * 3 / 4 / 10)
    assert wires.all_reduce(1e9, Group(1, 1)) == 0


def test_a_ring_enters_each_node_once() -> None:
    """An all-gather over 4 nodes of 8: 3 hops between nodes, 28 inside, in the protocol with the shortest ones, LL."""
    cluster = topology("dgx-a100", nnodes=4)
    wires = Wires(cluster, replace(PLAIN, hop_seconds=1.13e-6, network_hops=2.8))
    latency = cluster.inter_node.latency_seconds
    assert wires.all_gather(1.0, group(32, 1, cluster)) == pytest.approx(28 * 0.2e-6 + 3 * 0.55 * latency, rel=1e-3)
    # an all-reduce's tree: a chain of 8 and back, two levels between nodes and back
    assert wires.all_reduce(1.0, group(32, 1, cluster)) == pytest.approx(14 * 0.2e-6 + 4 * latency, rel=1e-3)


def test_one_rank_a_node_gathers_in_logarithmic_steps_from_nccl_2_23_on() -> None:
    cluster = topology("dgx-a100", nnodes=64)
    members = group(64, 8, cluster)
    rings, trees = (Wires(cluster, replace(PLAIN, network_hops=2.8, nccl=version)) for version in (2.22, 2.23))
    assert trees.all_gather(1e3, members) == pytest.approx(6 * 2.8 * cluster.inter_node.latency_seconds, rel=0.01)
    assert rings.all_gather(1e3, members) > 2 * trees.all_gather(1e3, members)


@pytest.mark.parametrize("preset", ["dgx-a100", "p4d"])
@pytest.mark.parametrize("nodes", [2, 16, 32])
def test_between_nodes_collectives_cost_what_virtual_ranks_are_charged(preset: str, nodes: int) -> None:
    """The same physics: with the virtual cluster's documented figures, a group of whole nodes takes as long."""
    cluster = topology(preset, nnodes=nodes)
    launches, hop = 4 * cluster.gpu.launch_seconds, SIMPLE.inside * cluster.intra_node.latency_seconds
    stated = replace(PLAIN, collective_base=launches, gather_base=launches, hop_seconds=hop, network_hops=SIMPLE.ring)
    wires, ranks = Wires(cluster, stated), tuple(range(cluster.world_size))
    for nbytes in (10**4, 10**6, 10**8):
        for name in ("all_reduce", "reduce_scatter"):
            charged = choose(name, nbytes, ranks, cluster)
            seconds = getattr(wires, name)(nbytes, Group(len(ranks), cluster.nproc_per_node))
            assert seconds == pytest.approx(charged.seconds, rel=1e-9), f"{name} of {nbytes}: {charged.why()}"


def test_cards_are_shared_by_the_gpus_of_a_node() -> None:
    one = Wires(topology("dgx-a100", nnodes=2, nics_per_node=1), PLAIN)
    eight = Wires(topology("dgx-a100", nnodes=2), PLAIN)
    assert one.card == pytest.approx(eight.card / 8)


def test_published_all_reduces_are_met() -> None:
    """nccl-tests of one node, 16 MB and more; the two sources for A100 differ by up to a fifth."""
    errors = []
    with (TESTS / "clusters/virtual/published_all_reduce.csv").open() as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            n, nbytes = int(row["ranks"]), int(row["nbytes"])
            if nbytes < 16e6:
                continue
            seconds = Wires(topology(row["preset"]), COMPONENTS).all_reduce(nbytes, Group(n, n))
            value = float(row["value"])
            measured = value * 1e-6 if row["unit"] == "us" else nbytes * 2 * (n - 1) / n / value / 1e9
            errors.append(seconds / measured - 1)
    print(f"{len(errors)} all-reduces: bias {statistics.mean(errors):+.1%}, worst {max(map(abs, errors)):.1%}")
    assert statistics.mean(map(abs, errors)) < 0.06
    assert max(map(abs, errors)) < 0.25


def test_published_all_gathers_are_met() -> None:
    """NVIDIA/Megatron-LM pull request 5596, kernels on 8 H100; NVIDIA/nccl-tests issue 37, 8 V100 with NVLink. No
    constant is fitted to them."""
    for preset, mebibytes, microseconds in (
        ("dgx-h100", 2, 20.2),
        ("dgx-h100", 8, 43.4),
        ("dgx-h100", 32, 118.9),
        ("dgx-h100", 128, 385.3),
        ("dgx-1", 4096, 29122.0),
    ):
        seconds = Wires(topology(preset), COMPONENTS).all_gather(mebibytes * 2**20, Group(8, 8))
        assert seconds == pytest.approx(microseconds * 1e-6, rel=0.07), f"{mebibytes} MiB on {preset}"


def test_published_matrix_products_are_met() -> None:
    errors = []
    with (TESTS / "hardware/published_gemm.csv").open() as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            m, n, k = (int(row[name]) for name in "mnk")
            seconds = Processor(GPUS[row["gpu"]], row["dtype"], COMPONENTS).product(Product(m, n, k))
            errors.append(seconds / (2 * m * n * k / float(row["tflops"]) / 1e12) - 1)
    print(f"{len(errors)} products: bias {statistics.mean(errors):+.1%}, worst {max(map(abs, errors)):.1%}")
    assert statistics.median(map(abs, errors)) < 0.10
    assert max(map(abs, errors)) < 0.45


def test_a_wave_that_is_not_full_costs_a_whole_one() -> None:
    a100 = Processor(GPUS["a100-80gb"], "bfloat16", COMPONENTS)
    full, more = (a100.product(Product(256 * tiles, 128, 8192)) for tiles in (108, 109))
    assert more > 1.15 * full
    assert a100.product(Product(8192, 8192, 8192)) > 2 * 8192**3 / 312e12


@pytest.mark.parametrize(
    ("schedule", "chunks", "idle"),
    [
        ("gpipe", 1, 9.0),
        ("1f1b", 1, 9.0),
        ("interleaved", 3, 3.0),
        ("zb-h1", 1, 6.0),
        ("zb-h2", 1, 3.0),
        ("zb-v", 1, 1.5),
    ],
)
def test_equal_stages_idle_as_their_papers_say(schedule: str, chunks: int, idle: float) -> None:
    """p = 4, F = B = W = 1."""
    plan = Plan(batch=12, pipeline=4, schedule=schedule, chunks=chunks)  # type: ignore[arg-type]
    assert idle_seconds(plan, [(1.0, 1.0, 1.0)] * 4) == idle


def test_bubbles_are_those_that_zero_bubbles_authors_computed() -> None:
    """arXiv 2401.10241, table 5, 1F1B: 14.6B on 16 stages, their profiled stages; ours are equal, sending is free."""
    for microbatches, rate in ((48, 0.2552), (64, 0.2082), (128, 0.1251)):
        plan = Plan(batch=microbatches, pipeline=16)
        idle = idle_seconds(plan, [(1.0, 1.0, 1.0)] * 16)
        assert idle / (idle + 3 * microbatches) == pytest.approx(rate, abs=0.025)


def test_microbatches_in_flight() -> None:
    assert [in_flight(Plan(batch=8, pipeline=4), stage) for stage in range(4)] == [4, 3, 2, 1]
    assert in_flight(Plan(batch=8, pipeline=4, schedule="gpipe"), 0) == 8
    interleaved = Plan(batch=64, pipeline=8, schedule="interleaved", chunks=3)
    assert in_flight(interleaved, 0) == pytest.approx(8 * (1 + 7 / (8 * 3))), "Korthikanti et al. 2022, equation 6"
    assert in_flight(Plan(batch=2, pipeline=4), 0) == 2, "there are no more"


def test_groups_of_microbatches_hold_what_megatron_core_warms_up() -> None:
    """2 (p - stage - 1) + (v - 1) x group chunks before the first backward, and one; groups of 6, 6 and 4."""
    plan = Plan(batch=16, pipeline=4, schedule="interleaved", chunks=2, microbatch_group=6)
    assert [in_flight(plan, stage) for stage in range(4)] == [13 / 2, 11 / 2, 9 / 2, 7 / 2]
    as_stages = Plan(batch=16, pipeline=4, schedule="interleaved", chunks=2)
    assert in_flight(as_stages, 0) == in_flight(replace(as_stages, microbatch_group=4), 0) == 11 / 2
    assert idle_seconds(plan, [(1.0, 1.0, 1.0)] * 4) == 4.5, "(p - 1)(F + B) / v: the group does not matter"


def test_larger_groups_hide_more_gradients() -> None:
    """Of all gradients' seconds s, s - b (1 + (v - 1) x group) / v remain, b seconds of one microbatch's backward."""
    gpt, cluster = Transformer("gpt", 8, 4096, 32, 32_000, 512), topology("dgx-a100", nnodes=8, nics_per_node=1)
    constants = replace(COMPONENTS, overlap_slowdown=0.0)
    plan = Plan(batch=128, data=16, pipeline=4, schedule="interleaved", chunks=2, gradients="fp32")
    four, eight = (
        predict(gpt, replace(plan, microbatch_group=group), cluster, constants=constants) for group in (4, 8)
    )
    layer = (four.seconds("backward") + four.seconds("tensor parallel") / 2) / plan.microbatches
    assert four.seconds("gradients") - eight.seconds("gradients") == pytest.approx(layer * (8 - 4) / 2)
    assert eight.memory.kept > four.memory.kept and eight.seconds("bubble") == four.seconds("bubble")


def test_layers_make_way_for_the_head() -> None:
    plan = Plan(batch=8, pipeline=4, balance="cost")
    assert split_layers(plan, 16, 0.0, 4.0) == [5, 5, 5, 1]
    assert split_layers(Plan(batch=8, pipeline=4), 16, 0.0, 4.0) == [4, 4, 4, 4]
    assert sum(split_layers(plan, 22, 1.0, 1.0)) == 22


@pytest.mark.parametrize(("zero", "gigabytes"), [(0, 120.0), (1, 31.4), (2, 16.6)])
def test_model_states_are_those_of_zeros_figure_1(zero: int, gigabytes: float) -> None:
    """7.5 billion parameters on 64 ranks, Adam in mixed precision: 2 + 2 + 12 bytes per parameter."""
    plan = Plan(batch=64, data=64, zero=zero)
    assert sum(states(plan, 7.5e9)) / 1e9 == pytest.approx(gigabytes, rel=0.003)


def test_fsdp_shards_all_states() -> None:
    assert sum(states(Plan(batch=64, data=64, zero=3), 7.5e9)) / 1e9 == pytest.approx(1.9, rel=0.02)
    assert sum(states(Plan(batch=64, data=64, zero=3, zero_ranks=8), 7.5e9)) == pytest.approx(7.5e9 * 16 / 8)


@pytest.mark.parametrize(
    ("name", "layout", "none", "selective"),
    [
        ("22b", (48, 6144, 64, 4, 1, 1, 4), 59.25, 9.5625),
        ("175b", (96, 12288, 96, 64, 8, 3, 1), 66.84375, 12.3515625),
        ("530b", (105, 20480, 128, 280, 35, 3, 1), 114.0234375, 23.076171875),
        ("1t", (128, 25600, 160, 512, 64, 1, 1), 131.25, 26.5625),
    ],
)
def test_activations_of_the_first_stage_are_those_of_korthikantis_figure_1(
    name: str, layout: tuple[int, ...], none: float, selective: float
) -> None:
    """arXiv 2205.05198, GiB per GPU at tensor parallelism 8."""
    layers, width, heads, batch, pipeline, chunks, micro = layout
    gpt = Transformer(name, layers, width, heads, 51_200, 2048, tied=True, dropout=True)
    for recompute, spread, expected in (("none", False, none), ("selective", True, selective)):
        plan = Plan(
            batch, micro, 1, 8, pipeline, sequence_parallel=spread, recompute=recompute, attention="parts",  # type: ignore[arg-type]
            chunks=chunks, schedule="interleaved" if chunks > 1 else "1f1b",
        )  # fmt: skip
        first = transformer_memory(gpt, plan, split_layers(plan, layers, 0, 0))[0]
        assert first.activations / 2**30 == pytest.approx(expected, rel=0.07)


def test_constants_have_defaults_for_unknown_gpus() -> None:
    assert Processor(GPUS["l4"], "bfloat16", Constants()).flash > 0
    assert LINKS["nvlink4"].reduction_efficiency and model("gpt-13b")
