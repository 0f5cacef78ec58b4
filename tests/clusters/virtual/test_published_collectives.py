"""The table of collectives compared with published measurements, and its choices where they are known."""

from __future__ import annotations

import csv
import statistics
from collections import defaultdict
from pathlib import Path

import pytest

from labkit.clusters.virtual.scheduler.nccl_cost_model import choose
from labkit.hardware import Link, Topology, topology

PUBLISHED = Path(__file__).with_name("published_all_reduce.csv")
ROUND = Link("round", gb_per_s=10.0, latency_seconds=1e-6, source="made up for round numbers")


def everybody(preset: str, nnodes: int = 1) -> tuple[tuple[int, ...], Topology]:
    cluster = topology(preset, nnodes=nnodes)
    return tuple(range(cluster.world_size)), cluster


def published_errors() -> dict[tuple[str, str, int], list[float]]:
    """Return relative errors of the model, by (source, preset, ranks)."""
    errors = defaultdict(list)
    with PUBLISHED.open() as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            ranks, nbytes, value = int(row["ranks"]), int(row["nbytes"]), float(row["value"])
            seconds = value * 1e-6 if row["unit"] == "us" else nbytes * 2 * (ranks - 1) / ranks / (value * 1e9)
            plan = choose("all_reduce", nbytes, tuple(range(ranks)), topology(row["preset"]))
            errors[row["source"], row["preset"], ranks].append(plan.seconds / seconds - 1)
    return errors


def test_all_published_all_reduces_are_met() -> None:
    errors = published_errors()
    everything = [error for group in errors.values() for error in group]
    assert len(everything) == 94
    for key, group in errors.items():
        median, worst = statistics.median(map(abs, group)), max(map(abs, group))
        print(f"{key}: bias {statistics.mean(group):+.1%}, median {median:.1%}, worst {worst:.1%}")
        assert median < 0.16, "each source by itself"
    assert statistics.median(map(abs, everything)) < 0.06
    assert abs(statistics.mean(everything)) < 0.07
    assert max(map(abs, everything)) < 0.4


def test_all_reduces_between_nodes_that_public_threads_quote_are_met() -> None:
    errors = []
    with PUBLISHED.with_name("published_between_nodes.csv").open() as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            shape = {name: int(row[name]) for name in ("nnodes", "nproc_per_node", "nics_per_node")}
            cluster = topology(row["preset"], **shape)
            plan = choose("all_reduce", int(row["nbytes"]), tuple(range(cluster.world_size)), cluster)
            seconds = next(time for name, time in plan.candidates if name.startswith(row["algorithm"]))
            errors.append(seconds / float(row["seconds"]) - 1)
            print(f"{row['source']}, {row['nbytes']} bytes: {errors[-1]:+.1%}")
    assert statistics.median(map(abs, errors)) < 0.06
    assert max(map(abs, errors)) < 0.25


@pytest.mark.parametrize("preset", ["dgx-1", "dgx-a100", "dgx-h100", "dgx-b200", "cloud-t4", "p5", "workstation-4090"])
@pytest.mark.parametrize("nnodes", [1, 2, 16])
def test_larger_messages_take_longer_and_use_the_links_better(preset: str, nnodes: int) -> None:
    ranks, cluster = everybody(preset, nnodes)
    sizes = [4**k for k in range(1, 17)]
    for name in ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all"):
        seconds = [choose(name, n, ranks, cluster).seconds for n in sizes]
        assert seconds == sorted(seconds), name
        bandwidths = [n / s for n, s in zip(sizes, seconds, strict=True)]
        assert bandwidths == sorted(bandwidths), name


def test_small_messages_go_with_flags_and_large_ones_in_chunks() -> None:
    ranks, a100 = everybody("dgx-a100")
    chosen = [choose("all_reduce", n, ranks, a100).algorithm for n in (1 << 10, 1 << 23, 1 << 30)]
    assert chosen == ["ring LL", "ring LL128", "ring Simple"]
    ranks, h100 = everybody("dgx-h100")
    assert choose("all_reduce", 1 << 30, ranks, h100).algorithm == "nvls"
    ranks, many = everybody("dgx-a100", 16)
    assert choose("all_reduce", 1 << 10, ranks, many).algorithm == "tree LL"
    plan = choose("all_reduce", 1 << 32, ranks, many)
    assert plan.algorithm == "ring Simple"
    assert "tree Simple" in plan.why()
    assert not any("LL128" in name for name, _ in choose("all_reduce", 1, (0, 1), topology("cloud-t4")).candidates)


