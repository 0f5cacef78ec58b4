"""Parse a magic's line with argparse; errors are reported in one line, as a `UsageError`."""

from __future__ import annotations

import argparse
import difflib
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from IPython.core.completer import (
    CompletionContext,
    SimpleCompletion,
    SimpleMatcherResult,
    context_matcher,
)
from IPython.core.error import UsageError
from IPython.core.magic_arguments import MagicArgumentParser

from labkit import catalogue
from labkit.checks import NoRubric
from labkit.clusters import InvalidJob
from labkit.questions import UnknownQuestion

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_BEFORE_OTHERS = 10_000.0
"""Priority among IPython's sources of completions: names of Python mean nothing on a magic's line."""


class Magic:
    """A magic: its name, its options, and its function.

    run(shell, options, cell): its return value is the cell's result. `cell` is empty for a line magic.
    words: completions for the Tab key, in addition to the options.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[InteractiveShell, argparse.Namespace, str], Any],
        description: str,
        kind: Literal["line", "cell"] = "line",
        words: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self.title = ("%%" if kind == "cell" else "%") + name
        self.kind = kind
        self.name = name
        self.words = words
        self._run = run
        self._parser = _Parser(self.title[1:], description=description)  # type: ignore[no-untyped-call]  # IPython's is untyped
        self.option = self._parser.add_argument

    def register(self, shell: InteractiveShell) -> None:
        """Register it in `shell`, with its help and its completions."""

        def magic(line: str, cell: str = "") -> Any:
            with _without_traceback():
                return self._run(shell, self._parser.parse_line(line), cell)

        magic.__doc__ = self._parser.format_help()
        magic.__name__ = self.name
        shell.magics_manager.register_function(magic, magic_kind=self.kind, magic_name=self.name)
        identifier = f"labkit {self.title}"
        complete = context_matcher(identifier=identifier, priority=_BEFORE_OTHERS)(
            lambda context: self._complete(context)  # a bound method takes no attributes
        )
        matchers = shell.Completer.custom_matchers
        matchers[:] = [known for known in matchers if getattr(known, "matcher_identifier", "") != identifier]
        matchers.append(complete)

    def _complete(self, context: CompletionContext) -> SimpleMatcherResult:
        before = context.text_until_cursor.removesuffix(context.token).split()
        if before[:1] != [self.title] or (self.kind == "cell" and context.cursor_line > 0):
            return {"completions": []}
        offered = self._parser.option_names() if context.token.startswith("-") else self.words()
        completions = [SimpleCompletion(word, type="magic") for word in offered if word.startswith(context.token)]
        # without any, others may offer theirs: after an option, the names of files
        return {"completions": completions, "suppress": True}


class _Parser(MagicArgumentParser):
    """argparse that never exits; options may also be spelled with `_`, as in torchrun."""

    def parse_line(self, line: str) -> argparse.Namespace:
        try:
            words = [_dashed(word) for word in shlex.split(_without_comment(line))]
        except ValueError as error:  # an unclosed quotation mark
            self.error(str(error).lower())
        options, unknown = self.parse_known_args(words)
        for word in unknown:
            self._unknown(word)
        assert isinstance(options, argparse.Namespace)
        return options

    def option_names(self) -> list[str]:
        return [name for action in self._actions if action.help != argparse.SUPPRESS for name in action.option_strings]

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"%{self.prog}: {message.removeprefix('argument ')}")

    def _unknown(self, word: str) -> NoReturn:
        if not word.startswith("-"):
            self.error(f"unexpected argument {word!r}")
        written, names = word.split("=")[0], self.option_names()
        near = [name for name in names if name.startswith(written[:7])] if len(written) > 6 else []
        near = near or difflib.get_close_matches(written, names, n=2, cutoff=0.6)
        offer = f"did you mean {' or '.join(near)}?" if near else f"available: {', '.join(self.option_names())}"
        self.error(f"unknown option {word}; {offer}")


_BEFORE_COMMENT = re.compile(r"""(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^#'"\\]|(?<=\S)#)*""")
"""A line up to its comment. As in a shell, a # within quotes or within a word does not start a comment."""


def _without_comment(line: str) -> str:
    before = _BEFORE_COMMENT.match(line)
    assert before is not None
    return before[0] if line[before.end() :].startswith("#") else line


def _dashed(word: str) -> str:
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value


@contextmanager
def _without_traceback() -> Iterator[None]:
    """Report requests that cannot be met in one line, without a traceback."""
    try:
        yield
    except (
        InvalidJob,
        NoRubric,
        catalogue.UnknownExercise,
        catalogue.MissingModule,
        catalogue.WrongCatalogue,
        UnknownQuestion,
    ) as error:
        raise UsageError(str(error)) from None


def variable(text: str) -> str:
    """Parse the name of a variable."""
    if not text.isidentifier():
        raise argparse.ArgumentTypeError(f"expected the name of a variable, got {text!r}")
    return text


def exercise_names() -> list[str]:
    """Short names of all exercises, for the Tab key."""
    return [exercise.short_name for exercise in catalogue.all_exercises()]
