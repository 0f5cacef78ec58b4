"""Score the course's entries of all challenges, in solutions/challenges; record them and the bounds.

python benchmarks/challenges.py            # compare with labkit/challenges/standings.toml; status 1 if they differ
python benchmarks/challenges.py --write    # record them, there and in docs/challenges.md
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

from page_tables import filled

from labkit.catalogue import root
from labkit.challenges.challenge import BOUND, CHALLENGES, STANDINGS, Challenge, table
from labkit.linux.files import replace_text

PAGE = root() / "docs" / "challenges.md"


def with_standings(page: str) -> str:
    """Return the page with all standings as they are recorded."""
    tables = {challenge.name: partial(_block, challenge) for challenge in CHALLENGES}
    return filled(page, tables, tables)


def _block(challenge: Challenge) -> list[str]:
    return ["```text", *table(challenge, challenge.standings()), "```"]


def recorded(challenge: Challenge) -> str:
    """Return the challenge's part of the file of standings."""
    race = challenge.load()
    lines = [f"[{challenge.name}.{BOUND}]", *(f'"{name}" = {value!r}' for name, value in race.bounds().items())]
    for path in sorted((root() / "solutions/challenges" / challenge.name).glob("*.py")):
        outcomes = race.measure(path.read_text(), path.stem, lambda text, path=path: print(path.stem, text, flush=True))
        if faults := [outcome.fault for outcome in outcomes if outcome.fault]:
            sys.exit(f"{path}: {faults[0]}")
        lines += ["", f"[{challenge.name}.{path.stem}]", *(f'"{one.instance}" = {one.value!r}' for one in outcomes)]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="record the scores")
    options = parser.parse_args()
    text = "\n".join(["# written by benchmarks/challenges.py", *map(recorded, CHALLENGES)])
    if options.write:
        replace_text(STANDINGS, text)
        replace_text(PAGE, with_standings(PAGE.read_text()))
        return 0
    print(text)
    return int(text != STANDINGS.read_text())


if __name__ == "__main__":
    sys.exit(main())
