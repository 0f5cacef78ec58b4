"""What differs from the last commit that `./lab test` passed on, by git."""

from __future__ import annotations

import subprocess
from pathlib import Path


class Checkout:
    """A git checkout; without git, one whose changes are unknown."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def files(self) -> list[str] | None:
        """Paths of the files that git follows, and of new ones that it does not ignore; None without git."""
        listed = self._git("ls-files", "-z", "--cached", "--others", "--exclude-standard")
        if listed is None:
            return None
        return sorted(path for path in set(listed.split("\0")) if (self._root / path).is_file())

    def changed_since(self, commit: str) -> list[str] | None:
        """Paths of files that differ from this commit, committed or not; None if the history does not have it."""
        if self._git("merge-base", "--is-ancestor", commit, "HEAD") is None:
            return None
        changed = self._git("diff", "--name-only", "--no-renames", "-z", commit)
        new = self._git("ls-files", "-z", "--others", "--exclude-standard")
        return None if changed is None or new is None else sorted({*changed.split("\0"), *new.split("\0")} - {""})

    def commit(self) -> str | None:
        """The commit whose files these are; None where they differ from it, or without git."""
        clean = self._git("status", "--porcelain") == ""
        return (self._git("rev-parse", "HEAD") or "").strip() or None if clean else None

    def _git(self, *arguments: str) -> str | None:
        """What git prints; None where it fails or is missing."""
        try:
            done = subprocess.run(["git", "-C", self._root, *arguments], capture_output=True, text=True)
        except OSError:
            return None
        return done.stdout if done.returncode == 0 else None
