"""DeepSpeed's configuration as a file, checked at the launch: an error names its line."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from labkit.command_line.commands import CommandError, require_file
from labkit.course.phase3_multi_node.zero.given.deepspeed_config import require_deepspeed_config
from labkit.text_files import UnreadableText, read_text


def require_deepspeed_file(file: Path) -> None:
    """Raise `CommandError` for what DeepSpeed would ignore or refuse in every case; it validates the rest on ranks."""
    require_file(file)
    try:
        text = read_text(file)
        require_deepspeed_config(json.loads(text))
    except json.JSONDecodeError as error:
        raise CommandError(f"{file}, line {error.lineno}: this is not JSON: {error.msg}") from None
    except UnreadableText as error:
        raise CommandError(f"{file}: {error}") from None
    except ValueError as error:
        # the message quotes keys from the outermost to the innermost, then the value
        line = _line_of(text, re.findall(r"'([^']*)'", str(error)))
        raise CommandError(f"{file}, line {line}: {error}") from None


def _line_of(text: str, words: Sequence[str]) -> int:
    """Line of the last of those words of a JSON text that follow each other, from 1."""
    place = 0
    for word in words:
        position = text.find(json.dumps(word), place)
        if position < 0:
            break
        place = position
    return text.count("\n", 0, place) + 1
