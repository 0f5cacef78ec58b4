"""%monitor in a real kernel, live while ranks train; tests/clusters/slurm has the same on the nodes of Slurm."""

from pathlib import Path

import pytest
from watched import RANKS, SHOWN, watched


@pytest.mark.parametrize("cluster", ["virtual", "local"])
def test_a_training_is_seen_while_it_runs(kernel, cluster: str, tmp_path: Path) -> None:
    kernel.run(f"%cluster {cluster} --nproc-per-node {RANKS}")

    def run(cell: str) -> str:
        outputs = kernel.run(cell)
        assert outputs.error == "", outputs.error
        return outputs.stdout

    assert watched(run, tmp_path).endswith(SHOWN)
