"""Settings of an elastic launch, and its result."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit import catalogue
from labkit.clusters import Cluster, Run
from labkit.course.arguments import integer, require
from labkit.course.phase4_production.fault_tolerance.given.journal import Attempt, Journal


@dataclass(frozen=True)
class ElasticConfig:
    """An elastic job. Raises ValueError for an argument that cannot be used."""

    program: str | Path
    """Python file that every rank runs: it calls `train_with_fault_tolerance`."""
    nproc_per_node: int = 1
    min_nodes: int = 1
    """Fewest nodes with which the job goes on."""
    max_nodes: int = 1
    max_restarts: int = 3
    """Most times that all ranks start again after a failure."""
    cluster: Cluster | None = None
    """Cluster on which the ranks run, one of the lab's; None: processes of this machine."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of every rank."""
    rdzv_endpoint: str = "localhost:29400"
    """HOST:PORT at which torchrun's nodes meet."""
    rdzv_id: str = "elastic"
    """Name of the job at that endpoint."""

    def __post_init__(self) -> None:
        if not Path(self.program).is_file():
            raise ValueError(f"program must be a Python file, got {str(self.program)!r}")
        require("nproc_per_node", self.nproc_per_node, integer(at_least=1))
        require("min_nodes", self.min_nodes, integer(at_least=1))
        require("max_nodes", self.max_nodes, integer(at_least=self.min_nodes))
        require("max_restarts", self.max_restarts, integer(at_least=0))

    def torchrun_command(self) -> list[str]:
        """Return the words of the command that does the same on each node of a cluster of your own."""
        options = {
            "nnodes": f"{self.min_nodes}:{self.max_nodes}",
            "nproc-per-node": self.nproc_per_node,
            "max-restarts": self.max_restarts,
            "rdzv-backend": "c10d",
            "rdzv-endpoint": self.rdzv_endpoint,
            "rdzv-id": self.rdzv_id,
        }
        # by default torch's agent keeps one store for all restarts, where gloo finds addresses of ranks that are dead
        words = ["env", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1", "torchrun"]
        return [*words, *(f"--{name}={value}" for name, value in options.items()), str(self.program)]

    def program_text(self) -> dict[str, Any]:
        """Return the arguments of `Job` for the program's text, and for every exercise's module that it may import."""
        sources = {}
        for exercise in catalogue.all_exercises():
            with contextlib.suppress(catalogue.MissingModule):
                sources[exercise.name], _ = exercise.source()
        return {"source": Path(self.program).read_text(), "filename": str(self.program), "modules": sources}


@dataclass(frozen=True)
class ElasticRun:
    """A job that has finished, in spite of failures."""

    run: Run
    """Result of the last attempt; `run.notes` gives the reason of each restart."""
    attempts: Sequence[Attempt]
    """All starts of its ranks, in order."""
    losses: Mapping[int, float]
    """Mean loss of each step, by its number from 1, in the trajectory that survived."""
    steps_lost: Sequence[int]
    """Number of steps that were done again, for each restart."""

    @classmethod
    def of(cls, run: Run, journal: Journal) -> ElasticRun:
        """Return a run with its attempts, losses and lost steps, as the journal has them."""
        return cls(run, journal.attempts(), journal.losses(), journal.steps_lost())
