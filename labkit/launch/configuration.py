"""Configuration files: a training run as YAML, checked against the options that it sets.

    program: image_classification
    model: resnet8
    learning_rate: 0.03
    checkpoints: {folder: checkpoints}
    cluster: {kind: slurm, nnodes: 2}

Keys are the options of the program's command and, below `cluster`, those of `labkit launch`, so that there is no second
list of them. Each error names the file and the line.
"""

from __future__ import annotations

import argparse
import difflib
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from labkit import catalogue
from labkit.checks.stand_ins import StandIns
from labkit.checks.working_modules import working_modules
from labkit.clusters import Script, kinds
from labkit.command_line.commands import CommandError, require_file
from labkit.course.phase4_production.image_classification.given import command as image_classification
from labkit.course.phase4_production.llm_13b.given import command as llm_13b
from labkit.course.training_run.options import RunRefused
from labkit.launch.deepspeed_file import require_deepspeed_file
from labkit.launch.programs import Program
from labkit.text_files import UnreadableText, read_text


@dataclass(frozen=True)
class _Command:
    """The command of an exercise."""

    parser: Callable[[], argparse.ArgumentParser]
    require_options: Callable[[argparse.Namespace], None]
    """Raises `RunRefused` for options that do not go together."""
    require_files: Callable[[argparse.Namespace], None]
    """The same for data and folders of this machine."""
    source: str
    """Program that runs it."""


PROGRAMS: Mapping[str, _Command] = {
    "image_classification": _Command(
        image_classification.parser,
        image_classification.require_options,
        image_classification.require_files,
        "from labkit import exercises\n\nexercises.image_classification.main()\n",
    ),
    "llm_13b": _Command(
        llm_13b.parser,
        llm_13b.require_options,
        llm_13b.require_files,
        "from labkit import exercises\nfrom labkit.course.phase4_production.llm_13b.given import command\n\n"
        "command.main(exercises.llm_13b)\n",
    ),
}
"""Exercises with a command."""
_OTHER_NAMES = {
    "learning_rate": "lr",
    "precision": "mixed_precision",
    "checkpoints.folder": "checkpoint_dir",
    "checkpoints.minutes": "checkpoint_minutes",
    "checkpoints.steps": "checkpoint_steps",
    "checkpoints.resume": "resume",
    "log_folder": "log_dir",
    "parallel.tensor": "tensor_parallel",
    "parallel.pipeline": "pipeline_parallel",
    "parallel.zero": "zero",
}
"""Keys whose names differ from the command's options."""
_OTHER_VALUES = {("precision", "fp32"): "no"}
"""Values that differ, too: a bare `no` means False in YAML."""

_OF_SHELL = ("version", "config", "module", "save", "force", "print_command", "dry_run", "detach", "array")
"""Options of `labkit launch` that a file does not take."""


@dataclass(frozen=True)
class Configuration:
    """Contents of a configuration file."""

    exercise: str
    """Short name of the exercise whose command runs."""
    cluster: Mapping[str, Sequence[str]]
    """Options of `labkit launch` as words, by their names in Python."""
    arguments: Sequence[str]
    """Options of the command."""

    def launch_words(self, kind: str | None) -> list[str]:
        """Return the options of `labkit launch`, without those that `kind` does not take; None: the file's kind."""
        options = kinds.options()
        return [
            word
            for name, words in self.cluster.items()
            if kind is None or name not in options or kind in options[name][1]
            for word in words
        ]

    def program(self, arguments: Sequence[str]) -> Program:
        """Return the program; `arguments` come after those of the file, and override them."""
        script = Script((self.exercise, *self.arguments, *arguments), os.getcwd())
        return Program(PROGRAMS[self.exercise].source, f"{self.exercise} by labkit launch", script)

    def saved_program(self, name: str, arguments: Sequence[str]) -> tuple[Program, StandIns]:
        """Return a program that holds its modules, so that it needs labkit alone, and whose modules they are.

        name: of the file that it will be. arguments: see `program`.
        """
        chosen = self.modules()
        head = f'"""{self.exercise}, saved by labkit launch: {" ".join(chosen.notes)}\n\n'
        head += f'It needs torch and labkit. Options: python {Path(name).name} --help\n"""\n'
        head += "\nfrom labkit import exercises\n"
        script = Script((name, *self.arguments, *arguments), os.getcwd(), os.path.abspath(name))
        source = f"{head}\nexercises.install({{\n{_literal(chosen.modules)}}})\n\n{PROGRAMS[self.exercise].source}"
        return Program(source, name, script), chosen

    def modules(self) -> StandIns:
        """Return the modules that it trains with, and a note that says whose they are."""
        return working_modules(catalogue.find(self.exercise), purpose="trains")

    def require(self, arguments: Sequence[str], is_here: bool) -> None:
        """Refuse options that the program would refuse on its ranks. Raises `CommandError`, or exits with status 2.

        arguments: come after those of the file. is_here: whether the ranks run on this machine.
        """
        command = PROGRAMS[self.exercise]
        options = command.parser().parse_args([*self.arguments, *arguments])
        try:
            command.require_options(options)
            if is_here:
                command.require_files(options)
        except RunRefused as error:
            raise CommandError(f"{self.exercise}: {error}") from None


