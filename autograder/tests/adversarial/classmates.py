"""Everybody in the class: what each hands in, and what each must get for it, as the head of their file says.

    # One line on what it tries.
    # marks: 0
    # feedback: a text that feedback on the graded cell must show, or one of several, `timeout | memory`
    # never: a text that it must not show
    # open: why it still gets more than that

The rest of the file is the text of the exercise cell, or a function `hand_in(folder, released)` that fills the
submission's folder in its own way.
"""

from __future__ import annotations

import re
import runpy
from dataclasses import dataclass
from pathlib import Path

import pass_around
from nbformat import NotebookNode

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Classmate:
    """One learner of the class."""

    name: str
    path: Path
    marks: float
    feedback: tuple[str, ...]
    never: tuple[str, ...]
    open: str
    """Of a hole that is known and not mended: what lets it through."""

    @property
    def is_honest(self) -> bool:
        return self.path.is_relative_to(HERE / "honest")

    def hand_in(self, folder: Path, released: NotebookNode) -> None:
        """Fill the empty `folder`, `submitted/NAME/ASSIGNMENT`."""
        text = self.path.read_text()
        if "def hand_in(" in text:
            runpy.run_path(str(self.path))["hand_in"](folder, released)
        else:
            pass_around.write(folder, released, text)


def classmate(path: Path) -> Classmate:
    """Reads the head of a file."""
    told: dict[str, list[str]] = {"marks": [], "feedback": [], "never": [], "open": [""]}
    for line in path.read_text().splitlines()[1:]:
        found = re.fullmatch(r"# (marks|feedback|never|open): (.+)", line)
        if found is None:
            break
        told[found[1]].append(found[2].encode().decode("unicode_escape"))
    (marks,) = told["marks"]
    return Classmate(path.stem, path, float(marks), tuple(told["feedback"]), tuple(told["never"]), told["open"][-1])


CLASS = [classmate(path) for kind in ("honest", "hostile", "files") for path in sorted((HERE / kind).rglob("*.py"))]
HONEST = [one for one in CLASS if one.is_honest]
HOSTILE = [one for one in CLASS if not one.is_honest]
