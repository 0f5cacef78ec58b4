"""`labkit calibrate`: measures with a progress bar, prints what it has found, and writes it."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from labkit.calibrate import machine as machines
from labkit.calibrate import report
from labkit.calibrate.run import Calibration, calibrate, steps
from labkit.hardware import files


def main(options: argparse.Namespace) -> int:
    """Measure, print, write. Raises ValueError or MeasuringFailed; the message says what the learner can do."""
    machine = machines.examine(options.device, options.ranks)
    console = Console()
    console.print(
        f"{machine.name}: {machine.ranks} ranks"
        + (f" of {machine.threads} threads" if machine.device == "cpu" else "")
        + f", {machine.backend}, {machine.memory_bytes / 1e9:.1f} GB each",
        highlight=False,
    )
    for warning in machines.warnings(machine):
        console.print(warning, style="yellow", highlight=False)
    made = _with_progress(machine, options.quick, console)
    report.show(made, console)
    files.write(options.to, made.fitted.cluster, made.measured())
    if options.report is not None:
        options.report.write_bytes(report.picture(made).png())
    console.print(f"written: {options.to}", highlight=False)
    console.print(f"labkit predict --cluster {options.to} --model mlp-784x512x10", highlight=False)
    console.print(f"%cluster virtual {_as_argument(options.to)}", highlight=False)
    return 0


def _as_argument(path: Path) -> str:
    """Format the path as a command-line argument that cannot be mistaken for a preset's name."""
    return str(path) if files.is_file(str(path)) else f"./{path}"


def _with_progress(machine: machines.Machine, quick: bool, console: Console) -> Calibration:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting ranks", total=steps(machine, quick))

        def tell(text: str) -> None:
            progress.update(task, advance=1, description=text)
            if not console.is_terminal:  # output goes to a log
                console.print(text, highlight=False)

        try:
            return calibrate(machine, quick=quick, tell=tell)
        except KeyboardInterrupt:
            console.print("stopped; nothing is written")
            raise
