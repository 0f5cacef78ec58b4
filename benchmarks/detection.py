"""How long until a lost rank is noticed, and until all ranks run again.

On virtual and local ranks, under torchrun, and on a real Slurm.

The last of two ranks is killed by SIGKILL while both wait for each other all the time. The other
rank notices that its collective fails, or is ended by its agent, whichever comes first.
Ranks run again when the program has started anew on all that are left, and they have met. Loading a checkpoint is not
in it. Slurm has two nodes on this machine. On virtual ranks time is modelled. Not measured: a node that is lost without
a word, and how long Python, torch and NCCL start on all nodes of a large cluster, for which exercise 26 assumes two
minutes.

    python benchmarks/detection.py [virtual|local|torchrun|slurm ...] [--repeats 3]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from labkit import Job, virtual
from labkit.clusters.virtual import kill

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = """\
import os, signal, sys, time
import torch.distributed as dist

folder = sys.argv[1]
# the count of restarts is each agent's own
before = "" if not os.path.exists(os.path.join(folder, "lost")) else "again-"

def mark(name):
    open(os.path.join(folder, before + name), "a").write(f"{time.time()}\\n")

def ended(number, frame):
    mark("noticed")
    sys.exit(1)

signal.signal(signal.SIGTERM, ended)
dist.init_process_group("gloo")
rank, last = dist.get_rank(), dist.get_rank() == dist.get_world_size() - 1
dist.barrier()
mark("met")
if not before:
    if last:
        time.sleep(1)
        mark("lost")
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            dist.barrier()
            time.sleep(0.01)
    except RuntimeError:
        mark("noticed")
        time.sleep(600)  # the agent ends it
dist.destroy_process_group()
"""
VIRTUAL = """\
import time
import torch.distributed as dist
dist.init_process_group()
try:
    while True:
        time.sleep(0.01)
        dist.barrier()
except RuntimeError:
    noticed = time.perf_counter()
noticed
"""
SLURM = ["--cluster", "slurm", "--partition", "lab", "--time", "20", "-n", "1", "--nnodes"]


def times(folder: Path) -> tuple[float, float]:
    """Return the seconds from the loss until it was noticed, and until ranks have met again."""
    lost = float((folder / "lost").read_text())
    noticed = min(map(float, (folder / "noticed").read_text().split()))
    return noticed - lost, max(map(float, (folder / "again-met").read_text().split())) - lost


def on_virtual(folder: Path) -> tuple[float, float]:
    at = 1.0
    done = virtual(nproc_per_node=2, faults=[kill(1, at=at)]).run(Job(source=VIRTUAL))
    return done.values[0] - at, float("nan")


def locally(folder: Path) -> tuple[float, float]:
    _launched(folder, ["-n", "2", "--max-restarts", "1"])
    return times(folder)


def with_torchrun(folder: Path) -> tuple[float, float]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    # by default torch's agent keeps one store for all restarts, in which gloo finds addresses of ranks that are dead
    environment = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    subprocess.run([*command, str(_program(folder)), str(folder)], env=environment, check=True, capture_output=True)
    return times(folder)


def on_slurm(folder: Path) -> tuple[float, float]:
    _launched(folder, [*SLURM, "2", "--max-restarts", "1"])
    return times(folder)


WAYS: dict[str, Callable[[Path], tuple[float, float]]] = {
    "virtual": on_virtual,
    "local": locally,
    "torchrun": with_torchrun,
    "slurm": on_slurm,
}


def _program(folder: Path) -> Path:
    (file := folder / "program.py").write_text(PROGRAM)
    return file


def _launched(folder: Path, words: list[str]) -> None:
    command = [sys.executable, "-m", "labkit", "launch", str(_program(folder)), *words, "--", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ways", nargs="*", default=list(WAYS), metavar="WAY", help=f"of {', '.join(WAYS)}; all")
    parser.add_argument("--repeats", type=int, default=3, help="(default %(default)s)")
    options = parser.parse_args()
    if unknown := set(options.ways) - WAYS.keys():
        parser.error(f"no way {', '.join(unknown)}; there are: {', '.join(WAYS)}")
    os.environ["OMP_NUM_THREADS"] = "1"
    print(f"{'':18}{'noticed after, s':>18}{'ranks run again, s':>20}", flush=True)
    with tempfile.TemporaryDirectory() as name:
        if "slurm" in options.ways:
            _start_slurm(Path(name) / "slurm")
        try:
            for way in options.ways:
                _measure(way, Path(name), 1 if way == "virtual" else options.repeats)
        finally:
            if _rig is not None:
                _rig.__exit__(None, None, None)


def _measure(way: str, into: Path, repeats: int) -> None:
    measured = []
    for number in range(repeats):
        (folder := into / f"{way}-{number}").mkdir()
        measured.append(WAYS[way](folder))
    noticed, again = (statistics.median(column) for column in zip(*measured, strict=True))
    # what runs again on virtual ranks is another run, which begins at once
    print(f"{way:18}{noticed:18.2f}{'' if way == 'virtual' else f'{again:20.2f}'}", flush=True)


_rig = None


def _start_slurm(folder: Path) -> None:
    """Start a real Slurm, that of the tests."""
    global _rig
    sys.path.extend(str(ROOT / "tests" / name) for name in ("clusters/slurm", "plugins"))
    from slurm_rig import SlurmRig

    _rig = SlurmRig(folder)
    _rig.__enter__()
    os.environ.update(_rig.environment)


if __name__ == "__main__":
    main()
