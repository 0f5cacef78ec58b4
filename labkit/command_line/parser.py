"""The parser of every command: one-line errors that suggest what was meant, `--version`, arguments added on demand."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from typing import Any, NoReturn


class CommandParser(argparse.ArgumentParser):
    """A parser of arguments; a wrong one is answered by one line and exit status 2.

    fill: adds the arguments when the command is chosen, where that takes imports that other commands do without.
    With a default for `passed_on`, unknown arguments are for another program: `passed_on` in the root's options.
    """

    def __init__(self, *args: Any, fill: Callable[[CommandParser], None] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._fill = fill
        self._missing_commands = ""
        self.add_argument("--version", action=_Version, nargs=0, help="print the version of the lab and exit")

    def fill(self) -> None:
        """Add the arguments that were left for later."""
        fill, self._fill = self._fill, None
        if fill is not None:
            fill(self)

    def commands(self) -> dict[str, CommandParser]:
        """Return the commands that it takes, by name; empty if it is a command itself."""
        self.fill()
        return {
            name: parser
            for action in self._actions
            if isinstance(action, argparse._SubParsersAction)
            for name, parser in action.choices.items()
        }

    def explain_unknown_commands(self, reason: str) -> None:
        """Give the reason why some commands are missing to whoever asks for an unknown one."""
        self._missing_commands = reason

    # argparse declares overloads, which differ in the namespace's type alone
    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self.fill()
        if args is not None and self.get_default("passed_on") is None:
            self._require_known_options(args)
        found, more = super().parse_known_args(args, namespace)
        if more and not hasattr(found, "passed_on"):
            self.error(f"unknown argument {more[0]}")
        return found, more

    def error(self, message: str) -> NoReturn:
        """Print the message and how to get help, on one line, and exit with 2."""
        text = " ".join(message.split())
        self.exit(2, f"{self.prog}: {text}{'' if text.endswith('?') else f'; {self.prog} --help explains'}\n")

    def suggestion(self, option: str) -> str:
        """Return `; did you mean --gpus?` for an unknown option; empty if none is similar."""
        return did_you_mean(option.partition("=")[0], self._shown_options())

    def _require_known_options(self, words: Sequence[str]) -> None:
        """Refuse an unknown option before arguments that are missing: the missing one may be the misspelt one."""
        has_commands = any(isinstance(action, argparse._SubParsersAction) for action in self._actions)
        known = [option for action in self._actions for option in action.option_strings]
        for word in words:
            if word == "--" or (has_commands and not word.startswith("-")):
                return
            name = word.partition("=")[0]
            if not name.startswith("--") or " " in name or name in known:
                continue
            if not (self.allow_abbrev and any(option.startswith(name) for option in known)):
                self.error(f"unknown option {name}{self.suggestion(name)}")

    def _shown_options(self) -> list[str]:
        return [
            option
            for action in self._actions
            if action.help != argparse.SUPPRESS
            for option in action.option_strings
            if option.startswith("--")
        ]

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a value that is no choice, and suggest one. argparse has no public place for this."""
        if action.choices is None or value in action.choices:
            return
        near = did_you_mean(str(value), map(str, action.choices))
        choices = ", ".join(map(str, action.choices))
        if isinstance(action, argparse._SubParsersAction):
            missing = f"; {self._missing_commands}" if self._missing_commands else ""
            self.error(f"unknown command {value!r}{missing}{near or f'; there are: {choices}'}")
        raise argparse.ArgumentError(action, f"invalid choice: {value!r} (choose from {choices}){near}")


_OTHER_NAMES = {"--output": "--to", "--out": "--to"}
"""Options of other programs, and what they are called here."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean check?`; empty if no known word is similar or means the same."""
    words = list(known)
    named = [_OTHER_NAMES[word]] if _OTHER_NAMES.get(word) in words else []
    near = named or difflib.get_close_matches(word, words, n=1, cutoff=0.7)
    return f"; did you mean {near[0]}?" if near else ""


class _Version(argparse.Action):
    """Prints the version; looked up only then."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(f"labkit {metadata.version('labkit')}")
        parser.exit()
