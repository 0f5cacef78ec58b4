"""`labkit doctor`: test what works on this machine by using it, and advise on the rest."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import metadata
from typing import NoReturn

from rich.console import Console
from rich.table import Table
from rich.text import Text

from labkit.command_line.finding import Finding, State
from labkit.installing import how_to_install
from labkit.torch_versions import NEWEST, OLDEST


def main() -> int:
    """Print the table; return 0 unless something that every learner needs has failed."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("", "state", "found"):
        table.add_column(column, overflow="fold")
    console = Console()
    failed = False
    with console.status("") as status:
        for name, examine in _examinations():
            status.update(f"checking {name}")
            finding = _safely(examine)
            failed |= finding.state is State.FAILED
            found = Text(finding.seen)
            if finding.advice:
                found.append(f"\n{finding.advice}", style="dim")
            table.add_row(name, Text(finding.state.name.lower(), style=finding.state.value), found)
    console.print(table)
    return int(failed)


def list_patches() -> int:
    """Print what virtual ranks replace in torch and Python, why, and for how long; return 0."""
    from labkit.clusters.virtual.hosts.patches import PATCHES

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("subject", "ranks", "why", "replaced names"):
        table.add_column(column, overflow="fold")
    for patch in PATCHES:
        ranks = "all" if patch.threads and patch.processes else "threads" if patch.threads else "processes"
        names = "\n".join(patch.replaces) or "none"
        table.add_row(Text(patch.subject), ranks, Text(patch.why), Text(names, style="dim"))
    console = Console()
    console.print(table)
    console.print(
        "\nMade in the processes that host virtual ranks, after these have been forked: not in your notebook, and not "
        "where real ranks run. Nothing is put back, since these processes end with their run.\n"
        "ranks: threads of one process, by default; processes, where submissions are judged."
    )
    return 0


def _examinations() -> Iterator[tuple[str, Callable[[], Finding]]]:
    yield from BASIC.items()
    yield from _of_clusters()
    yield from FURTHER.items()
    yield from _installed()


def _of_clusters() -> list[tuple[str, Callable[[], Finding]]]:
    """Examinations of the kinds of clusters; loaded here, since torch may be broken."""
    try:
        from labkit.clusters import kinds

        return [(kind.title, kind.examine) for kind in kinds.registered().values()]
    except Exception as error:
        return [("clusters", partial(_raise, error))]


def _raise(error: Exception) -> NoReturn:
    raise error


def _installed() -> list[tuple[str, Callable[[], Finding]]]:
    """Examinations of other packages; loaded only when they run, since they may be broken.

    In a learner's sandbox on a hub the autograder is listed among the packages, but hidden: its own row reports that.
    """
    entries = metadata.entry_points(group=ENTRY_POINTS)
    there = [entry for entry in entries if importlib.util.find_spec(entry.module.partition(".")[0]) is not None]
    return [(entry.name, partial(_of_package, entry)) for entry in there]


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


def _nvml() -> Finding:
    """Whether a monitor can read utilization, memory and temperature of GPUs."""
    try:
        import pynvml
    except ImportError:
        how = how_to_install("nvidia-ml-py", "ranks")
        return Finding(State.MISSING, "nvidia-ml-py is not installed", f"monitors' GPU figures: {how}")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Finding(State.MISSING, str(error), "not needed without an NVIDIA GPU: monitors leave GPU figures out")
    try:
        count, driver = pynvml.nvmlDeviceGetCount(), pynvml.nvmlSystemGetDriverVersion()
    finally:
        pynvml.nvmlShutdown()
    return Finding(State.OK, f"driver {driver}, {count} GPU{'s' * (count != 1)}")


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


BASIC: dict[str, Callable[[], Finding]] = {
    "python": _python,
    "torch": _torch,
    "GPUs": _gpus,
    "NVML": _nvml,
    "NCCL": _nccl,
    "loopback": _loopback,
}
"""Examinations by name, in the order of the table. The kinds of clusters follow, then FURTHER and ENTRY_POINTS."""
FURTHER: dict[str, Callable[[], Finding]] = {"notebook kernel": _kernel, "autograder": _autograder}
ENTRY_POINTS = "labkit.doctor"
"""Entry point group for examinations of other packages: functions that return a `Finding`."""
