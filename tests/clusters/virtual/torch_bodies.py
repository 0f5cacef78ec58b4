"""Bodies of torch's `DistributedTest` and what each does on local ranks.

`python -m tests.clusters.virtual.torch_bodies` runs all bodies on local ranks and writes torch_bodies.txt: a line for
each, which passes, is skipped, fails or hangs. It takes about half an hour.
"""

from __future__ import annotations

import ast
import json
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from labkit import Job, local
from labkit.clusters import Cluster

RANKS = 4
ON_LOCAL_RANKS = Path(__file__).with_name("torch_bodies.txt")
HANGS = "hangs"
_PROGRAM = Path(__file__).parent / "programs/torch_bodies.py"
_DEFINITIONS = Path(torch.__file__).parent / "testing/_internal/distributed/distributed_test.py"


def names() -> list[str]:
    """All bodies, in torch's order."""
    module = ast.parse(_DEFINITIONS.read_text())
    (outer,) = [node for node in module.body if isinstance(node, ast.ClassDef) and node.name == "DistributedTest"]
    (base,) = [node for node in outer.body if isinstance(node, ast.ClassDef)]
    return [node.name for node in base.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


def pass_locally() -> list[str]:
    """Bodies that pass on local ranks, by torch_bodies.txt."""
    lines = [line.split(": ", 1) for line in ON_LOCAL_RANKS.read_text().splitlines()]
    return [name for name, result in lines if result == "passed"]


def outcomes(
    cluster: Cluster, bodies: Sequence[str], *, seconds: float, each: float | None = None, patience: float = 1.0
) -> dict[str, dict[str, int]]:
    """Outcomes of bodies, with the number of ranks. A job ends at a body that hangs or crashes, and another follows.

    seconds: limit of a job. each: limit of a body, for real ranks, which know of no deadlock. patience: factor of the
    time limits of torch's own barrier.
    """
    found: dict[str, dict[str, int]] = {}
    left = list(bodies)
    while left:
        first = left[0]
        with tempfile.TemporaryDirectory() as folder:
            environment = {"BODIES": " ".join(left), "FOLDER": folder, "PATIENCE": str(patience)}
            environment |= {} if each is None else {"LIMIT": str(each)}
            source = _PROGRAM.read_text()
            run = cluster.run(
                Job(source=source, filename="torch_bodies", timeout=seconds, hang_timeout=None, environment=environment)
            )
            by_rank = [_read(Path(folder, f"outcomes of {rank}")) for rank in range(RANKS)]
        hangs = False
        while left and not hangs and all(left[0] in outcome for outcome in by_rank):
            told = [outcome[left[0]] for outcome in by_rank]
            hangs = HANGS in told
            found[left.pop(0)] = {text: told.count(text) for text in told}
        if left and not hangs:
            # the first rank to give up may end the others before they do
            hangs = any(outcome.get(left[0]) == HANGS for outcome in by_rank)
            # what the bodies before it have left behind may end a job: the body is then the first of the next one
            if hangs or left[0] == first:
                found[left.pop(0)] = {HANGS if hangs else f"the job ends: {run.diagnosis()}": RANKS}
    return found


def passes(outcome: dict[str, int]) -> bool:
    return outcome == {"passed": RANKS}


def result(outcome: dict[str, int]) -> str:
    """One line: what the body does, without what differs from run to run."""
    return ", ".join(sorted({_without_details(text) for text in outcome}))


def _without_details(text: str) -> str:
    first = text.splitlines()[0]
    if first == "passed" or first.startswith((HANGS, "skipped: ", "the job ends: ")):
        return first.partition(" at torch_bodies")[0]
    # of a traceback, the last line that is not indented begins with the exception
    last = [line for line in text.splitlines() if re.match(r"[\w.]+(:|$)", line)][-1]
    return f"fails: {last.partition(':')[0].rpartition('.')[2]}"


def _read(path: Path) -> dict[str, str]:
    lines = path.read_text().splitlines() if path.exists() else []
    return dict(map(json.loads, lines))


if __name__ == "__main__":
    found = outcomes(local(nproc_per_node=RANKS), names(), seconds=3000, each=150, patience=6)
    ON_LOCAL_RANKS.write_text("".join(f"{name}: {result(outcome)}\n" for name, outcome in found.items()))
