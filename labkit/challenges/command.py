"""`labkit challenge`: list the challenges, write a template, score an entry beside the course's own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from labkit.challenges import sending
from labkit.challenges.challenge import BOUND, CHALLENGES, Challenge, Outcome, Row, find, table
from labkit.command_line.commands import CommandError, require_file
from labkit.text_files import UnreadableText, read_text


def main(name: str | None, file: Path | None, new: Path | None, traces: Path | None, seed: int | None) -> int:
    """Run the command. Exit status 1: the entry does not count. Raises `CommandError` for wrong arguments.

    new: where to write the template. seed: of instances of the same family; None: the published ones. traces: folder
    for the traces of the entry; None: beside the file.
    """
    if name is None:
        return _list()
    challenge = _found(name)
    if new is not None:
        return _write_template(challenge, new)
    if file is None:
        return _show(challenge, seed)
    require_file(file)
    return _score(challenge, file, traces or file.with_name(f"{file.stem}-traces"), seed)


def send(name: str, file: Path, pseudonym: str) -> int:
    """Send an entry to the standings of the course on this hub. Raises `CommandError`."""
    print(sending.send(_found(name).name, file, pseudonym))
    return 0


def withdraw(name: str) -> int:
    """Withdraw the learner's entries from the standings of the course on this hub. Raises `CommandError`."""
    print(sending.withdraw(_found(name).name))
    return 0


def _found(name: str) -> Challenge:
    try:
        return find(name)
    except ValueError as error:
        raise CommandError(str(error)) from None


def _list() -> int:
    width = max(len(challenge.name) for challenge in CHALLENGES)
    for challenge in CHALLENGES:
        print(f"{challenge.name:{width}}  {challenge.title}")
    example = CHALLENGES[0].name
    print(
        f"\n`labkit challenge {example}` shows its standings; `labkit challenge {example} --new mine.py` writes a file"
    )
    print(f"to begin with, and `labkit challenge {example} mine.py` scores it. docs/challenges.md has the rules.")
    return 0


def _standings(challenge: Challenge, seed: int | None) -> list[Row]:
    """Return the recorded rows; for drawn instances there is only the bound."""
    return challenge.standings() if seed is None else [Row(BOUND, challenge.load().bounds(seed))]


def _show(challenge: Challenge, seed: int | None) -> int:
    print(challenge.title + "\n")
    print("\n".join(f"  {line}" for line in challenge.load().instances(seed)) + "\n")
    print("\n".join(table(challenge, _standings(challenge, seed))))
    print(f"\nbegin with `labkit challenge {challenge.name} --new mine.py`")
    return 0


def _write_template(challenge: Challenge, path: Path) -> int:
    if not path.parent.is_dir():
        raise CommandError(f"there is no folder {path.parent} for {path.name}")
    try:
        with path.open("x") as file:
            file.write(challenge.load().TEMPLATE)
    except FileExistsError:
        raise CommandError(f"{path} exists, and is left as it is: give another name") from None
    print(f"written: {path}; score it with `labkit challenge {challenge.name} {path}`")
    return 0


def _score(challenge: Challenge, file: Path, traces: Path, seed: int | None) -> int:
    try:
        source = read_text(file)
    except UnreadableText as problem:
        raise CommandError(f"{file}: {problem}") from None

    def advance(text: str) -> None:
        print(f"running: {text}", file=sys.stderr)

    outcomes = challenge.load().measure(source, file.stem, advance, seed)
    for outcome in outcomes:
        for line in outcome.notes:
            print(f"{outcome.instance}: {line}")
    _keep(outcomes, traces)
    faults = [outcome for outcome in outcomes if outcome.fault]
    for outcome in faults:
        print(f"\n{outcome.instance}: it does not count\n{outcome.fault}")
    if faults:
        return 1
    own = Row(f"yours: {file.name}", {outcome.instance: outcome.value for outcome in outcomes})
    print("\n" + "\n".join(table(challenge, [*_standings(challenge, seed), own])))
    return 0


def _keep(outcomes: Sequence[Outcome], folder: Path) -> None:
    from labkit.trace.perfetto import write_perfetto

    kept = [outcome for outcome in outcomes if outcome.trace is not None]
    for outcome in kept:
        assert outcome.trace is not None
        write_perfetto(outcome.trace, folder / f"{outcome.instance.replace(' ', '-')}.json")
    if kept:
        print(f"traces for https://ui.perfetto.dev: {folder}/*.json")
