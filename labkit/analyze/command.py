"""`labkit analyze`: reads what a run recorded, prints the analysis, and writes it as text, page or pictures."""

from __future__ import annotations

import argparse
from pathlib import Path

from labkit.analyze.findings import Analysis
from labkit.analyze.scaling import analyze_measurements
from labkit.analyze.training import analyze_log


def main(options: argparse.Namespace) -> int:
    """Print the analysis, and write reports. Raises ValueError or OSError for what cannot be read or written."""
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
