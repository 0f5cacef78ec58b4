"""`labkit doctor`: test what works on this machine by using it, and advise on the rest."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from labkit.torch_versions import NEWEST, OLDEST

if TYPE_CHECKING:
    from labkit.clusters import Cluster


class State(Enum):
    """State of a row of the table; the value is its colour."""

    OK = "green"
    MISSING = "yellow"
    FAILED = "red"


@dataclass(frozen=True)
class Finding:
    """Result of one examination. Only `FAILED` makes the command fail: missing parts are optional."""

    state: State
    seen: str
    advice: str = ""


def main() -> int:
    """Print the table; return 0 unless something that every learner needs has failed."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("", "state", "found"):
        table.add_column(column, overflow="fold")
    console = Console()
    failed = False
    with console.status("") as status:
        for name, examine in [*EXAMINATIONS.items(), *_installed()]:
            status.update(f"checking {name}")
            finding = _safely(examine)
            failed |= finding.state is State.FAILED
            found = Text(finding.seen)
            if finding.advice:
                found.append(f"\n{finding.advice}", style="dim")
            table.add_row(name, Text(finding.state.name.lower(), style=finding.state.value), found)
    console.print(table)
    return int(failed)


def _installed() -> list[tuple[str, Callable[[], Finding]]]:
    """Examinations of other packages; loaded only when they run, since they may be broken."""
    return [(entry.name, partial(_of_package, entry)) for entry in metadata.entry_points(group=ENTRY_POINTS)]


def _of_package(entry: metadata.EntryPoint) -> Finding:
    finding: Finding = entry.load()()
    return finding


def _safely(examine: Callable[[], Finding]) -> Finding:
    try:
        return examine()
    except Exception as error:  # one broken part must not hide the others
        return Finding(State.FAILED, f"{type(error).__name__}: {error}"[:300], "report this with the full output")


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding(State.OK, f"{version}, {sys.executable}")


def _torch() -> Finding:
    import torch

    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "a CPU build"
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    if not OLDEST <= (major, minor) <= NEWEST:
        supported = "{}.{} to {}.{}".format(*OLDEST, *NEWEST)
        return Finding(State.FAILED, f"{torch.__version__}, {build}", f"the lab works with torch {supported}")
    return Finding(State.OK, f"{torch.__version__}, {build}")


def _gpus() -> Finding:
    import torch

    count = torch.cuda.device_count()
    if count:
        names = ", ".join(sorted({torch.cuda.get_device_name(i) for i in range(count)}))
        return Finding(State.OK, f"{count}: {names}")
    if os.path.exists("/proc/driver/nvidia/version"):
        return Finding(
            State.MISSING,
            "a driver is loaded, but torch sees no GPU",
            "if another installed torch has CUDA: ./lab --system-torch doctor",
        )
    return Finding(State.MISSING, "none", "not needed: ranks run on the CPU")


def _nccl() -> Finding:
    import torch
    import torch.distributed as dist

    if dist.is_available() and dist.is_nccl_available():
        return Finding(State.OK, ".".join(map(str, torch.cuda.nccl.version())))
    return Finding(State.MISSING, "not in this torch", "not needed: gloo is used")


def _loopback() -> Finding:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(5)
        with socket.create_connection(server.getsockname(), timeout=5):
            server.accept()[0].close()
    return Finding(State.OK, "127.0.0.1 accepts connections")


def _virtual() -> Finding:
    from labkit.clusters.virtual import virtual

    return _all_reduce(virtual(nproc_per_node=4), 4)


def _local() -> Finding:
    from labkit.clusters.local import local

    return _all_reduce(local(nproc_per_node=2), 2)


def _all_reduce(cluster: Cluster, world_size: int) -> Finding:
    from labkit.clusters import Job

    started = time.perf_counter()
    run = cluster.run(Job.calling(_sum_of_ranks, timeout=60))
    if not run.ok:
        return Finding(
            State.FAILED, run.diagnosis(), "ranks cannot communicate here: does a firewall or a container block them?"
        )
    if run.values != [sum(range(world_size))] * world_size:
        return Finding(State.FAILED, f"an all_reduce returned {run.values}", "report this with the full output")
    return Finding(State.OK, f"{world_size} ranks agreed in {time.perf_counter() - started:.1f} s")


def _sum_of_ranks() -> int:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    tensor = torch.tensor(dist.get_rank())
    dist.all_reduce(tensor)
    return int(tensor)


def _slurm() -> Finding:
    from labkit.clusters import InvalidJob
    from labkit.clusters.slurm import clients

    if shutil.which("srun") is None:
        return Finding(State.MISSING, "no srun", "not needed on a laptop")
    try:
        partitions = clients.partitions()
    except InvalidJob as error:
        return Finding(State.MISSING, str(error), "not needed on a laptop; elsewhere, ask the cluster's administrator")
    return Finding(State.OK, f"{_first_line('srun', '--version').split()[-1]}, {partitions}")


def _kubernetes() -> Finding:
    from labkit.clusters.kubernetes import KubernetesError
    from labkit.clusters.kubernetes.api import Api

    try:
        api = Api()
        version = api.get("/version")["gitVersion"]
    except KubernetesError as error:
        return Finding(State.MISSING, str(error), "not needed on a laptop")
    seen = f"{version} at {api.address}, namespace {api.namespace}"
    missing = [
        what
        for what in ("jobs", "services", "secrets")
        if not api.may("create", "batch" if what == "jobs" else "", what)
    ]
    if missing:
        return Finding(
            State.MISSING,
            f"{seen}: you may not create {', '.join(missing)} there",
            "docs/kubernetes.md shows the role to ask for",
        )
    return Finding(State.OK, seen)


def _autograder() -> Finding:
    if importlib.util.find_spec("autograder") is None:
        return Finding(State.MISSING, "not installed", "instructors need it: ./lab demo installs it")
    return Finding(State.OK, metadata.version("autograder"))


def _kernel() -> Finding:
    from jupyter_client.manager import start_new_kernel

    # the kernel's own warnings do not matter here
    manager, client = start_new_kernel(startup_timeout=30, kernel_name="python3", stderr=subprocess.DEVNULL)
    try:
        reply = client.execute_interactive("import labkit, torch", timeout=60, output_hook=lambda message: None)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    if reply["content"]["status"] != "ok":
        error = f"{reply['content']['ename']}: {reply['content']['evalue']}"
        return Finding(State.FAILED, f"importing labkit and torch: {error}", "python -m ipykernel install --sys-prefix")
    return Finding(State.OK, "python3 imports labkit and torch")


def _first_line(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    return (done.stdout or done.stderr).strip().split("\n")[0]


EXAMINATIONS: dict[str, Callable[[], Finding]] = {
    "python": _python,
    "torch": _torch,
    "GPUs": _gpus,
    "NCCL": _nccl,
    "loopback": _loopback,
    "virtual cluster": _virtual,
    "local cluster (gloo)": _local,
    "notebook kernel": _kernel,
    "Slurm": _slurm,
    "Kubernetes": _kubernetes,
    "autograder": _autograder,
}
"""Examinations by name, in the order of the table; those of ENTRY_POINTS follow."""
ENTRY_POINTS = "labkit.doctor"
"""Entry point group for examinations of other packages: functions that return a `Finding`."""
