"""The image classifier as a program: it trains, or it evaluates or exports a checkpoint."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from labkit.course.phase4_production.image_classification.given import command, from_checkpoint


def main(process_group: Any, trainer: Any, image_trainer: Any, words: Sequence[str] | None = None) -> dict[str, Any]:
    """Do what the words say, by default those of the shell: see `command.main` and `from_checkpoint.main`."""
    words = sys.argv[1:] if words is None else words
    chosen = from_checkpoint.main if words and words[0] in from_checkpoint.VERBS else command.main
    return chosen(process_group, trainer, image_trainer, words)
