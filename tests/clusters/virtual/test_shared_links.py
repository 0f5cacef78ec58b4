"""Racks, blocking switches, shared network cards: concurrent transfers across them wait for one another."""

from __future__ import annotations

from textwrap import dedent
from typing import Any

import pytest

from labkit import Job, virtual
from labkit.hardware import Link

SLOW = Link("slow", gb_per_s=1.0, latency_seconds=1e-5, source="made up for round numbers")
FAST = Link("fast", gb_per_s=100.0, latency_seconds=1e-6, source="made up for round numbers")
TEN_MEGABYTES = 2_500_000  # float32 elements
ALONE = 1e-2  # seconds on SLOW


def seconds(source: str, **options: Any) -> float:
    head = f"""
        import torch, torch.distributed as dist
        dist.init_process_group()
        rank, x = dist.get_rank(), torch.ones({TEN_MEGABYTES})
    """
    return virtual(**options).run(Job(source=dedent(head) + dedent(source))).raise_if_failed().trace.seconds


def test_messages_between_racks_share_the_uplink() -> None:
    # every rank of rack 0 sends to its counterpart in rack 1: the uplink carries a quarter of what four cards could
    source = "dist.send(x, rank + 4) if rank < 4 else dist.recv(x, rank - 4)"
    hardware = {"nnodes": 8, "nproc_per_node": 1, "intra_node": FAST, "inter_node": SLOW, "nodes_per_rack": 4}
    assert seconds(source, **hardware) == pytest.approx(ALONE, rel=0.03)
    assert seconds(source, oversubscription=4.0, **hardware) == pytest.approx(4 * ALONE, rel=0.02)
    near = "dist.send(x, rank + 1) if rank % 2 == 0 else dist.recv(x, rank - 1)"
    assert seconds(near, oversubscription=4.0, **hardware) == pytest.approx(ALONE, rel=0.03), "inside a rack it is free"


def test_all_messages_inside_a_node_pass_a_switch_that_blocks() -> None:
    source = "dist.send(x, rank + 1) if rank % 2 == 0 else dist.recv(x, rank - 1)"
    took = seconds(source, nproc_per_node=8, intra_node=FAST, switch_gb_per_s=1.0)
    assert took == pytest.approx(4 * ALONE, rel=0.02)


def test_two_groups_that_share_a_network_card_delay_one_another() -> None:
    source = """
        groups = [dist.new_group([first, first + 2]) for first in (0, 1)]
        dist.all_reduce(x, group=groups[rank % 2])
    """
    hardware = {"nnodes": 2, "nproc_per_node": 2, "intra_node": FAST, "inter_node": SLOW}
    own, shared = seconds(source, nics_per_node=2, **hardware), seconds(source, **hardware)
    assert own == pytest.approx(ALONE, rel=0.03)
    assert shared == pytest.approx(2 * ALONE, rel=0.03)


def test_a_collective_delays_messages_of_others() -> None:
    source = """
        group = dist.new_group([0, 2])
        if rank in (0, 2):
            dist.all_reduce(x, group=group)
        elif rank == 1:
            dist.send(x, 3)
        else:
            dist.recv(x, 1)
    """
    hardware = {"nnodes": 2, "nproc_per_node": 2, "intra_node": FAST, "inter_node": SLOW}
    assert seconds(source, **hardware) == pytest.approx(2 * ALONE, rel=0.03)
    assert seconds(source, nics_per_node=2, **hardware) == pytest.approx(ALONE, rel=0.03)