def read(file: Path, launch_parser: argparse.ArgumentParser) -> Configuration:
    """Read and check a file. Raises `CommandError`, which names the line, for what does not fit."""
    require_file(file)
    return _Reader(file).read(launch_parser)


class _Reader:
    """Reads one file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def read(self, launch_parser: argparse.ArgumentParser) -> Configuration:
        try:
            root = yaml.compose(read_text(self._file), Loader=yaml.SafeLoader)
        except (yaml.MarkedYAMLError, UnreadableText) as error:
            mark = getattr(error, "problem_mark", None)
            at = f", line {mark.line + 1}" if mark else ""
            raise CommandError(f"{self._file}{at}: {getattr(error, 'problem', error)}") from None
        if not isinstance(root, yaml.MappingNode):
            raise CommandError(f"{self._file}, line 1: expected keys and values, such as `model: resnet8`")
        entries = dict(self._entries(root))
        if "program" not in entries:
            raise CommandError(f"{self._file}, line 1: `program` is missing: {' or '.join(PROGRAMS)}")
        name = self._choice("program", entries.pop("program"), list(PROGRAMS))
        cluster = {key: node for key, node in entries.items() if key.startswith("cluster.")}
        known = _by_key(PROGRAMS[name].parser())
        own = {key: node for key, node in entries.items() if key not in cluster}
        launch_known = {f"cluster.{name}": action for name, action in _actions(launch_parser).items()}
        launch_known["cluster.kind"] = launch_known.pop("cluster.cluster")
        for option in _OF_SHELL:
            del launch_known[f"cluster.{option}"]
        self._require_taken(cluster)
        launch: dict[str, list[str]] = {}
        for key, node in cluster.items():
            words = self._words({key: node}, launch_known)
            launch[launch_known[key].dest] = words
        return Configuration(name, launch, self._words(own, known))

    def _require_taken(self, cluster: Mapping[str, yaml.Node]) -> None:
        """Refuse an unknown kind of cluster, and keys that it does not take."""
        node = cluster.get("cluster.kind")
        kind = "local" if node is None else self._choice("cluster.kind", node, list(kinds.registered()))
        for name, (_, takers) in kinds.options().items():
            if kind not in takers and (node := cluster.get(f"cluster.{name}")) is not None:
                self._refuse(node, f"cluster.{name} is for {' and '.join(takers)} clusters, not for {kind}")

    def _entries(self, mapping: yaml.MappingNode, before: str = "") -> Iterator[tuple[str, yaml.Node]]:
        """The file's keys, those of an inner mapping as `cluster.kind`."""
        seen: set[str] = set()
        for key_node, value in mapping.value:
            key = f"{before}{key_node.value}"
            if not isinstance(key_node, yaml.ScalarNode) or key in seen:
                self._refuse(key_node, f"{key} is there twice" if key in seen else "a key must be a word")
            seen.add(key)
            if isinstance(value, yaml.MappingNode):
                yield from self._entries(value, f"{key}.")
            else:
                yield key, value

    def _words(self, entries: Mapping[str, yaml.Node], known: Mapping[str, argparse.Action]) -> list[str]:
        """The entries as words for a parser."""
        words: list[str] = []
        for key, node in entries.items():
            if key not in known:
                near = _similar(key, known)
                offer = f"did you mean {near}?" if near else f"there are: {', '.join(known)}"
                self._refuse(node, f"unknown key {key}; {offer}")
            action = known[key]
            option = action.option_strings[-1]
            if action.nargs == 0:
                if self._choice(key, node, ["true", "false"]) == "true":
                    words.append(option)
                continue
            if key == "deepspeed":
                words.append(f"{option}={self._deepspeed_file(key, node, action)}")
                continue
            nodes = node.value if isinstance(node, yaml.SequenceNode) and _is_repeatable(action) else [node]
            words += [f"{option}={self._value(key, item, action)}" for item in nodes]
        return words

    def _deepspeed_file(self, key: str, node: yaml.Node, action: argparse.Action) -> Path:
        """The file that `node` names, beside this one."""
        file = self._file.parent.absolute() / self._value(key, node, action)
        if not file.is_file():
            self._refuse(node, f"there is no file {file}")
        require_deepspeed_file(file)
        return file

    def _value(self, key: str, node: yaml.Node, action: argparse.Action) -> str:
        if not isinstance(node, yaml.ScalarNode) or node.tag == "tag:yaml.org,2002:null":
            self._refuse(node, f"{key} needs one value")
        text = str(node.value)
        if action.choices is not None:
            shown = [*map(str, action.choices)]
            for (other, name), value in _OTHER_VALUES.items():
                if other == key:
                    shown[shown.index(value)] = name
            text = self._choice(key, node, shown)
            return _OTHER_VALUES.get((key, text), text)
        if callable(action.type):
            try:
                action.type(text)
            except argparse.ArgumentTypeError as error:
                self._refuse(node, f"{key}: {error}")
            except ValueError:
                self._refuse(node, f"{key} must be a number, got {text!r}")
        return text

    def _choice(self, key: str, node: yaml.Node, choices: Sequence[str]) -> str:
        value = str(node.value)
        if value not in choices:
            near = difflib.get_close_matches(value, choices, n=1)
            self._refuse(
                node,
                f"{key} must be one of {', '.join(choices)}, got {value!r}"
                + (f"; did you mean {near[0]}?" if near else ""),
            )
        return value

    def _refuse(self, node: yaml.Node, why: str) -> None:
        raise CommandError(f"{self._file}, line {node.start_mark.line + 1}: {why}")


