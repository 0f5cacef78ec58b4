"""`labkit analyze METRICS`: draws what a run recorded, and says what limits it and what to try.

METRICS is a monitor's folder of rank-00000.jsonl, ..., or a file of `labkit bench scaling`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from labkit.command_line.parser import CommandParser

SUFFIXES = (".html", ".md", ".png")


def add_arguments(parser: CommandParser) -> None:
    """Add the options."""
    parser.description = __doc__
    parser.add_argument("metrics", type=Path, metavar="METRICS", help="a monitor's folder, or a file of labkit bench")
    parser.add_argument(
        "--report", type=Path, action="append", default=[], metavar="FILE",
        help=f"write it there, too; FILE ends in {', '.join(SUFFIXES)} (pictures are numbered); repeatable",
    )  # fmt: skip


def require_valid(options: argparse.Namespace) -> None:
    """Raise ValueError unless the metrics exist and reports can be written."""
    for file in options.report:
        if file.suffix not in SUFFIXES:
            raise ValueError(f"--report {file}: its name must end in {', '.join(SUFFIXES)}")
        if not file.parent.is_dir():
            raise ValueError(f"there is no folder {file.parent} for {file.name}")
    if not options.metrics.exists():
        raise ValueError(f"there is no file or folder {options.metrics}")
