"""`labkit launch FILE.py`, `labkit launch -m MODULE` and `labkit launch NOTEBOOK.ipynb`."""

from __future__ import annotations

import argparse
import linecache
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from labkit import catalogue
from labkit.checks.working_modules import working_modules
from labkit.clusters import InvalidJob, Job, kinds, launch_options
from labkit.clusters.cluster import DryRunCluster
from labkit.launch import configuration, notebooks, programs, running, saving
from labkit.launch.options import cluster, parse, parser
from labkit.launch.programs import Program


def main(words: Sequence[str]) -> int:
    """Run the program and return the exit status. Raises `CommandError` and `InvalidJob` for wrong requests."""
    options = parse(words)
    if options.config is not None:
        return _configured(options, words)
    if options.dry_run:
        return _dry_run(options)
    if options.file is not None and options.file.endswith(".ipynb"):
        return _notebook(options, words)
    if options.module is not None:
        program = programs.from_module(options.module, options.arguments)
    else:
        program = programs.from_file(Path(options.file), options.arguments)
    if options.save is not None or options.print_command:
        return _save(program, options)
    return _run(program, options)


def _configured(options: argparse.Namespace, words: Sequence[str]) -> int:
    """Run what a configuration file asks for; the command's own options override those of the file."""
    found = configuration.read(options.config, parser())
    options = parse([*found.launch_words(options.cluster), *words])
    if options.save is not None or options.print_command:
        raise InvalidJob("--save and --print-command are for a file or a module, not for --config")
    if options.dry_run:
        return _dry_run(options)
    chosen = working_modules(catalogue.find(found.exercise), "trains")
    for note in chosen.notes:
        print(f"note: {note}", file=sys.stderr)
    return _run(found.program(options.arguments), options, chosen.modules)


def _save(program: Program, options: argparse.Namespace) -> int:
    chosen = cluster(options)
    command = saving.torchrun_command(program, options, chosen)
    if options.save is not None:
        saving.save(options.save, command, chosen, options.force)
        print(f"saved as {options.save}")
    if options.print_command:
        print(command.explained(chosen))
    return 0


def _dry_run(options: argparse.Namespace) -> int:
    chosen = cluster(options)
    if not isinstance(chosen, DryRunCluster):
        able = " and ".join(kinds.with_ability(DryRunCluster))
        raise InvalidJob(f"--dry-run is for {able}, where jobs are submitted")
    print(chosen.dry_run(), end="")
    return 0


def _notebook(options: argparse.Namespace, words: Sequence[str]) -> int:
    """Run a notebook's programs one after the other until one fails; the command's options override a cell's."""
    if options.save is not None or options.print_command:
        raise InvalidJob("--save and --print-command are for one program; in the notebook: %%torchrun --save FILE.py")
    found, note = notebooks.programs(Path(options.file), options.arguments)
    if note:
        print(f"note: {note}", file=sys.stderr)
    for one in found:
        if len(found) > 1:
            print(one.title, file=sys.stderr)
        status = _run(one.program, parse([*one.options, *words]), one.modules)
        if status and not (one.may_fail and status == running.FAILED):
            return status
    return 0


def _run(program: Program, options: argparse.Namespace, modules: Mapping[str, str] | None = None) -> int:
    """Run a program; `modules` replace those of the workspace."""
    chosen = cluster(options)
    try:
        program.require_syntax()
    except programs.ProgramSyntaxError as error:
        print(error, file=sys.stderr)
        return running.FAILED
    padded = "\n" * (program.first_line - 1) + program.source
    # to show the lines around a failing one
    linecache.cache[program.filename] = (len(padded), None, padded.splitlines(keepends=True), program.filename)
    job = Job(
        source=program.source,
        filename=program.filename,
        first_line=program.first_line,
        script=program.script,
        modules={**catalogue.current_modules(), **(modules or {})},
        **launch_options.job_options(options),
    )
    return running.run(chosen, job)
