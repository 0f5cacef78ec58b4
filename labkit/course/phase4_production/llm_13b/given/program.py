"""The language model as a program: it trains, or it generates text from, evaluates or exports a checkpoint."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from labkit.course.phase4_production.llm_13b.given import command, from_checkpoint


def main(llm_13b: Any, words: Sequence[str] | None = None) -> Any:
    """Do what the words say, by default those of the shell: see `command.main` and `from_checkpoint.main`.

    llm_13b: the module of exercise 26.
    """
    words = sys.argv[1:] if words is None else words
    if words and words[0] in from_checkpoint.VERBS:
        return from_checkpoint.main(llm_13b, words)
    return command.main(llm_13b, words)
