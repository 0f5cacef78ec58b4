"""`labkit launch FILE.py`, `labkit launch -m MODULE` and `labkit launch NOTEBOOK.ipynb`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from labkit.checks.working_modules import show
from labkit.clusters import InvalidJob, kinds
from labkit.clusters.cluster import DryRunCluster, RemoteCluster
from labkit.clusters.torchrun_command import torchrun_command
from labkit.launch import detaching, programs, running, saving
from labkit.launch.exit_status import FAILED
from labkit.launch.options import cluster, parse
from labkit.launch.tasks import Task, configured, tasks


def main(options: argparse.Namespace, words: Sequence[str]) -> int:
    """Run the program and return the exit status. Raises `CommandError` and `InvalidJob` for wrong requests.

    words: those from which `options` were read.
    """
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
    """Write, or show, what runs the program without `labkit launch`."""
    if (options.file or "").endswith(".ipynb"):
        raise InvalidJob(
            "--save and --print-command are for one program, a file or a module; "
            "in a notebook: %%torchrun --save FILE.py"
        )
    if options.config is not None:
        return _save_configured(options, words)
    chosen = cluster(options)
    chosen_program = programs.named(options)
    named = (str(options.file),) if options.module is None else ("-m", str(options.module))
    command = torchrun_command((*named, *options.arguments), chosen_program.source, options, chosen)
    if options.save is not None:
        saving.save(options.save, chosen_program, command, chosen, options.force)
        print(f"saved as {options.save}")
    if options.print_command:
        print(command.explained(chosen))
    return 0


def _save_configured(options: argparse.Namespace, words: Sequence[str]) -> int:
    """The same for a configuration file, whose program becomes a file that holds its modules, `ddp.py` for ddp.yaml."""
    configuration, all_words = configured(options.config, words)
    options = parse(all_words)
    configuration.require(options.arguments, is_here=False)
    chosen = cluster(options)
    file = (Path() if options.save is None else options.save.parent) / f"{options.config.stem}.py"
    program, modules = configuration.saved_program(str(file), options.arguments)
    command = torchrun_command((str(file), *program.script.argv[1:]), program.source, options, chosen)
    if options.save is not None:
        show(modules)
        written = saving.save(options.save, program, command, chosen, options.force, program_file=file)
        print(f"saved as {' and '.join(map(str, written))}")
    if options.print_command:
        print(command.explained(chosen))
        if options.save is None:
            print(f"# --save run.sh writes {file}")
    return 0


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
