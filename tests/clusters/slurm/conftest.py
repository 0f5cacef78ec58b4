"""One Slurm for all tests of this folder."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_rig import SlurmRig  # beside this file
from system_packages import needs_packages
from waiting import BROKEN_SECONDS

from labkit.clusters.agent import open_connection
from labkit.clusters.slurm import held_nodes


@pytest.fixture(scope="session")
def running_rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmRig]:
    needs_packages("munge", "slurmctld", "slurmd", "slurm-client")
    folder: Path = tmp_path_factory.mktemp("slurm")
    with SlurmRig(folder) as rig:
        yield rig


@pytest.fixture
def rig(running_rig: SlurmRig, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmRig]:
    """Slurm as seen by this program's clients, with an empty queue before and after."""
    for name in [name for name in os.environ if name.startswith(("SLURM_", "SBATCH_"))]:
        monkeypatch.delenv(name)
    for name, value in running_rig.environment.items():
        monkeypatch.setenv(name, value)
    patient = functools.partial(open_connection, seconds=BROKEN_SECONDS)
    monkeypatch.setattr(held_nodes, "open_connection", patient)
    yield running_rig
    left = running_rig.jobs()
    running_rig.clear()
    assert not left, "jobs were left in the queue"


@pytest.fixture
def separate_nodes(rig: SlurmRig) -> SlurmRig:
    """The same, with nodes that have a network of their own and can be lost."""
    needs_packages("iproute2")
    if os.geteuid() != 0:
        pytest.skip("needs root: nodes with a network of their own")
    if not rig.namespaces:
        pytest.skip("needs a machine that allows root to make namespaces")
    return rig
