"""`labkit calibrate`: measure this machine's matrix products, copies, launches and collectives, and write a preset."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from labkit.command_line.parser import CommandParser


class NotWritable(ValueError):
    """The file could not be written after measuring; raised before it starts."""


def add_arguments(parser: CommandParser) -> None:
    """Add the options."""
    parser.description = __doc__
    parser.add_argument(
        "--to",
        type=Path,
        default=Path("machine.json"),
        metavar="FILE",
        help="write the preset there (default: %(default)s)",
    )
    parser.add_argument(
        "--ranks", type=int, metavar="N", help="number of ranks (default: one for each GPU; on the CPU for each core)"
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), help="what to measure (default: cuda where torch sees a GPU)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="measure few sizes, with few repetitions: seconds, and a wider spread"
    )
    parser.add_argument("--report", type=Path, metavar="FILE.png", help="draw messages and collectives there")


def require_valid(options: argparse.Namespace) -> None:
    """Raise ValueError for options that would fail only after measuring."""
    if options.ranks is not None and not 1 <= options.ranks <= 64:
        raise ValueError(f"--ranks must be from 1 to 64, got {options.ranks}")
    if options.report is not None and options.report.suffix != ".png":
        raise ValueError(f"--report {options.report}: its name must end in .png")
    for path in (options.to, options.report):
        if path is not None:
            require_writable(path)


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
