"""Table of wrong solutions: judges every mutant of every exercise and writes autograder/course/README.md.

    python -m autograder.mutants [EXERCISE ...]

Without names: all exercises. Nothing is written if any mutant of an exercise earns other marks than stated.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rich.progress import track

from autograder.judge import hidden_rubric
from autograder.mutants.judging import judged, page, rubrics, stated
from labkit.catalogue import UnknownExercise, find, root
from labkit.checks import NoRubric


def main(names: Sequence[str]) -> int:
    """Judge and write the page. Returns 0 if all earn the stated marks, 1 if one does not, 2 for an unknown name."""
    parser = argparse.ArgumentParser("python -m autograder.mutants", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("exercises", nargs="*", metavar="EXERCISE", help="names (default: all)")
    try:
        chosen = [hidden_rubric(find(name)) for name in parser.parse_args(names).exercises] or list(rubrics())
    except (UnknownExercise, NoRubric) as error:
        print(error, file=sys.stderr)
        return 2
    rows = [(rubric, row) for rubric in chosen for row in stated(rubric)]
    wrong = 0
    for rubric, row in track(rows, description="judging"):
        seen = judged(rubric, row)
        if seen != row:
            wrong += 1
            differ = ", ".join(sorted(seen.loses ^ row.loses))
            print(
                f"{rubric.exercise.short_name} {row.name}: {seen.marks:g}, stated {row.marks:g}; differs in: {differ}"
            )
    if wrong:
        print(f"{wrong} of {len(rows)} are not as stated: nothing written")
        return 1
    path = root() / "autograder" / "course" / "README.md"
    path.write_text(page())
    print(f"{len(rows)} judged, all as stated; wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
