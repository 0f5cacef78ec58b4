"""The files that a build may copy: those of its context which `.dockerignore` leaves, as podman and docker read it.

https://docs.docker.com/build/concepts/context/#dockerignore-files. `FILE.Containerfile.dockerignore` beside the
Containerfile replaces the context's `.dockerignore`. A pattern that is not known here is an error.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Rule:
    pattern: re.Pattern[str]
    keeps: bool
    """Whether it begins with `!`."""
    start: str
    """Path before its first wildcard."""


def copy(context: Path, containerfile: Path, to: Path) -> None:
    """Copy what the Containerfile's build may see. Raises ValueError for a pattern that is not known here."""
    own = containerfile.with_name(f"{containerfile.name}.dockerignore")
    file = own if own.exists() else context / ".dockerignore"
    found = rules(file.read_text()) if file.exists() else []
    to.mkdir()
    _copy_folder(context, "", found, to)


def rules(text: str) -> list[Rule]:
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        keeps, word = line.startswith("!"), line.strip().removeprefix("!").strip("/")
        if re.search(r"[\[\\]", word) or (keeps and "*" in word):
            raise ValueError(f"line {number}: {line} is not known here")
        found.append(Rule(_pattern(word), keeps, re.split(r"[*?]", word)[0]))
    return found


def is_sent(name: str, rules: list[Rule]) -> bool:
    """Whether the file or folder `name`, relative to the context, is part of it: the last rule that matches decides.

    A rule that matches a folder matches all in it.
    """
    parts = name.split("/")
    names = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
    matching = [rule for rule in rules if any(rule.pattern.fullmatch(each) for each in names)]
    return not matching or matching[-1].keeps


def _pattern(word: str) -> re.Pattern[str]:
    text = re.escape(word).replace(r"\*\*/", "(?:.*/)?").replace(r"\*\*", ".*")
    return re.compile(text.replace(r"\*", "[^/]*").replace(r"\?", "[^/]"))


def _copy_folder(context: Path, name: str, rules: list[Rule], to: Path) -> None:
    for entry in sorted((context / name).iterdir()):
        path = f"{name}/{entry.name}" if name else entry.name
        sent = is_sent(path, rules)
        if entry.is_dir() and not entry.is_symlink():
            if sent or any(rule.keeps and rule.start.startswith(f"{path}/") for rule in rules):
                (to / path).mkdir()
                _copy_folder(context, path, rules, to)
        elif sent:
            shutil.copy2(entry, to / path, follow_symlinks=False)
