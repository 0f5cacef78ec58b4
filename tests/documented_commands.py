"""Commands of the documentation, and their real parsers: each command is read as it would be, and nothing is run."""

from __future__ import annotations

import argparse
import functools
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from traitlets.config import Application

from labkit.cli import main
from labkit.command_line.parser import CommandParser
from labkit.launch.options import parse as launch_options

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "templates").glob("*/README.md")),
    *sorted((ROOT / "cluster").glob("*/README.md")),
]
OURS = ("./lab", "labkit", "python", ".venv/bin/jupyter", "nbgrader", "jupyter")
ELSEWHERE = {
    "podman": "tests/sites/test_containers.py and test_image.py run the steps of the same files",
    "sudo": "tests/sites/test_image.py and test_compose.py run what follows",
    "kubectl": "tests/clusters/kubernetes runs kubectl on the same folders",
    "enroot": "in no package registry: docs/sites.md lists it as not run",
    "sbatch": "tests/clusters/slurm/test_site_slurm.py submits the same file",
    "pip": "installs from a registry",
    "source": "the shell's own",
    "cd": "the shell's own",
    "mkdir": "the shell's own",
    "cp": "the shell's own",
}
"""First words of commands that are not ours, and why they are not parsed here."""


@dataclass(frozen=True)
class Command:
    """A command as a page has it."""

    text: str
    page: str
    whole: bool
    """It is a line of a block; a command in a sentence may lack arguments."""


def commands() -> list[Command]:
    """All commands of all pages, each once."""
    found: dict[str, Command] = {}
    for page in PAGES:
        for command in _of_page(page):
            if command.text not in found or command.whole:
                found[command.text] = command
    return sorted(found.values(), key=lambda command: command.text)


