"""What launchers other than torchrun put into a rank's environment: Open MPI's mpirun, and Slurm's srun."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

OPEN_MPI = {
    "rank": "OMPI_COMM_WORLD_RANK",
    "world_size": "OMPI_COMM_WORLD_SIZE",
    "local_rank": "OMPI_COMM_WORLD_LOCAL_RANK",
}
SLURM = {"rank": "SLURM_PROCID", "world_size": "SLURM_NTASKS", "local_rank": "SLURM_LOCALID"}
"""The variable that holds each field of `DDPConfig`, under mpirun and under srun."""
_FIRST_PORT, _PORTS = 20_000, 10_000


def is_launched() -> bool:
    """Whether a launcher has started this process. A batch script of Slurm has a rank, too, but belongs to no step."""
    environ = os.environ
    return "RANK" in environ or OPEN_MPI["rank"] in environ or {SLURM["rank"], "SLURM_STEP_ID"} <= environ.keys()


def variables_of(torchrun: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables of the launcher that has started this process; torchrun's, the argument, if it is unknown.

    torchrun comes first, and mpirun before srun: one may start within the other.
    """
    if "RANK" in os.environ:
        return torchrun
    if OPEN_MPI["rank"] in os.environ:
        return OPEN_MPI
    set_by_torchrun = torchrun.values() & os.environ.keys()
    return SLURM if SLURM["rank"] in os.environ and not set_by_torchrun else torchrun


def meeting_point(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the `init_method` of Slurm's ranks, which srun does not give: a port of the job's first node.

    Empty under other launchers, without a list of nodes, and where MASTER_ADDR is set. MASTER_PORT, if set, is the
    port; else the numbers of job and step give one.
    """
    lists = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    nodes = next((os.environ[name] for name in lists if name in os.environ), "")
    if variables is not SLURM or "MASTER_ADDR" in os.environ or not nodes:
        return {}
    numbers = [int(os.environ.get(name, 0)) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID")]
    port = os.environ.get("MASTER_PORT") or _FIRST_PORT + sum(numbers) % _PORTS
    return {"init_method": f"tcp://{first_node(nodes)}:{port}"}


def first_node(nodes: str) -> str:
    """Return the first node of a list as Slurm writes it: `gpu03` for `gpu[03-05,9],cpu1`."""
    match = re.match(r"(?:[^,\[]|\[[^\]]*\])+", nodes)
    return re.sub(r"\[([^],-]*)[^]]*\]", r"\1", match[0] if match else nodes)


def ranks_on_machine() -> int | None:
    """Return the number of ranks on this machine, as the launcher says it; None if it does not."""
    for name in ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_STEP_TASKS_PER_NODE"):
        # Slurm's is for all nodes, the fullest first: 4(x2),3
        if match := re.match(r"\d+", os.environ.get(name, "")):
            return int(match[0])
    return None
