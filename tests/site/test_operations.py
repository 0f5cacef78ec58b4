"""What docs/operations.md says of failures and of the repository's files: each row names a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "operations.md"


def test_what_a_course_makes_is_in_no_version() -> None:
    ignored = (ROOT / ".gitignore").read_text().split()
    assert {"/workspace/", "/course/", "/classroom/", "/site/", ".venv/", ".labkit/"} <= set(ignored)


def test_each_row_names_what_shows_it() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if re.match(r"\| [^-|]*\|", line)]
    facts = [row for row in rows if "| shown by |" not in row]
    assert len(facts) == len(rows) - 3 >= 20
    for row in facts:
        shown = row.split(" | ")[-1].removesuffix(" |")
        cited = re.findall(r"\]\(\.\./(tests/[^)]+\.py)\)", shown)
        assert shown == "the same" or cited or "](https://" in row, row
        assert all((ROOT / path).is_file() for path in cited), row
