"""Tables of a page in docs/, each between two comments, written by the program that computes them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

Tables = Mapping[str, Callable[[], list[str]]]
"""Lines of each table, by the name in its first comment."""


def filled(page: str, tables: Tables, names: Iterable[str]) -> str:
    """Return the page's text with these tables made anew. Raises ValueError unless it has each of them once."""
    for name in names:
        pattern = re.compile(rf"(<!-- table: {name} -->\n).*?(\n<!-- end -->)", re.DOTALL)
        table = "\n".join(tables[name]())
        page, count = pattern.subn(lambda match, table=table: f"{match[1]}\n{table}\n{match[2]}", page)
        if count != 1:
            raise ValueError(f"the page must have one table {name!r}, and has {count}")
    return page


def main(
    description: str,
    page: Path,
    fill: Callable[[str], str],
    also: Callable[[], None] = lambda: None,
    differing: Callable[[], Sequence[Path]] = tuple,
) -> int:
    """Write the page that `fill` returns, and call `also`; with --check only compare, and return 1 if it differs.

    differing: the files that `also` writes and that differ from what it would write.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if something differs")
    options = parser.parse_args()
    old = page.read_text()
    new = fill(old)
    if options.check:
        differ = [*([page] if new != old else []), *differing()]
        for path in differ:
            print(f"{path} differs: run this without --check")
        if not differ:
            print(f"{page.name} is up to date")
        return int(bool(differ))
    also()
    page.write_text(new)
    return 0
