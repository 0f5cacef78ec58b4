"""Settings on the command line of `labkit autograde`, as on nbgrader's: `--JudgeCells.timeout=40`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence

from traitlets import TraitError
from traitlets.config import Config, Configurable

from autograder.intake.autograde import AutogradeReceived
from autograder.judge_cells import JudgeCells
from autograder.marks.late import LatePenalties, LateRule
from autograder.sandbox import Sandbox

_CLASSES: tuple[type[Configurable], ...] = (Sandbox, JudgeCells, AutogradeReceived, LateRule, LatePenalties)
_SETTING = re.compile(r"--(\w+\.\w+)=(.*)", re.DOTALL)


class BadSetting(ValueError):
    """A setting that does not exist, or an invalid value; the message says what to write instead."""


def read_settings(arguments: Sequence[str]) -> Config:
    """Parse `arguments`, each `--Class.name=value` with a plain value. Raises `BadSetting`."""
    known = dict(_known())
    settings = Config()
    for argument in arguments:
        match = _SETTING.fullmatch(argument)
        if match is None:
            raise BadSetting(f"unknown argument {argument!r}; a setting is given as --JudgeCells.timeout=40")
        name, text = match.groups()
        if name not in known:
            near = difflib.get_close_matches(name, known, n=2)
            offer = f"did you mean --{' or --'.join(near)}?" if near else "see docs/sandbox.md and docs/grading.md"
            raise BadSetting(f"no setting of grading is called {name!r}; {offer}")
        owner, (section, _, trait) = known[name], name.partition(".")
        try:
            value = owner.class_traits()[trait].from_string(text)
            owner(config=Config({section: {trait: value}}))  # validates the value
        except (TraitError, ValueError) as error:
            raise BadSetting(f"{name} cannot be {text!r}: {error}") from None
        settings[section][trait] = value
    return settings


def _known() -> Iterator[tuple[str, type[Configurable]]]:
    """Yield each setting's name and class; inherited settings also under the base class's name."""
    for owner in _CLASSES:
        for base in owner.mro():
            if issubclass(base, Configurable):
                for trait in base.class_trait_names(config=True):
                    yield f"{base.__name__}.{trait}", owner
