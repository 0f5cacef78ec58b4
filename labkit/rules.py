"""The notebooks' rules: the inequality that a notebook derives, in a box, and the card that collects them.

A box is a blockquote of a Markdown cell that begins with `> **Rule NN.**`, NN as in the notebook's file name. The page
`docs/rules.md` has a place for each, between two comments. `labkit sync` copies the box there, under its notebook's
title and with a link to its section; what is below it, an example, is written by hand. Within an inequality all spaces
are no-break spaces (U+00A0), so that it stays on one line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import nbformat

from labkit.catalogue import Exercise, exercises_in, root

CARD = "docs/rules.md"
"""The page with all rules."""
_BOX = re.compile(r"^> \*\*Rule (\d\d)\.\*\* [^\n]*(?:\n>[^\n]*)*", re.MULTILINE)
_HEADING = re.compile(r"^##+ (.+)$", re.MULTILINE)
_PLACE = re.compile(r"(<!-- rule (\d\d): [^\n]*-->\n).*?(<!-- end -->)", re.DOTALL)


class RuleError(ValueError):
    """A notebook has two boxes or another's rule, or the card's places are not the notebooks' rules."""


@dataclass(frozen=True)
class Rule:
    """A notebook's rule."""

    exercise: Exercise
    box: str
    """Blockquote, in Markdown: the rule, and its symbols with their units."""
    section: str
    """Text of the last heading above it."""

    @property
    def number(self) -> str:
        """Number of the notebook, two digits."""
        return f"{self.exercise.entry.number:02}"

    def on_the_card(self) -> str:
        """Return what the card has of it, in Markdown."""
        anchor = re.sub(r"[^\w\- ]", "", self.section.lower()).replace(" ", "-")
        address = f"../notebooks/{self.exercise.notebook_name}#{anchor}"
        return f"## {self.exercise.label}\n\n{self.box}\n\n[Derived in: {self.section}]({address})"


def rules() -> dict[str, Rule]:
    """Return the rule of each notebook that has one, by number. Raises `RuleError`."""
    found = {}
    for exercise in exercises_in(root()):
        if exercise.notebook.is_file() and (rule := rule_of(exercise)):
            found[rule.number] = rule
    return found


def rule_of(exercise: Exercise) -> Rule | None:
    """Return the exercise's rule, None if its notebook has no box. Raises `RuleError` if it has two, or another's."""
    notebook = nbformat.read(exercise.notebook, as_version=4)
    text = "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    boxes = list(_BOX.finditer(text))
    if not boxes:
        return None
    rule = Rule(exercise, boxes[0][0], _HEADING.findall(text[: boxes[0].start()])[-1])
    if [box[1] for box in boxes] != [rule.number]:
        boxed = ", ".join(f"Rule {box[1]}" for box in boxes)
        raise RuleError(f"notebooks/{exercise.notebook_name} has {boxed} in boxes: it needs one, Rule {rule.number}")
    return rule


def with_rules(page: str, found: Mapping[str, Rule]) -> str:
    """Return the card's text with these rules, each in its place. Raises `RuleError` if places and rules differ."""
    places = [place[2] for place in _PLACE.finditer(page)]
    if sorted(places) != sorted(found):
        raise RuleError(
            f"{CARD} has places for the rules {', '.join(places)}, and the notebooks have {', '.join(sorted(found))}: "
            "write the missing box, or a place `<!-- rule NN: -->` ... `<!-- end -->` with an example below it"
        )
    return _PLACE.sub(lambda place: f"{place[1]}\n{found[place[2]].on_the_card()}\n\n{place[3]}", page)