def _literal(modules: Mapping[str, str]) -> str:
    """Texts by name as entries of a Python dictionary, with lines of their own."""
    lines = []
    for name, text in modules.items():
        lines += [f"{name!r}: (", *map(ascii, text.splitlines(keepends=True)), "),"]
    return "".join(f"{line}\n" for line in lines)


def _similar(key: str, known: Collection[str]) -> str:
    """The known key that was probably meant; empty if there is none."""
    inner = [candidate for candidate in known if candidate.endswith(f".{key}")]
    group, _, name = key.rpartition(".")
    siblings = {candidate.rpartition(".")[2]: candidate for candidate in known if candidate.rpartition(".")[0] == group}
    begins = [candidate for candidate in siblings if candidate.startswith(name)]
    near = begins or difflib.get_close_matches(name, siblings, n=1)
    return next(iter(inner or [siblings[candidate] for candidate in near]), "")


def _actions(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """The parser's options by name, `nproc_per_node`; without those that refuse, and without --help."""
    return {
        action.option_strings[-1].lstrip("-").replace("-", "_"): action
        for action in parser._actions
        if action.option_strings and action.help != argparse.SUPPRESS and action.dest != "help"
    }


def _by_key(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    actions = _actions(parser)
    return {key: actions.pop(name) for key, name in _OTHER_NAMES.items() if name in actions} | actions


def _is_repeatable(action: argparse.Action) -> bool:
    return isinstance(action, argparse._AppendAction)