def test_a_large_ring_takes_its_closed_form() -> None:
    cluster = topology(nnodes=1, nproc_per_node=8, intra_node=ROUND)
    n, ranks = 1 << 30, tuple(range(8))
    for name, nbytes, passes in (
        ("all_reduce", n, 2 * 7 / 8), ("reduce_scatter", n, 7 / 8), ("all_gather", n // 8, 7 / 8), ("broadcast", n, 1)
    ):  # fmt: skip
        assert choose(name, nbytes, ranks, cluster).seconds == pytest.approx(n * passes / 10e9, rel=0.02), name


def test_a_large_hierarchical_all_reduce_takes_its_closed_form() -> None:
    # two nodes of four: a tree between the nodes moves n out of and into a node, a ring 2n 7/8
    cluster = topology(nnodes=2, nproc_per_node=4, nics_per_node=4, intra_node="nvlink4", inter_node=ROUND)
    plan = choose("all_reduce", 1 << 32, tuple(range(8)), cluster)
    assert plan.algorithm == "nvls tree"
    assert plan.seconds == pytest.approx((1 << 32) / 40e9, rel=0.02)
    assert set(plan.nic_bytes) == {(node, card) for node in (0, 1) for card in range(4)}
    assert all(load == ((1 << 30), (1 << 30)) for load in plan.nic_bytes.values())


def test_a_group_of_one_gpu_on_each_node_has_one_card_of_each() -> None:
    cluster = topology("dgx-a100", nnodes=4)
    n = 1 << 30
    plan = choose("all_gather", n // 4, (3, 11, 19, 27), cluster)
    assert plan.nic_bytes == {(node, 3): (n * 3 / 4, n * 3 / 4) for node in range(4)}
    card = cluster.inter_node.bytes_per_second * cluster.inter_node.collective_efficiency
    assert plan.seconds == pytest.approx(n * 3 / 4 / card, rel=0.02)
    whole = choose("all_gather", n // 32, tuple(range(32)), cluster)
    assert whole.nic_bytes[0, 0][0] == pytest.approx(n * 31 / 32 / 8), "eight cards share what leaves the node"


def test_racks_slow_down_what_crosses_them() -> None:
    n = 1 << 30
    ranks = tuple(range(32))
    open_, narrow = (topology("dgx-a100", nnodes=4, nodes_per_rack=2, oversubscription=o) for o in (1, 8))
    piece = n / 32
    plan = choose("all_to_all", n, ranks, narrow)
    assert plan.uplink_bytes == {rack: (piece * 16 * 16, piece * 16 * 16) for rack in (0, 1)}
    uplink = 2 * 8 * 25e9 / 8 * narrow.inter_node.collective_efficiency
    assert plan.seconds == pytest.approx(piece * 16 * 16 / uplink, rel=0.02)
    assert not choose("all_to_all", n, ranks, open_).uplink_bytes
    assert choose("all_to_all", n, ranks, open_).seconds == pytest.approx(
        piece * 24 / (25e9 * narrow.inter_node.collective_efficiency), rel=0.02
    )
    ring = choose("all_gather", n // 32, ranks, narrow)
    assert ring.uplink_bytes[0][0] == pytest.approx(n * 31 / 32), "a ring leaves a rack once"
    assert not choose("all_gather", n, ranks[:16], narrow).uplink_bytes, "one rack"


def test_a_shared_switch_carries_every_edge() -> None:
    cluster = topology("workstation-4090")
    n = 1 << 30
    plan = choose("all_reduce", n, (0, 1, 2, 3), cluster)
    assert plan.switch_bytes == {0: pytest.approx(4 * n * 6 / 4)}
    assert plan.seconds == pytest.approx(6 * n / 40e9, rel=0.02)
    assert choose("all_to_all", n, (0, 1, 2, 3), cluster).switch_bytes == {0: pytest.approx(12 * n / 4)}


def test_gather_and_scatter_meet_at_the_root() -> None:
    cluster = topology(nnodes=2, nproc_per_node=2, intra_node=ROUND, inter_node=ROUND)
    gather = choose("gather", 1000, (0, 1, 2, 3), cluster, root=3)
    assert gather.port_bytes == {0: (1000, 0), 1: (1000, 0), 2: (1000, 0), 3: (0, 3000)}
    assert gather.nic_bytes == {(0, 0): (2000, 0), (1, 0): (0, 2000)}
    scatter = choose("scatter", 4000, (0, 1, 2, 3), cluster, root=0)
    assert scatter.port_bytes == {0: (3000, 0), 1: (0, 1000), 2: (0, 1000), 3: (0, 1000)}


def test_a_group_of_one_has_nothing_to_do() -> None:
    assert choose("all_reduce", 1 << 20, (5,), topology("dgx-a100")).seconds == 0.0
    with pytest.raises(KeyError):
        choose("all_reduce_twice", 1, (0, 1), topology())
