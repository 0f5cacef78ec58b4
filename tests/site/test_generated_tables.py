"""The tables of docs/strategies.md, docs/performance.md and docs/predict_accuracy.md are what their programs make."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from labkit.catalogue import entries

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import predict_coverage  # noqa: E402
import sick_runs  # noqa: E402
import strategies  # noqa: E402

SEARCHED = "8 x A100-80, NVLink"
"""Of the table of layouts, the smallest models on this cluster are searched again; the other tables are made again as a
whole."""


@pytest.mark.parametrize("name", [name for name in strategies.TABLES if name not in ("layouts", "sequences")])
def test_a_table_is_up_to_date(name: str) -> None:
    page = strategies.PAGE.read_text()
    assert strategies.filled(page, [name]) == page, "run python benchmarks/strategies.py"


def test_a_cluster_s_fastest_layouts_are_up_to_date() -> None:
    _, _, *rows = strategies.layouts([SEARCHED], strategies.MODELS[:2])
    page = strategies.PAGE.read_text().splitlines()
    assert rows == [line for line in page if line.startswith(f"| {SEARCHED} |")][: len(rows)]
    assert len(rows) == 2


def test_sick_runs_are_as_the_page_says_and_cures_help() -> None:
    page = sick_runs.PAGE.read_text()
    assert sick_runs.filled(page) == page, "run python benchmarks/sick_runs.py"
    rows = [row.split("|") for row in sick_runs.table()[2:]]
    assert len(rows) == 10
    assert sick_runs.differing() == [], "run python benchmarks/sick_runs.py"
    assert all(float(cured) < float(sick) for *_, sick, cured, _ in rows)


@pytest.mark.parametrize("name", list(predict_coverage.TABLES))
def test_a_table_of_predictions_is_up_to_date(name: str) -> None:
    page = predict_coverage.PAGE.read_text()
    assert predict_coverage.page_tables.filled(page, predict_coverage.TABLES, [name]) == page, (
        "run python benchmarks/predict_coverage.py"
    )


def test_hours_of_the_syllabuses_are_the_catalogue_s() -> None:
    minutes = {entry.number: entry.minutes for entry in entries()}
    rows = re.findall(r"^\| \d+ \| ([\d, ]+) \| ([\d.]+) \|", (ROOT / "docs" / "teaching.md").read_text(), re.MULTILINE)
    assert len(rows) == 10 + 3
    for exercises, hours in rows:
        assert f"{sum(minutes[int(number)] for number in exercises.split(', ')) / 60:.1f}" == hours, exercises


def test_a_changed_table_is_noticed() -> None:
    page = strategies.PAGE.read_text().replace("gpt-175b |", "gpt-174b |")
    assert strategies.filled(page, ["memory"]) != page
