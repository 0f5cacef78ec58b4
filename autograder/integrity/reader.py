"""The process that parses learners' text: `python -m autograder.integrity.reader`. Started by `workers`.

A text that takes too long or too much memory ends this process and nothing else. One JSON object per line, both ways:
`{"source": ..., "forbidden": [...]}` in, a `Reading` out.
"""

from __future__ import annotations

import ast
import io
import json
import resource
import signal
import sys
import tokenize
import warnings
from typing import Any

from autograder.integrity.fingerprints import grams
from autograder.integrity.normal import normalised
from autograder.integrity.reach import reaches

MEMORY = 1 << 30
SECONDS = 10
MIN_COMMENT = 12
"""Minimum length of comments that are compared; shorter ones are too common."""


def read(source: str, forbidden: frozenset[str]) -> dict[str, Any]:
    """Return the parts of one module that are compared and searched. Never raises because of its text."""
    reading: dict[str, Any] = {"grams": [], "lines": [], "reaches": [], "comments": [], "problem": ""}
    try:
        tree = ast.parse(source)
        reading["reaches"] = [[reach.rule, reach.line, reach.what] for reach in reaches(tree, forbidden)]
        reading["comments"] = _comments(source)
        for unit in normalised(tree):
            reading["grams"].append(grams([word for word, _ in unit]))
            reading["lines"].append([line for _, line in unit])
    except SyntaxError as error:
        where = f" at line {error.lineno}" if error.lineno else ""
        reading["problem"] = f"syntax error{where}: {error.msg}"
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        reading["problem"] = {
            RecursionError: "nested too deeply",
            MemoryError: "nested too deeply, or too large",
        }.get(type(error), f"not Python: {str(error)[:100]}")
    return reading


def _comments(source: str) -> list[list[Any]]:
    """Return `[line, text]` of each comment long enough to be original."""
    try:
        return [
            [token.start[0], text]
            for token in tokenize.generate_tokens(io.StringIO(source).readline)
            if token.type == tokenize.COMMENT and len(text := " ".join(token.string.lstrip("#").split())) >= MIN_COMMENT
        ]
    except (tokenize.TokenError, SyntaxError):
        return []


def main() -> None:
    """Read texts until there are no more."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("ignore")  # about the learner's text, such as an odd escape in a string
    for line in sys.stdin:
        request = json.loads(line)
        signal.alarm(SECONDS)
        answer = json.dumps(read(request["source"], frozenset(request["forbidden"])))
        signal.alarm(0)
        sys.stdout.write(answer + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
