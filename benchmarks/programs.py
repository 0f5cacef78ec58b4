"""Other people's libraries on virtual and on local ranks: the same program, unchanged, and its losses compared.

The programs are the files in the folder `programs`, without data or weights to download. Their packages go into an
environment in the user's cache folder, which takes torch and all else it can from the lab's own: the lab's versions are
constraints for pip. `--write` puts the table into docs/virtual.md.

    python benchmarks/programs.py [NAME ...] [--write]

Exit status 1: a program that ends on local ranks does not end with equal losses on virtual ones.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import math
import os
import subprocess
import sys
import sysconfig
import time
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit import Job, local, virtual
from labkit.clusters import Cluster
from labkit.clusters.forkserver.client import shared

ROOT = Path(__file__).parents[1]
FOLDER = Path(__file__).with_name("programs")
DOCUMENT = ROOT / "docs" / "virtual.md"
BEGIN, END = "<!-- programs: begin -->\n", "<!-- programs: end -->\n"
PACKAGES = ("accelerate", "deepspeed", "expecttest", "lightning", "torchft", "torchtitan", "transformers")
WITHOUT_DEPENDENCIES = ("triton",)
"""Packages without their dependencies; torchtitan imports triton but does not require it."""
RANKS = 2
SECONDS = 180


@dataclass(frozen=True)
class Program:
    file: str
    """Name of its file, without the suffix."""
    title: str
    package: str
    changes: str = "none"
    """Changes that the library's users need not make on GPUs."""


PROGRAMS = (
    Program("accelerate", "Accelerate: `Accelerator`", "accelerate"),
    Program("fabric", "Lightning Fabric, DDP", "lightning"),
    Program("lightning_trainer", "Lightning `Trainer`, DDP", "lightning"),
    Program("transformers_trainer", "Transformers' `Trainer`, GPT-2", "transformers"),
    Program("deepspeed_zero", "DeepSpeed, ZeRO 1, 2, 3", "deepspeed"),
    Program("torch_test_models", "models of torch's tests, FSDP2 and DTensor", "torch"),
    Program("torch_fsdp_parity", "body of torch's FSDP tests, 3 models, 3 strategies", "torch"),
    Program("torch_dtensor_converter", "19 operators with all shards by torch's `DTensorConverter`", "torch"),
    Program(
        "torchtitan_llama",
        "torchtitan's `ParallelDims` and `parallelize_llama`, FSDP2 and tensor parallelism",
        "torchtitan",
        changes='device type "cpu", no PREMUL_SUM',
    ),
    Program("torchft_group", "torchft's `ProcessGroupGloo`", "torchft"),
)


@dataclass(frozen=True)
class Outcome:
    values: list[Any] | None
    """Rank and losses of every rank; None if the program failed."""
    error: str
    seconds: float


def environment() -> Path:
    """Make the environment of the programs if needed and return its Python."""
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "labkit" / "programs"
    python = folder / "bin" / "python"
    marker = folder / "packages"
    wanted = "\n".join((*PACKAGES, *WITHOUT_DEPENDENCIES, sys.prefix))
    if not marker.exists() or marker.read_text() != wanted:
        venv.create(folder, with_pip=True, clear=True)
        labs = sysconfig.get_path("purelib")
        inside = subprocess.check_output(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
        )
        (Path(inside.strip()) / "lab.pth").write_text(f"import site; site.addsitedir({labs!r})\n")
        constraints = folder / "constraints.txt"
        constraints.write_text("".join(f"{each.name}=={each.version}\n" for each in importlib.metadata.distributions()))
        install = [python, "-m", "pip", "install", "-q", "-c", constraints]
        subprocess.run([*install, *PACKAGES], check=True)
        subprocess.run([*install, "--no-deps", *WITHOUT_DEPENDENCIES], check=True)
        marker.write_text(wanted)
    return python


def outcome(program: Program, cluster: Cluster) -> Outcome:
    began = time.perf_counter()
    file = FOLDER / f"{program.file}.py"
    run = cluster.run(Job(source=file.read_text(), filename=file.name, timeout=SECONDS))
    seconds = time.perf_counter() - began
    if any(rank.error is not None or rank.exit for rank in run.ranks) or run.diagnosis():
        return Outcome(None, run.diagnosis().splitlines()[0], seconds)
    return Outcome(run.values, "", seconds)


def equal(first: list[Any], second: list[Any]) -> bool:
    """Whether each rank knows its rank and has the same losses on both, to 6 digits."""
    return all(
        mine[0] == theirs[0] == rank
        and len(mine[1]) == len(theirs[1])
        and all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(mine[1], theirs[1], strict=True))
        for rank, (mine, theirs) in enumerate(zip(first, second, strict=True))
    )


def row(program: Program) -> tuple[str, bool]:
    """Return a line of the table, and whether virtual ranks do what local ones do."""
    real, modelled = outcome(program, local(nproc_per_node=RANKS)), outcome(program, virtual(nproc_per_node=RANKS))
    version = importlib.metadata.version(program.package).partition("+")[0]
    same = real.values is None or (modelled.values is not None and equal(real.values, modelled.values))
    if modelled.values is None:
        result = f"fails: {modelled.error}" + ("; fails on local ranks, too" if real.values is None else "")
    else:
        result = "equal" if same else "DIFFERENT"
    cells = [program.title, f"{program.package} {version}", program.changes, result.replace("|", "/")]
    cells += [_last_loss(one) for one in (modelled, real)] + [f"{one.seconds:.0f}" for one in (modelled, real)]
    return f"| {' | '.join(cells)} |", same


def _last_loss(result: Outcome) -> str:
    return f"{result.values[0][1][-1]:.6g}" if result.values and result.values[0][1] else "-"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(each.file for each in PROGRAMS)}")
    parser.add_argument("--write", action="store_true", help="put the table into docs/virtual.md")
    options = parser.parse_args()
    chosen = [each for each in PROGRAMS if not options.names or each.file in options.names]
    if unknown := {*options.names} - {each.file for each in PROGRAMS}:
        parser.error(f"no such program: {', '.join(sorted(unknown))}")
    if options.write and options.names:
        parser.error("--write needs all programs")
    if importlib.util.find_spec("accelerate") is None:
        python = environment()
        os.execv(python, [python, __file__, *sys.argv[1:]])
    lines = [
        "| program | package | changes | result | loss, virtual | loss, local | s, virtual | s, local |",
        "|---|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    good = True
    for program in chosen:
        line, same = row(program)
        print(line, flush=True)
        lines.append(line)
        good = good and same
    shared().close()
    if options.write:
        before, _, rest = DOCUMENT.read_text().partition(BEGIN)
        DOCUMENT.write_text(before + BEGIN + "\n".join(lines) + "\n" + END + rest.partition(END)[2])
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
