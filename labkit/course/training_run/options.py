"""Options that all training programs have, and how wrong ones are refused: in one line, with exit status 2."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from labkit.command_line.parser import did_you_mean
from labkit.course.arguments import Rule, integer

WRONG_ARGUMENTS = 2
"""Exit status of a program that was called in a wrong way, as argparse's."""


KEEP = 3
"""Number of checkpoints that stay by default."""


class RunRefused(ValueError):
    """The program cannot begin as it was called; the message says in one line why, and what to do."""


def refuse(text: str) -> NoReturn:
    """End the program with exit status 2; the first rank of each node prints the line."""
    if os.environ.get("LOCAL_RANK", os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", "0")) == "0":
        refuse_on_this_rank(text)
    raise SystemExit(WRONG_ARGUMENTS)


def refuse_on_this_rank(text: str) -> NoReturn:
    """End the program with exit status 2 for a reason that other ranks may not have; print the line."""
    print(text, file=sys.stderr, flush=True)
    raise SystemExit(WRONG_ARGUMENTS)


class ProgramParser(argparse.ArgumentParser):
    """Parser of a program that runs on ranks."""

    # argparse declares overloads, which differ in the namespace's type alone
    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse an unknown option before arguments that are missing: the missing one may be the misspelt one."""
        known = [option for action in self._actions for option in action.option_strings]
        for word in sys.argv[1:] if args is None else args:
            name = word.partition("=")[0]
            if name[:2] == "--" and not any(option.startswith(name) for option in known):
                self.error(f"unknown option {name}{did_you_mean(name, known)}")
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Refuse the arguments in one line."""
        refuse(f"{self.prog}: {message} (--help shows all options)")


def checked(convert: Callable[[str], Any], rule: Rule) -> Callable[[str], Any]:
    """Return a type for argparse: a text that `convert` reads, int or float, and whose value follows the rule."""

    def read(text: str) -> Any:
        value = convert(text)
        if not rule.fits(value):
            raise argparse.ArgumentTypeError(f"must {rule.text}, got {text}")
        return value

    read.__name__ = getattr(convert, "__name__", "value")  # argparse: invalid int value: 'many'
    return read


def add_run_options(add: Callable[..., Any]) -> None:
    """Add the options for folders and the console by a parser's `add_argument`."""
    add("--checkpoint-dir", default=None, help="a folder that all nodes share, or an address of fsspec")
    keep = checked(int, integer(at_least=1))
    add("--keep", type=keep, default=KEEP, metavar="N", help="newest checkpoints that stay, beside the best one")
    resume = "from the latest checkpoint in --checkpoint-dir; from the start if there is none"
    add("--resume", action="store_true", help=resume)
    add("--overwrite", action="store_true", help="delete the checkpoints and logs of an earlier run in these folders")
    add("--log-file", default=None, metavar="FILE", help="the console's lines as JSON lines, of the first rank")


def require_run_options(options: argparse.Namespace) -> None:
    """Raise `RunRefused` for options of `add_run_options` that do not go together."""
    if options.resume and options.checkpoint_dir is None:
        raise RunRefused("--resume needs --checkpoint-dir")
    if options.resume and options.overwrite:
        raise RunRefused("--resume goes on with what --overwrite deletes: give one of them")
    if options.keep != KEEP and options.checkpoint_dir is None:
        raise RunRefused("--keep needs --checkpoint-dir")


def is_restart() -> bool:
    """Return whether torchrun's agent, or that of the lab, has started these ranks anew after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def may_restart() -> bool:
    """Return whether torchrun's agent, or that of the lab, starts these ranks anew after a failure."""
    return int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0
