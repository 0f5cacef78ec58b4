"""`labkit analyze METRICS`: draws what a run recorded, and says what limits it and what to try.

METRICS is a monitor's folder of rank-00000.jsonl, ..., or a file of `labkit bench scaling`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from labkit.analyze.findings import Analysis
from labkit.analyze.scaling import analyze_measurements
from labkit.analyze.training import analyze_log

SUFFIXES = (".html", ".md", ".png")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="labkit analyze", description=__doc__)
    parser.add_argument("metrics", type=Path, metavar="METRICS")
    parser.add_argument(
        "--report", type=Path, action="append", default=[], metavar="FILE",
        help=f"write it there, too; ends in {', '.join(SUFFIXES)} (several pictures are numbered); repeatable",
    )  # fmt: skip
    return parser


def main(arguments: Sequence[str]) -> int:
    """Print the analysis, and write reports. Raises ValueError or OSError."""
    options = _parser().parse_args(arguments)
    for file in options.report:
        if file.suffix not in SUFFIXES:
            raise ValueError(f"--report {file}: its name must end in {', '.join(SUFFIXES)}")
        if not file.parent.is_dir():
            raise ValueError(f"there is no folder {file.parent} for {file.name}")
    if not options.metrics.exists():
        raise ValueError(f"there is no file or folder {options.metrics}")
    analysis = (analyze_log if options.metrics.is_dir() else analyze_measurements)(options.metrics)
    print(analysis.text(), end="")
    for file in options.report:
        for written in _write(analysis, file):
            print(f"written: {written}")
    return 0


def _write(analysis: Analysis, file: Path) -> list[Path]:
    """Write a report; return its files."""
    if file.suffix != ".png":
        file.write_text(analysis.page() if file.suffix == ".html" else analysis.text())
        return [file]
    files = [file] if len(analysis.pictures) == 1 else [
        file.with_name(f"{file.stem}-{number}.png") for number in range(1, len(analysis.pictures) + 1)
    ]  # fmt: skip
    for path, picture in zip(files, analysis.pictures, strict=True):
        path.write_bytes(picture.png())
    return files
