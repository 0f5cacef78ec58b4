"""A program: tries each command of the shell in a fork of its own, and prints what happened as JSON.

It imports no more than the command itself does at its start, so that what a trial imports can be seen.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from labkit import cli
from labkit.command_line.parser import CommandParser

VALUES = {
    "EXERCISE": "ring_allreduce",
    "PHASE": "phase1_data_parallel",
    "FILE": __file__,
    "NOTEBOOK": __file__,
    "METRICS": __file__,
    "LOGDIR": os.path.dirname(__file__),
    "model": "gpt-1.3b",
    "cluster": "a100x8",
    "seed": "1",
}
"""Values of required arguments, by metavar or name; `x` for others."""
ALSO = {
    "labkit tune": ["--model", "gpt-1.3b"],
    "labkit new-exercise": ["--check"],
    "labkit launch": [__file__],
}
"""Arguments without which a command is refused, though each of them may be left out."""


def leaves(parser: CommandParser) -> Iterator[CommandParser]:
    """Yield the parsers of commands that have no commands below them."""
    inner = parser.commands()
    if not inner:
        yield parser
    for below in inner.values():
        yield from leaves(below)


def valid(parser: CommandParser) -> list[str]:
    """Arguments that the command accepts."""
    words: list[str] = []
    grouped = [group._group_actions[0] for group in parser._mutually_exclusive_groups if group.required]
    for action in parser._actions:
        is_needed = action.required if action.option_strings else action.nargs not in ("?", "*")
        if not is_needed and action not in grouped:
            continue
        value = VALUES.get(str(action.metavar), VALUES.get(action.dest, "x"))
        if action.choices:
            value = str(next(iter(action.choices)))
        words += [*action.option_strings[-1:], value]
    return words + ALSO.get(parser.prog, [])


def try_out(words: list[str], interrupt: bool = False) -> dict[str, Any]:
    """Run a command in a fork. interrupt: Ctrl-C at its first import of the lab's after its arguments are read."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        pid = os.fork()
        if pid == 0:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            status = _run(words, interrupt)
            if "torch" in sys.modules:
                print("torch was imported", file=sys.stderr)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        out.seek(0)
        err.seek(0)
        return {"words": words, "status": status, "out": out.read(), "err": err.read()}


def _run(words: list[str], interrupt: bool) -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if interrupt:
        sys.addaudithook(_interrupts)
    try:
        return cli.main(words)
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:
        import traceback

        traceback.print_exc()
        return 1


def _interrupts(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "import" and arguments[0].startswith(("labkit.", "autograder.")):
        os.kill(os.getpid(), signal.SIGINT)


def trials(parser: CommandParser) -> dict[str, Any]:
    """Try one command in all ways."""
    words = parser.prog.split()[1:]
    shown = [
        {"name": (action.option_strings or [action.metavar or action.dest])[-1], "help": action.help,
         "is_path": action.type is Path and bool(action.option_strings)}
        for action in parser._actions
        if action.help != argparse.SUPPRESS
    ]  # fmt: skip
    long = [option["name"] for option in shown if str(option["name"]).startswith("--")]
    last = str(long[-1])
    accepted = valid(parser)
    # `launch` has a default, too, but refuses them itself
    passes_on = parser.get_default("passed_on") is not None and words != ["launch"]
    made: dict[str, Any] = {
        "help": try_out([*words, "--help"]),
        "version": try_out([*words, "--version"]),
        "interrupted": try_out([*words, *accepted], interrupt=True),
        "shown": shown,
    }
    if not passes_on:
        made["misspelt"] = try_out([*words, *accepted, f"{last}x"]) | {"meant": last}
    if len(accepted) > len(ALSO.get(parser.prog, [])):
        made["incomplete"] = try_out(words)
    return made


if __name__ == "__main__":
    found = {}
    for command in leaves(cli.parser()):
        found[command.prog] = trials(command)
    print(json.dumps(found))
