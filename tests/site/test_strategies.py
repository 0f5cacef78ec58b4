"""The tables of docs/strategies.md are what `benchmarks/strategies.py` makes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import strategies  # noqa: E402

SEARCHED = "8 x A100-80, NVLink"
"""Of the table of layouts, one cluster is searched again; the other tables are made again as a whole."""


@pytest.mark.parametrize("name", [name for name in strategies.TABLES if name not in ("layouts", "sequences")])
def test_a_table_is_up_to_date(name: str) -> None:
    page = strategies.PAGE.read_text()
    assert strategies.filled(page, [name]) == page, "run python benchmarks/strategies.py"


def test_a_cluster_s_fastest_layouts_are_up_to_date() -> None:
    _, _, *rows = strategies.layouts([SEARCHED])
    page = strategies.PAGE.read_text().splitlines()
    assert rows == [line for line in page if line.startswith(f"| {SEARCHED} |")]
    assert len(rows) == len(strategies.MODELS)


def test_a_changed_table_is_noticed() -> None:
    page = strategies.PAGE.read_text().replace("gpt-175b |", "gpt-174b |")
    assert strategies.filled(page, ["memory"]) != page
