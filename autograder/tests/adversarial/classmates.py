"""All learners of the class: their submissions and the marks they must get, by header comments of their files.

    # One line on what it tries.
    # marks: 0
    # feedback: a text that feedback on the graded cell must show, or one of several, `timeout | memory`
    # never: a text that it must not show
    # open: why it still gets more than that

The rest of the file is the text of the exercise cell, or a function `hand_in(folder, released)` that fills the
submission's folder itself.
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
    """Explanation of a known hole that is still open."""

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
    """Read a file's header comments."""
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
