"""Places of the repository's files on the site, and Markdown with its links rewritten accordingly."""

from __future__ import annotations

import os.path
import re
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import PurePosixPath

from labkit.catalogue import exercises_in, root

SOURCES = ("labkit", "autograder", "cluster", "benchmarks", "tests")
"""Folders whose files the site shows when a page links to them."""
NEVER = (
    *("autograder/course/*", "autograder/rubric_support/*", "solutions/*", "tests/course/*"),
    *("labkit/course/*/checks.py", "labkit/course/*/questions.py"),
)
"""Patterns of files that the site does not show: they hold solutions, hidden checks, hints, or answers."""

COPIED = "copied"
"""Folder of the staged files that the site has as they are."""
HERE = "here"
"""Scheme of addresses that Sphinx passes on unchanged, without the scheme: pages that it does not write."""
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^( {4}[^\n]*|```.*?^```[^\n]*)$", re.MULTILINE | re.DOTALL)


def place(path: str) -> str | None:
    """The page of a repository file, without its extension; None if the site has no page for it.

    `docs/virtual.md` is `virtual`, `notebooks/phase1_data_parallel/01_process_group.ipynb` is the same without
    `.ipynb`, `labkit/trace/trace.py` is `source/labkit/trace/trace.py`; `labkit.site.sources` writes the last kind.
    """
    named = {"README.md": "index", "CONTRIBUTING.md": "contributing", "notebooks/HOME.md": "course-map"}
    if path in named:
        return named[path]
    file = PurePosixPath(path)
    if file.parent == PurePosixPath("docs") and file.suffix == ".md":
        return file.stem.lower()
    if path in {f"notebooks/{exercise.notebook_name}" for exercise in exercises_in(root())}:
        return path.removesuffix(".ipynb")
    if file.name == "README.md" and file.parts[0] == "templates":
        return f"phases/{file.parent.name}"
    if any(fnmatch(path, pattern) for pattern in NEVER):
        return None
    if file.suffix in (".py", ".toml", ".js", ".yaml", ".md") and (file.parts[0] in SOURCES or len(file.parts) == 1):
        return f"source/{path}"
    return None


def rewrite(text: str, path: str, page: str, linked: Callable[[str], None] = lambda path: None) -> str:
    """Return the Markdown of the repository file `path` with links that hold on the site's `page`.

    A link to a file without a page becomes its text. `linked` is called with each repository path that gets a link.
    """

    def link(match: re.Match[str]) -> str:
        picture, label, target = match.groups()
        address, hash_, anchor = target.partition("#")
        if "://" in target or target.startswith("mailto:") or not address:
            return match[0]
        there = os.path.normpath(os.path.join(os.path.dirname(path), address))
        if picture:
            return f"![{label}]({_relative(f'images/{os.path.basename(there)}', page)})"
        page_path = place(there)
        if page_path is None:
            return label
        if page_path.startswith("source/") and not (root() / there).is_file():
            return label
        linked(there)
        if page_path.startswith("source/"):
            return f"[{label}](<{HERE}:{_relative(page_path, page)}.html>)"
        suffix = ".ipynb" if page_path.startswith("notebooks/") else ".md"
        return f"[{label}]({_relative(page_path, page)}{suffix}{hash_}{anchor})"

    parts = _FENCE.split(text)  # code stays as it is
    return "".join(part if at % 2 else _LINK.sub(link, part) for at, part in enumerate(parts))


def _relative(target: str, page: str) -> str:
    return os.path.relpath(target, os.path.dirname(page) or ".").replace(os.sep, "/")