def _of_page(page: Path) -> Iterator[Command]:
    text = page.read_text()
    name = page.relative_to(ROOT).as_posix()
    first = "|".join(map(re.escape, (*OURS, *ELSEWHERE)))
    fenced = re.findall(r"^```(?:sh|bash)?\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    indented = re.findall(r"^(?: {4}| {7})(?! )(?:.*\\\n)*.*", text, re.MULTILINE)
    for block in (*fenced, *indented):
        for line in block.replace("\\\n", " ").splitlines():
            for part in line.partition(" # ")[0].split("&&"):
                if re.match(rf"(?:[A-Z_]+=\S+ )*(?:{first})(?= [^ ]|\s*$)", part.strip()):
                    yield Command(" ".join(part.split()), name, whole=True)
    without = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    ours = "|".join(map(re.escape, OURS))
    for words in re.findall(rf"(?<!`)`((?:[A-Z_]+=\S+ )*(?:{ours}) [^`]+)`", without):
        yield Command(" ".join(words.split()), name, whole=False)


class Parsed(BaseException):
    """The command was understood; it would run now."""


def parse(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the command by its own parser. Raises AssertionError with the parser's words if it does not understand."""
    words = shlex.split(command.text)
    while re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    program, *words = words
    with monkeypatch.context() as patch:
        if program == "./lab":
            _lab(command, words, patch)
        elif program == "labkit" and words[:1] == ["launch"]:
            _launch(command, words[1:])
        elif program == "labkit":
            _stop_when_parsed(command, patch, lambda: main(words))
        elif program == "python":
            _python(command, words, patch)
        else:
            _application(Path(program).name, words)


def _launch(command: Command, words: list[str]) -> None:
    try:
        assert words or not command.whole, command
        if words:
            launch_options(words)
    except SystemExit:
        raise AssertionError(f"{command}: labkit launch does not understand it") from None


def _lab(command: Command, words: list[str], patch: pytest.MonkeyPatch) -> None:
    if words[:1] == ["--system-torch"]:
        words = words[1:]
    if words[0] == "start":  # its arguments are JupyterLab's
        return _application("lab", words[1:])
    if words[0] != "test":
        return _stop_when_parsed(command, patch, lambda: main(words))
    # of pytest's own arguments the docs have paths and -k WORD
    usage = _usage_of_lab()
    skip = False
    for word in words[1:]:
        # after these comes a value
        is_option = word == "-k" or (word.startswith("--") and re.search(rf"\[{word}[ \]]|test {word} ", usage))
        known = skip or is_option or (ROOT / word.partition("::")[0]).exists()
        assert known or f"./lab test {word}" in usage, f"{command}: {word}"
        skip = word in ("-k", "--shard", "--busy")


@functools.cache
def _usage_of_lab() -> str:
    return subprocess.run([ROOT / "lab", "--help"], capture_output=True, text=True, check=True).stdout


def _python(command: Command, words: list[str], patch: pytest.MonkeyPatch) -> None:
    if words[0] == "-c":
        compile(words[1], command.text, "exec")
        return
    if words[0] == "train.py":  # the reader's own program
        return
    module = words[0] == "-m"
    name, *arguments = words[1:] if module else words
    path = ROOT / (f"{name.replace('.', '/')}.py" if module else name)
    if module and not path.is_file():
        path = path.with_suffix("") / "__main__.py"
    assert path.is_file(), f"{command}: there is no {path.relative_to(ROOT)}"
    patch.setattr(sys, "argv", [str(path), *arguments])
    patch.syspath_prepend(str(path.parent))
    if "argparse" not in path.read_text() and "page_tables.main" not in path.read_text():
        assert not arguments, f"{command}: {path.name} takes no arguments"
        return
    _stop_when_parsed(command, patch, lambda: runpy.run_path(str(path), run_name="__main__"))


def _stop_when_parsed(command: Command, patch: pytest.MonkeyPatch, run: Callable[[], Any]) -> None:
    """Let the outermost parser of the program end it as soon as it has understood its arguments."""
    parse_args, parse_known = argparse.ArgumentParser.parse_args, argparse.ArgumentParser.parse_known_args
    inside = False

    def known(self: argparse.ArgumentParser, args: Any = None, namespace: Any = None) -> Any:
        nonlocal inside
        if inside:
            return parse_known(self, args, namespace)
        inside = True
        found, more = parse_known(self, args, namespace)
        assert not more or hasattr(found, "passed_on"), f"{command}: {more}"
        raise Parsed

    def strictly(self: argparse.ArgumentParser, args: Any = None, namespace: Any = None) -> Any:
        nonlocal inside
        inside = True
        parse_args(self, args, namespace)
        raise Parsed

    def error(self: argparse.ArgumentParser, message: str) -> Any:
        if not command.whole and re.match(
            "the following arguments are required|one of the arguments .* is req", message
        ):
            raise Parsed
        raise AssertionError(f"{command}: {message}")

    patch.setattr(argparse.ArgumentParser, "parse_known_args", known)
    patch.setattr(argparse.ArgumentParser, "parse_args", strictly)
    patch.setattr(argparse.ArgumentParser, "error", error)
    patch.setattr(CommandParser, "error", error)
    try:
        run()
    except Parsed:
        return
    except SystemExit as end:
        assert end.code == 0 and "--help" in command.text, f"{command}: ends with {end.code}"
        return
    raise AssertionError(f"{command}: no parser has read it")


def _application(program: str, words: list[str]) -> None:
    """nbgrader's, nbconvert's and JupyterLab's own parser, of traitlets."""
    if program == "jupyter":
        program, *words = words
    application = _application_class(program)()
    chain: list[Any] = [application]
    try:
        application.parse_command_line(words)
        while (last := chain[-1].subapp) is not None:
            chain.append(last)
        unknown = [name for one in chain for name in one.cli_config if not name[:1].isupper()]
        assert not unknown, f"{program} {' '.join(words)}: {unknown}"
        assert len(chain) > 1 or not application.subcommands or not words or words[0].startswith("-"), words
    finally:
        for one in [*chain, Application]:
            one.clear_instance()


def _application_class(program: str) -> type[Application]:
    if program == "nbgrader":
        from nbgrader.apps import NbGraderApp

        return NbGraderApp  # type: ignore[no-any-return]
    if program == "nbconvert":
        from nbconvert.nbconvertapp import NbConvertApp

        return NbConvertApp
    from jupyterlab.labapp import LabApp

    assert program == "lab", program
    return LabApp  # type: ignore[no-any-return]
