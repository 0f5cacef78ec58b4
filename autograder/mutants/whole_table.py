"""`labkit judge-mutants`: judge every mutant of every exercise, and write autograder/course/README.md.

Each judgement draws inputs of its own. Further draws find checks that depend on what is drawn: the output counts the
draws in which a check was not as stated. Nothing is written if any solution ever earns other marks than stated.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Sequence

from rich.progress import track

from autograder.judge import hidden_rubric
from autograder.mutants.judging import judged, page, rubrics, stated
from labkit.catalogue import UnknownExercise, WrongCatalogue, find
from labkit.checks import NoRubric


def main(names: Sequence[str], draws: int = 1) -> int:
    """Judge and write the page. names: exercises, all when empty. draws: how often each solution is judged.

    Returns 0 if all earn the stated marks, 1 if one does not, 2 for an unknown name.
    """
    try:
        chosen = [hidden_rubric(find(name)) for name in names] or list(rubrics())
    except (UnknownExercise, WrongCatalogue, NoRubric) as error:
        print(f"labkit: {error}", file=sys.stderr)
        return 2
    rows = [(rubric, row) for rubric in chosen for row in stated(rubric)]
    differing: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    """How often each check of a solution was not as stated."""
    for rubric, row in track(rows * draws, description="judging"):
        seen = judged(rubric, row)
        if seen != row:
            solution = rubric.exercise.short_name, row.name
            differing[solution].update(seen.loses ^ row.loses or ["marks alone"])
            checks = ", ".join(f"{check} ({count})" for check, count in sorted(differing[solution].items()))
            print(f"{' '.join(solution)}: {seen.marks:g}, stated {row.marks:g}; differs so far in: {checks}")
    if differing:
        print(f"{len(differing)} of {len(rows)} are not always as stated: nothing written")
        return 1
    folders = dict.fromkeys(rubric.exercise.root for rubric in chosen)
    paths = [folder / "autograder" / "course" / "README.md" for folder in folders]
    for folder, path in zip(folders, paths, strict=True):
        path.write_text(page(folder))
    times = f" on {draws} draws each" if draws > 1 else ""
    print(f"{len(rows)} judged{times}, all as stated; wrote {', '.join(map(str, paths))}")
    return 0
