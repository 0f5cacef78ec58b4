"""`labkit calibrate`: measure this machine's matrix products, copies, launches and collectives, and write a preset."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from labkit.calibrate import machine as machines
from labkit.calibrate import report
from labkit.calibrate.run import Calibration, calibrate, steps
from labkit.hardware import files


class NotWritable(ValueError):
    """The file could not be written after measuring; raised before it starts."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="labkit calibrate", description=__doc__)
    parser.add_argument("--to", type=Path, default=Path("machine.json"), metavar="FILE", help="default: %(default)s")
    parser.add_argument("--ranks", type=int, metavar="N", help="default: one for each GPU; on the CPU for each core")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where torch sees a GPU")
    parser.add_argument("--quick", action="store_true", help="few sizes, few repetitions: seconds, and a wider spread")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw messages and collectives: a PNG")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Measure, print, write. Raises ValueError or MeasuringFailed; the message says what the learner can do."""
    options = _parser().parse_args(arguments)
    if options.ranks is not None and not 1 <= options.ranks <= 64:
        raise ValueError(f"--ranks must be from 1 to 64, got {options.ranks}")
    for path in (options.to, options.picture):
        if path is not None:
            require_writable(path)
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
    if options.picture is not None:
        options.picture.write_bytes(report.picture(made).png())
    console.print(f"written: {options.to}", highlight=False)
    console.print(f"labkit predict --cluster {options.to} --model mlp-784x512x10", highlight=False)
    console.print(f"%cluster virtual {_as_argument(options.to)}", highlight=False)
    return 0


def require_writable(path: Path) -> None:
    """Raise NotWritable, with the reason, if the file cannot be written."""
    folder = path.parent
    if path.is_dir():
        raise NotWritable(f"{path} is a folder; --to takes the name of a file")
    if not folder.is_dir():
        raise NotWritable(f"there is no folder {folder}")
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise NotWritable(f"nothing can be written in {folder} ({error.strerror}); name another place") from None


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
