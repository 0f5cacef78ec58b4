"""torch's own libraries train on virtual ranks as on real ones: equal losses, parameters and buffers per variant."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from waiting import BROKEN_SECONDS

from labkit import Job, local, virtual
from labkit.clusters import Cluster

PROGRAMS = Path(__file__).parent / "programs"
HALF_PRECISION = {"fp16_compress_hook", "mixed precision", "mixed precision, reduced in bfloat16"}
"""Variants whose sums are rounded to 16 bits: gloo adds in another order."""


def job(program: str, **environment: str) -> Job:
    return Job(
        source=(PROGRAMS / f"{program}.py").read_text(),
        filename=program,
        timeout=BROKEN_SECONDS,
        environment=environment,
    )


def values(cluster: Cluster, program: str, **environment: str) -> list[Any]:
    return cluster.run(job(program, **environment)).raise_if_failed().values


def same(a: Any, b: Any, tolerance: float) -> bool:
    """Return whether structures are equal, and numbers within `tolerance`, relative or a tenth of it absolute."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key], tolerance) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(same(x, y, tolerance) for x, y in zip(a, b, strict=True))
    return math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance / 10) if isinstance(a, float) else bool(a == b)


@pytest.mark.parametrize(("program", "ranks"), [("ddp", 3), ("fsdp", 4), ("tensor_parallel", 4), ("pipelines", 4)])
def test_trains_as_on_real_ranks(program: str, ranks: int) -> None:
    real = values(local(nproc_per_node=ranks), program)
    modelled = values(virtual(nproc_per_node=ranks), program)
    ways = real[0].keys()
    assert ways == modelled[0].keys()
    for way in ways:
        tolerance = 5e-2 if way in HALF_PRECISION else 1e-5
        for rank in range(ranks):
            assert same(modelled[rank][way], real[rank][way], tolerance), (way, rank)


def test_a_checkpoint_goes_on_anywhere_and_on_another_number_of_ranks(tmp_path: Path) -> None:
    clusters: dict[str, Cluster] = {"real": local(nproc_per_node=2), "virtual": virtual(nproc_per_node=4)}
    for name, cluster in clusters.items():
        saved = values(cluster, "checkpoints", ACTION="save", FOLDER=str(tmp_path / name))
        for other in (clusters["virtual" if name == "real" else "real"], virtual(nproc_per_node=3)):
            loaded = values(other, "checkpoints", ACTION="load", FOLDER=str(tmp_path / name))
            assert all(same(losses, saved[0][2:], 1e-4) for losses in loaded), (name, other)


def test_an_asynchronous_checkpoint_is_the_same(tmp_path: Path) -> None:
    saved = values(virtual(nproc_per_node=2), "checkpoints", ACTION="save later", FOLDER=str(tmp_path))
    loaded = values(virtual(nproc_per_node=3), "checkpoints", ACTION="load", FOLDER=str(tmp_path))
    assert all(same(losses, saved[0][2:], 1e-4) for losses in loaded)
