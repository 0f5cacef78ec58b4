"""Reads Containerfiles: stages of instructions, with their arguments filled in.

https://docs.docker.com/reference/dockerfile/, as far as the Containerfiles beside this folder go: an instruction that
is not known here is an error, not a step that is left out.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field

KNOWN = {"ARG", "CMD", "COPY", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "RUN", "USER", "WORKDIR"}


@dataclass
class Instruction:
    line: int
    """Of its first line, from 1."""
    name: str
    text: str
    """What follows the name, with continued lines joined, and nothing filled in."""

    @property
    def words(self) -> list[str]:
        """Of the exec form, `["labkit", "doctor"]`, or of the shell's."""
        if self.text.startswith("["):
            words: list[str] = json.loads(self.text)
            return words
        return shlex.split(self.text)

    def options(self) -> tuple[dict[str, str], str]:
        """`--from=packages` and the like, and the text after them."""
        found, rest = {}, self.text
        while match := re.match(r"--([a-z-]+)=(\S+)\s+", rest):
            found[match[1]], rest = match[2], rest[match.end() :]
        return found, rest


@dataclass
class Stage:
    base: str
    """Name of an earlier stage, or of an image."""
    name: str
    instructions: list[Instruction] = field(default_factory=list)

    def last(self, name: str) -> Instruction | None:
        return next((each for each in reversed(self.instructions) if each.name == name), None)


def stages(text: str, arguments: dict[str, str]) -> list[Stage]:
    """Of the file with this text. arguments: of the build, over the defaults of the ARG lines before the first FROM."""
    found: list[Stage] = []
    defaults: dict[str, str] = {}
    for each in instructions(text):
        if each.name == "ARG" and not found:
            name, _, value = each.text.partition("=")
            defaults[name] = arguments.get(name, value)
        elif each.name == "FROM":
            base, _, name = fill_in(each.text, defaults).partition(" AS ")
            found.append(Stage(base.strip(), name.strip() or str(len(found))))
        elif not found:
            raise ValueError(f"line {each.line}: {each.name} before the first FROM")
        else:
            found[-1].instructions.append(each)
    return found


def instructions(text: str) -> list[Instruction]:
    found: list[Instruction] = []
    continued = False
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if continued:
            found[-1].text += " " + line.strip().removesuffix("\\").strip()
        else:
            name, _, rest = line.strip().partition(" ")
            if name not in KNOWN:
                raise ValueError(f"line {number}: {name} is not known here")
            found.append(Instruction(number, name, rest.removesuffix("\\").strip()))
        continued = line.rstrip().endswith("\\")
    return found


def fill_in(text: str, variables: dict[str, str]) -> str:
    """Replace `$NAME` and `${NAME}` by variables that are known; others are the shell's."""
    return re.sub(r"\$(?:\{(\w+)\}|(\w+))", lambda match: variables.get(match[1] or match[2], match[0]), text)
