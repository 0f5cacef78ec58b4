"""Bodies of torch's `DistributedTest` and which of them pass on local ranks.

`python -m tests.clusters.virtual.torch_bodies` runs all bodies on local ranks and writes those that pass to
torch_bodies.txt. It takes about half an hour: some bodies hang on the CPU, and each is given up after its time limit.
"""

from __future__ import annotations

import ast
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from labkit import Job, local
from labkit.clusters import Cluster

RANKS = 4
PASS_LOCALLY = Path(__file__).with_name("torch_bodies.txt")
_PROGRAM = Path(__file__).parent / "programs/torch_bodies.py"
_DEFINITIONS = Path(torch.__file__).parent / "testing/_internal/distributed/distributed_test.py"


def names() -> list[str]:
    """All bodies, in torch's order."""
    module = ast.parse(_DEFINITIONS.read_text())
    (outer,) = [node for node in module.body if isinstance(node, ast.ClassDef) and node.name == "DistributedTest"]
    (base,) = [node for node in outer.body if isinstance(node, ast.ClassDef)]
    return [node.name for node in base.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


def outcomes(
    cluster: Cluster, bodies: Sequence[str], *, seconds: float, patience: float = 1.0
) -> dict[str, dict[str, int]]:
    """Outcomes of bodies, with the number of ranks. A job ends at a body that hangs or crashes, and another follows.

    patience: factor of the time limits of torch's own barrier.
    """
    found: dict[str, dict[str, int]] = {}
    left = list(bodies)
    while left:
        with tempfile.TemporaryDirectory() as folder:
            environment = {"BODIES": " ".join(left), "FOLDER": folder, "PATIENCE": str(patience)}
            source = _PROGRAM.read_text()
            run = cluster.run(
                Job(source=source, filename="torch_bodies", timeout=seconds, hang_timeout=None, environment=environment)
            )
            by_rank = [_read(Path(folder, f"outcomes of {rank}")) for rank in range(RANKS)]
        while left and all(left[0] in outcome for outcome in by_rank):
            told = [outcome[left[0]] for outcome in by_rank]
            found[left.pop(0)] = {text: told.count(text) for text in told}
        if left:
            found[left.pop(0)] = {f"the job ended: {run.diagnosis()}": RANKS}
    return found


def passes(outcome: dict[str, int]) -> bool:
    return outcome == {"passed": RANKS}


def _read(path: Path) -> dict[str, str]:
    lines = path.read_text().splitlines() if path.exists() else []
    return {name: outcome for name, outcome, *_ in map(json.loads, lines)}


if __name__ == "__main__":
    results = outcomes(local(nproc_per_node=RANKS), names(), seconds=300, patience=6)
    PASS_LOCALLY.write_text("".join(f"{name}\n" for name, outcome in results.items() if passes(outcome)))
