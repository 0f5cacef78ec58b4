"""`labkit launch FILE.py` and `labkit launch -m MODULE`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from labkit import catalogue
from labkit.clusters import InvalidJob, Job, kinds, launch_options
from labkit.clusters.cluster import DryRunCluster
from labkit.launch import programs, running
from labkit.launch.options import cluster, parse


def main(words: Sequence[str]) -> int:
    """Run the program and return the exit status. Raises `CommandError` and `InvalidJob` for wrong requests."""
    options = parse(words)
    if options.module is not None:
        program = programs.from_module(options.module, options.arguments)
    else:
        program = programs.from_file(Path(options.file), options.arguments)
    chosen = cluster(options)
    if options.dry_run:
        if not isinstance(chosen, DryRunCluster):
            able = " and ".join(kinds.with_ability(DryRunCluster))
            raise InvalidJob(f"--dry-run is for {able}, where jobs are submitted")
        print(chosen.dry_run(), end="")
        return 0
    try:
        program.require_syntax()
    except programs.ProgramSyntaxError as error:
        print(error, file=sys.stderr)
        return running.FAILED
    job = Job(
        source=program.source,
        filename=program.filename,
        script=program.script,
        modules=catalogue.current_modules(),
        **launch_options.job_options(options),
    )
    return running.run(chosen, job)
