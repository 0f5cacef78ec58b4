"""The exercise of this notebook, for magics that are called without a name."""

from __future__ import annotations

import os
import re
from pathlib import PurePath
from typing import TYPE_CHECKING

from IPython.core.error import UsageError

from labkit import catalogue
from labkit.catalogue import Exercise

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_KEY = "labkit_exercise"


def remember(shell: InteractiveShell, exercise: Exercise) -> None:
    """Note that `exercise` is the last one whose `%%exercise` cell ran in this kernel."""
    shell.meta[_KEY] = exercise.name


def named_or_own(shell: InteractiveShell, name: str | None, magic: str) -> Exercise:
    """Return the exercise called `name`; without a name, the notebook's own.

    That is the last one saved by `%%exercise` in this kernel, else the one that the notebook's file is named after.
    Raises `UnknownExercise` for an unknown name, and UsageError, which says what to type, if there is none.
    """
    if name is not None:
        return catalogue.find(name)
    if _KEY in shell.meta:
        return Exercise(shell.meta[_KEY])
    file = PurePath(str(shell.user_ns.get("__session__") or os.environ.get("JPY_SESSION_NAME", ""))).stem
    short_name = re.sub(r"^\d+_", "", file)
    for exercise in catalogue.all_exercises():
        if exercise.short_name == short_name:
            return exercise
    raise UsageError(f"which exercise? Run the notebook's %%exercise cell first, or type its name: {magic} EXERCISE")
