"""Virtual ranks compute and refuse the same as real gloo processes: every operation, dtype and size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from waiting import BROKEN_SECONDS

from labkit import Job, local, virtual

SOURCE = (Path(__file__).parent / "every_collective.py").read_text() + "\nwalk()\n"
TOLERANCE = {"float16": 2e-2, "float32": 1e-5, "float64": 1e-12}


@pytest.mark.parametrize("ranks", range(1, 10))
def test_every_collective_gives_gloos_values_and_gloos_errors(ranks: int) -> None:
    real = (
        local(nproc_per_node=ranks, timeout=BROKEN_SECONDS)
        .run(Job(source=SOURCE, trace=False))
        .raise_if_failed()
        .values
    )
    modelled = virtual(nproc_per_node=ranks).run(Job(source=SOURCE, timeout=BROKEN_SECONDS)).raise_if_failed().values
    for rank, (expected, found) in enumerate(zip(real, modelled, strict=True)):
        assert expected.keys() == found.keys()
        wrong = {name: (value, found[name]) for name, value in expected.items() if not _equal(name, value, found[name])}
        assert not wrong, f"{len(wrong)} of {len(expected)} differ on rank {rank} of {ranks}: (gloo, virtual)"


def test_ranks_in_processes_give_the_same() -> None:
    threads = virtual(nproc_per_node=3).run(Job(source=SOURCE, timeout=BROKEN_SECONDS)).raise_if_failed().values
    processes = (
        virtual(nproc_per_node=3, ranks="processes").run(Job(source=SOURCE, timeout=BROKEN_SECONDS)).raise_if_failed()
    )
    assert processes.values == threads


def _equal(name: str, real: Any, modelled: Any) -> bool:
    if name.startswith("near") and isinstance(real, list) and isinstance(modelled, list):
        tolerance = TOLERANCE[name.removeprefix("near torch.")]
        return modelled == pytest.approx(real, rel=tolerance)
    return bool(real == modelled)
