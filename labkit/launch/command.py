"""`labkit launch FILE.py`, `labkit launch -m MODULE` and `labkit launch NOTEBOOK.ipynb`."""

from __future__ import annotations

import argparse
import shlex
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from labkit.clusters import InvalidJob, kinds
from labkit.clusters.cluster import DryRunCluster, RemoteCluster
from labkit.clusters.torchrun_command import torchrun_command
from labkit.launch import detaching, programs, running, saving
from labkit.launch.exit_status import FAILED
from labkit.launch.options import cluster, parse
from labkit.launch.tasks import Task, configured, program, tasks


def main(words: Sequence[str]) -> int:
    """Run the program and return the exit status. Raises `CommandError` and `InvalidJob` for wrong requests."""
    options = parse(words)
    if options.save is not None or options.print_command:
        return _save(options, words)
    if options.dry_run:
        return _dry_run(options, words)
    chosen_tasks = tasks(options, words)
    return _detach(chosen_tasks, options, words) if options.detach else running.run_tasks(chosen_tasks)


def _detach(chosen_tasks: Sequence[Task], options: argparse.Namespace, words: Sequence[str]) -> int:
    """Start a detached job, and print its name."""
    clusters = [cluster(task.options) for task in chosen_tasks]
    try:
        for task in chosen_tasks:
            if not task.may_fail:
                programs.require_syntax(task.job)
    except programs.ProgramSyntaxError as error:
        print(error, file=sys.stderr)
        return FAILED
    if isinstance(clusters[0], RemoteCluster):
        clusters[0].require()
    name = detaching.start(chosen_tasks, clusters[0], _short_name(options), words, options.array)
    print(name)
    job_name = name if options.array is None else f"{name}_INDEX"
    print(f"started: labkit logs -f {job_name} shows its output, labkit stop {name} ends it", file=sys.stderr)
    return 0


def _short_name(options: argparse.Namespace) -> str:
    """`train` for train.py, package.train and train.yaml."""
    if options.module is not None:
        return str(options.module).rpartition(".")[2]
    return Path(options.config or options.file).stem


def _save(options: argparse.Namespace, words: Sequence[str]) -> int:
    """Write, or show, what runs the program without the lab."""
    rule = "--save and --print-command are for one program, a file or a module"
    if options.config is not None:
        raise InvalidJob(f"{rule}. {_as_a_file(options, words)}")
    if (options.file or "").endswith(".ipynb"):
        raise InvalidJob(f"{rule}; in a notebook: %%torchrun --save FILE.py")
    chosen = cluster(options)
    chosen_program = program(options)
    named = (str(options.file),) if options.module is None else ("-m", str(options.module))
    command = torchrun_command((*named, *options.arguments), chosen_program.source, options, chosen)
    if options.save is not None:
        saving.save(options.save, chosen_program, command, chosen, options.force)
        print(f"saved as {options.save}")
    if options.print_command:
        print(command.explained(chosen))
    return 0


def _as_a_file(options: argparse.Namespace, words: Sequence[str]) -> str:
    """Return how to run what a configuration file runs as a file of its own."""
    file = Path(options.config)
    configuration, all_words = configured(file, words)
    own = all_words[: all_words.index("--")] if "--" in all_words else all_words
    # without the configuration file, in both of its spellings
    kept = [word for before, word in zip(["", *own], own, strict=False)
            if "--config" not in (before, word) and not word.startswith("--config=")]  # fmt: skip
    arguments = [*configuration.arguments, *options.arguments]
    command = shlex.join(["labkit", "launch", f"{file.stem}.py", *kept, "--", *arguments])
    source = textwrap.indent(configuration.program(()).source, "    ")
    return (
        f"{file} names a program of the lab, which ranks are sent. Write {file.stem}.py with\n\n{source}\n"
        f"and save that, for nodes that have the lab and your modules:\n\n    {command}"
    )


def _dry_run(options: argparse.Namespace, words: Sequence[str]) -> int:
    """Show what would be submitted."""
    if options.config is not None:
        options = parse(configured(options.config, words)[1])
    chosen = cluster(options)
    if not isinstance(chosen, DryRunCluster):
        able = " and ".join(kinds.with_ability(DryRunCluster))
        raise InvalidJob(f"--dry-run is for {able}, where jobs are submitted")
    print(chosen.dry_run(), end="")
    return 0
