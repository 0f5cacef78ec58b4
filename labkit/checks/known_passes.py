"""Earlier exercises' modules that are known to pass their visible checks, so that no session runs those again.

A later exercise builds on a learner's module only if it passes. The first check of a session would otherwise run the
checks of every exercise before: for `zero` they take longer than its own.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib

import torch

from labkit.catalogue import code_folders
from labkit.checks.ranks import Submission
from labkit.checks.rubric import visible_path
from labkit.progress import recorded, save_pass


def is_known_to_pass(submission: Submission) -> bool:
    """Return whether this module, with the modules that it builds on, has passed the checks that are installed now."""
    return _fingerprint(submission) in recorded(submission.exercise).passes


def remember_pass(submission: Submission) -> None:
    """Record that this module passes. A workspace that cannot be written forgets it, which costs time only."""
    with contextlib.suppress(OSError):
        save_pass(submission.exercise, _fingerprint(submission))


def _fingerprint(submission: Submission) -> str:
    """Return a digest of all that decides whether it passes: the modules' text, the checks, and what runs them.

    Blank lines around a module do not matter: a notebook's cell leaves one at its head, where its magic was.
    """
    digest = hashlib.sha256(_installed().encode())
    digest.update(visible_path(submission.exercise).read_bytes())
    for name, text in submission.modules.items():
        digest.update(f"\0{name}\0{text.strip()}".encode())
    return digest.hexdigest()


@functools.lru_cache(maxsize=1)
def _installed() -> str:
    """Return torch's version, and size and time of each file of labkit: reading them all would take longer."""
    files = [file for folder in code_folders() for file in sorted(folder.rglob("*.py"))]
    facts = [(file, file.stat()) for file in files]
    return "\n".join([torch.__version__, *(f"{file} {fact.st_size} {fact.st_mtime_ns}" for file, fact in facts)])
