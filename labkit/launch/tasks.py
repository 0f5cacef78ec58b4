"""Tasks of one `labkit launch` command: one program, or those of a notebook, as jobs with their options."""

from __future__ import annotations

import argparse
import dataclasses
import linecache
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.checks.working_modules import all_modules, program_modules, show
from labkit.clusters import Job, Script, launch_options
from labkit.launch import configuration, notebooks, programs
from labkit.launch.options import parse, parser
from labkit.launch.programs import Program

_FIELDS = ("source", "filename", "first_line", "modules", "nnodes", "nproc_per_node", "min_nnodes", "max_restarts",
           "timeout", "hang_timeout", "on_hang", "environment")  # fmt: skip

_OF_THIS_MACHINE = ("local", "virtual")
"""Kinds of clusters whose ranks see this machine's files."""


@dataclass(frozen=True)
class Task:
    """A job, and the options of `labkit launch` that select its cluster."""

    job: Job
    words: Sequence[str]
    """All words of the options, for `parse`."""
    title: str = ""
    """`cell 3 of train.ipynb`, where there are several tasks."""
    may_fail: bool = False
    """Whether the next task runs if this one fails."""

    @property
    def options(self) -> argparse.Namespace:
        return parse(self.words)

    def to_json(self) -> dict[str, Any]:
        """Return plain data for `from_json`."""
        assert self.job.script is not None
        fields = {name: getattr(self.job, name) for name in _FIELDS}
        plain = {name: dict(value) if isinstance(value, Mapping) else value for name, value in fields.items()}
        return {
            "words": list(self.words),
            "title": self.title,
            "may_fail": self.may_fail,
            "job": {**plain, "script": dataclasses.asdict(self.job.script)},
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Task:
        """Return the task that `to_json` has described."""
        fields = dict(data["job"])
        script = fields.pop("script")
        job = Job(**fields, script=Script(**{**script, "argv": tuple(script["argv"])}))
        return Task(job, data["words"], data["title"], data["may_fail"])

    def with_index(self, index: int) -> Task:
        """Return the task with `%a` in the program's arguments replaced by an index of a job array."""
        script = self.job.script
        assert script is not None
        argv = (script.argv[0], *(word.replace("%a", str(index)) for word in script.argv[1:]))
        return dataclasses.replace(
            self, job=dataclasses.replace(self.job, script=dataclasses.replace(script, argv=argv))
        )

    def show_lines(self) -> None:
        """Let tracebacks in this process show the lines of the program."""
        job = self.job
        padded = "\n" * (job.first_line - 1) + str(job.source)
        linecache.cache[job.filename] = (len(padded), None, padded.splitlines(keepends=True), job.filename)


def tasks(options: argparse.Namespace, words: Sequence[str]) -> list[Task]:
    """Return the tasks that the command runs. Raises `CommandError` and `InvalidJob` for wrong requests."""
    if options.config is not None:
        return [_configured(options.config, words)]
    if options.module is None and options.file.endswith(".ipynb"):
        return _notebook(options, words)
    program = programs.named(options)
    chosen = program_modules(program.source)
    show(chosen)
    return [_task(program, words, chosen.modules)]


def configured(file: Path, words: Sequence[str]) -> tuple[configuration.Configuration, list[str]]:
    """Read a configuration file, and return it with the words of the command, which override those of the file."""
    contents = configuration.read(file, parser())
    return contents, [*contents.launch_words(parse(words).cluster), *words]


def _configured(file: Path, words: Sequence[str]) -> Task:
    contents, all_words = configured(file, words)
    options = parse(all_words)
    # any index of an array will do: only the jobs know theirs
    arguments = [word.replace("%a", "0") for word in options.arguments] if options.array else options.arguments
    contents.require(arguments, (options.cluster or "local") in _OF_THIS_MACHINE)
    chosen = contents.modules()
    show(chosen)
    return _task(contents.program(options.arguments), all_words, chosen.modules)


def _notebook(options: argparse.Namespace, words: Sequence[str]) -> list[Task]:
    """The notebook's programs; the command's options override a cell's."""
    cell_programs, note = notebooks.programs(Path(options.file), options.arguments)
    if note:
        print(f"note: {note}", file=sys.stderr)
    own = {name: text for item in cell_programs for name, text in item.modules.items()}
    show(program_modules(*(item.program.source for item in cell_programs), own=own))
    return [
        dataclasses.replace(
            _task(item.program, [*item.options, *words], {**all_modules(), **item.modules}),
            title=item.title if len(cell_programs) > 1 else "",
            may_fail=item.may_fail,
        )
        for item in cell_programs
    ]


def _task(chosen: Program, words: Sequence[str], modules: Mapping[str, str]) -> Task:
    """A program as a task; modules: of exercises."""
    job = Job(
        source=chosen.source,
        filename=chosen.filename,
        first_line=chosen.first_line,
        script=chosen.script,
        modules=modules,
        **launch_options.job_options(parse(words)),
    )
    return Task(job, words)
