"""The `labkit` command: the same checks, hints and tools as in a notebook, for the terminal.

Each command imports what it needs only when it runs, so that `labkit --help` and `labkit doctor` start fast.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Collection, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from labkit.command_line.commands import ENTRY_POINTS, CommandError, require_file


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0 success, 1 the check or tool found a fault, 2 wrong usage."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    from labkit.catalogue import MissingModule, UnknownExercise, WrongCatalogue

    try:
        if arguments[:1] == ["start"]:  # all further arguments go to jupyter
            from labkit.start import start

            start(arguments[1:])
        if arguments[:1] == ["predict"]:
            return _predict(arguments[1:])
        if arguments[:1] == ["calibrate"]:
            return _calibrate(arguments[1:])
        if arguments[:1] == ["bench"]:
            return _bench(arguments[1:])
        if arguments[:1] == ["analyze"]:
            return _analyze(arguments[1:])
        if arguments[:1] == ["launch"]:
            return _launch(arguments[1:])
        parser, commands, missing = _parser()
        if missing and arguments and not arguments[0].startswith("-") and arguments[0] not in commands:
            parser.error(f"unknown command {arguments[0]!r}; available: {', '.join(commands)}; {missing}")
        options, more = parser.parse_known_args(arguments)
        if more and not hasattr(options, "passed_on"):
            parser.error(f"unrecognized arguments: {' '.join(more)}")
        options.passed_on = more
        return int(options.run(options))
    except (CommandError, UnknownExercise, MissingModule, WrongCatalogue) as error:
        print(f"labkit: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _parser() -> tuple[argparse.ArgumentParser, Collection[str], str]:
    """The parser, the names of its commands, and why the autograder's are missing; empty if they are there."""
    parser = argparse.ArgumentParser(prog="labkit", description="Learn distributed training by writing it.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    check = commands.add_parser("check", help="run an exercise's visible checks")
    check.add_argument("name", metavar="EXERCISE", help="ring_allreduce, a phase such as phase3_multi_node, or all")
    check.add_argument("--file", type=Path, help="the module to check (default: the one in your workspace)")
    check.add_argument(
        "--cluster", choices=("virtual", "local"), default="virtual", help="where its ranks run (default: %(default)s)"
    )
    check.add_argument("--seed", type=int, help="repeat the inputs of an earlier report")
    check.set_defaults(run=_check)

    progress = commands.add_parser("progress", help="show your points so far, and where to continue")
    progress.set_defaults(run=_progress)

    hint = commands.add_parser("hint", help="show the next hint for a TODO of an exercise, one at a time")
    hint.add_argument("name", metavar="EXERCISE")
    hint.add_argument(
        "todo", type=int, nargs="?", metavar="TODO", help="its number (default: the first that is not written)"
    )
    hint.add_argument("--all", action="store_true", help="show the hints that you have taken, and no new one")
    hint.set_defaults(run=_hint)

    dashboard = commands.add_parser("dashboard", help="show a monitor's log in the browser, also while a job writes it")
    shown = dashboard.add_mutually_exclusive_group(required=True)
    shown.add_argument(
        "logdir", type=Path, nargs="?", help="log_dir of the monitor: rank-00000.jsonl, ...", metavar="LOGDIR"
    )
    shown.add_argument(
        "--grafana", action="store_true", help="print a dashboard for Grafana, of what PrometheusSink exports"
    )
    dashboard.add_argument("--port", type=int, default=0, help="of the page, on this machine (default: a free one)")
    dashboard.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="NAME",
        help="also answer to browsers that come by this name, through a proxy; several are possible",
    )
    dashboard.add_argument("--no-browser", action="store_true", help="print the address, open no browser")
    dashboard.set_defaults(run=_dashboard)

    _add_tune(commands)

    challenge = commands.add_parser("challenge", help="list the challenges; score an entry on the virtual clock")
    challenge.add_argument("name", nargs="?", metavar="NAME", help="of a challenge (default: list them)")
    challenge.add_argument("file", type=Path, nargs="?", metavar="FILE", help="your entry (default: show standings)")
    challenge.add_argument("--new", type=Path, metavar="FILE", help="write a file to begin with")
    challenge.add_argument("--traces", type=Path, metavar="FOLDER", help="for the entry's traces (default: beside it)")
    challenge.add_argument("--seed", type=int, metavar="N", help="instances of the same family, drawn from N")
    challenge.add_argument("--send", metavar="NAME", help="on a course's hub: send FILE to the standings, as NAME")
    challenge.add_argument("--withdraw", action="store_true", help="on a course's hub: take back what you have sent")
    challenge.set_defaults(run=_challenge)

    sync = commands.add_parser("sync", help="write templates and the notebooks' exercise cells from solutions")
    sync.add_argument("--check", action="store_true", help="write nothing; exit with 1 if files are out of date")
    sync.set_defaults(run=_sync)

    site = commands.add_parser("docs", help="write the course site: guides, course map, notebooks, reference")
    site.add_argument("--output", type=Path, default=None, metavar="FOLDER", help="(default: site/ of the course)")
    site.add_argument("--fresh", action="store_true", help="read all pages again, not only those that changed")
    site.set_defaults(run=_docs)

    edit = commands.add_parser("edit", help="edit a notebook as text in $EDITOR; unchanged cells keep their outputs")
    edit.add_argument("notebook", type=Path, metavar="NOTEBOOK")
    edit.set_defaults(run=_edit)

    commands.add_parser("launch", help="run a program on the ranks of a cluster, as torchrun does", add_help=False)
    jobs = commands.add_parser("jobs", help="list what launch --detach has started")
    jobs.add_argument("--prune", action="store_true", help="forget jobs that have ended, with their output")
    jobs.set_defaults(run=_jobs)
    logs = commands.add_parser("logs", help="show the output of a detached job")
    logs.add_argument("name", metavar="JOB", help="its name, train-3")
    logs.add_argument("-f", "--follow", action="store_true", help="until it ends, and exit as the job does")
    logs.set_defaults(run=_logs)
    stop = commands.add_parser("stop", help="end detached jobs")
    stop.add_argument("names", nargs="+", metavar="JOB", help="its name, train-3; of an array, all or one: train-3_1")
    stop.set_defaults(run=_stop)
    commands.add_parser("predict", help="predict a step's time and memory, find the best layout", add_help=False)
    commands.add_parser("calibrate", help="measure this machine, and save the results for predictions", add_help=False)
    commands.add_parser("bench", help="measure how training scales: bench scaling --gpus 1 2 4 8", add_help=False)
    commands.add_parser("analyze", help="draw what a run recorded, and say what limits it", add_help=False)
    commands.add_parser("start", help="open JupyterLab; further arguments are passed on to it", add_help=False)
    doctor = commands.add_parser("doctor", help="check what works on this machine")
    doctor.add_argument(
        "--patches", action="store_true", help="instead, list what virtual ranks replace in torch and Python, and why"
    )
    doctor.set_defaults(run=_doctor)
    missing = _add_installed(commands)
    return parser, commands.choices, missing


def _add_tune(commands: Any) -> None:
    tune = commands.add_parser("tune", help="tune an objective, or a model's layout, with your exercise autotune")
    tune.add_argument("file", type=Path, nargs="?", metavar="FILE", help="Python file with the objective")
    tune.add_argument(
        "--function", default="objective", help="its name; takes (configuration, steps), returns the loss"
    )
    tune.add_argument(
        "--space",
        action="append",
        default=[],
        metavar="NAME=VALUES",
        help="width=16,32 or dropout=0..0.5 or lr=log:1e-4..1",
    )
    tune.add_argument("--budget", type=int, default=1000, help="steps of all trials together (default: %(default)s)")
    tune.add_argument("--seed", type=int, default=0, help="of the configurations (default: %(default)s)")
    tune.add_argument("--reduction", type=int, default=3, help="one in so many goes on (default: %(default)s)")
    tune.add_argument("--min-steps", type=int, default=1, help="of a trial on the first rung (default: %(default)s)")
    tune.add_argument("--model", help="instead of a file: a model of labkit predict, whose layout is searched")
    tune.add_argument("--cluster", default="a100x8", help="for --model, such as p4dx32 (default: %(default)s)")
    tune.add_argument("--batch", type=int, help="for --model: samples of a step (default: 8 for each GPU)")
    tune.add_argument("--trials", type=int, default=96, help="for --model: layouts to measure (default: %(default)s)")
    tune.set_defaults(run=_tune)


def _add_installed(commands: Any) -> str:
    """Add the commands of other packages, the autograder's for instructors; return why some are missing."""
    missing = ""
    for entry in metadata.entry_points(group=ENTRY_POINTS):
        try:
            add = entry.load()
        except ImportError as error:  # incomplete installation: learners' commands still work
            missing = f"the commands of {entry.module} cannot be loaded: {error}"
        else:
            add(commands)
    if importlib.util.find_spec("autograder") is None:
        return "instructors' commands come with the autograder: pip install ./autograder, or use ./lab"
    return missing


def _launch(arguments: list[str]) -> int:
    from labkit.clusters.forkserver import starting

    if arguments and not {"-h", "--help"} & set(arguments):
        # first of all: it imports torch while this process does
        starting.begin()
    from labkit.clusters import InvalidJob
    from labkit.launch import command

    try:
        return command.main(arguments)
    except InvalidJob as error:
        raise CommandError(str(error)) from None


def _jobs(options: argparse.Namespace) -> int:
    from labkit.launch import job_commands

    return job_commands.jobs(options.prune)


def _logs(options: argparse.Namespace) -> int:
    from labkit.launch import job_commands

    return job_commands.logs(options.name, options.follow)


def _stop(options: argparse.Namespace) -> int:
    from labkit.launch import job_commands

    return job_commands.stop(options.names)


def _predict(arguments: list[str]) -> int:
    from labkit.predict import command
    from labkit.predict.scale_report import Report

    def draw(report: Report) -> bytes:
        from labkit.plots import predicted_scaling

        points = {"data parallel": report.points}
        return predicted_scaling(points, report.samples or 1e6, report.price, report.title).png()

    try:
        return command.main(arguments, draw)
    except ValueError as error:
        raise CommandError(str(error)) from None


def _calibrate(arguments: list[str]) -> int:
    from labkit.calibrate import MeasuringFailed, command

    try:
        return command.main(arguments)
    except (ValueError, MeasuringFailed, OSError) as error:
        raise CommandError(str(error)) from None


def _bench(arguments: list[str]) -> int:
    from labkit.bench import command

    try:
        return command.main(arguments)
    except (ValueError, OSError) as error:
        raise CommandError(str(error)) from None


def _analyze(arguments: list[str]) -> int:
    from labkit.analyze import command

    try:
        return command.main(arguments)
    except (ValueError, OSError) as error:
        raise CommandError(str(error)) from None


def _check(options: argparse.Namespace) -> int:
    if options.file is not None:
        require_file(options.file)
    from labkit.catalogue import find, several

    if not several(options.name):
        find(options.name)  # a wrong name is refused before torch is imported, which takes a second
    from labkit.checks import command

    return command.main(options.name, options.file, options.cluster, options.seed)


def _progress(options: argparse.Namespace) -> int:
    from labkit.progress.table import show

    show()
    return 0


def _hint(options: argparse.Namespace) -> int:
    from labkit.catalogue import find

    find(options.name)
    from labkit.checks.guidance import hints

    return hints.main(options.name, options.todo, options.all)


def _dashboard(options: argparse.Namespace) -> int:
    if options.grafana:
        from labkit.dashboard.grafana import grafana_dashboard

        try:
            print(grafana_dashboard())
        except ImportError as error:
            raise CommandError(str(error)) from None
        return 0
    if not options.logdir.is_dir():
        raise CommandError(f"there is no folder {options.logdir}: give the log_dir of the monitor")
    from labkit.dashboard.server import serve

    try:
        return serve(options.logdir, options.port, not options.no_browser, options.host)
    except OSError as error:
        raise CommandError(f"port {options.port}: {error.strerror}") from None


def _tune(options: argparse.Namespace) -> int:
    if (options.file is None) == (options.model is None):
        raise CommandError("give either FILE, with an objective and --space, or --model")
    if options.model is not None and options.space:
        raise CommandError("--space is for FILE; a model's layouts are searched as they are")
    from labkit.course.phase4_production.autotune.given import command

    try:
        if options.model is not None:
            return command.tune_layout(options.model, options.cluster, options.batch, options.trials)
        how = {"seed": options.seed, "reduction": options.reduction, "min_steps": options.min_steps}
        return command.tune_file(options.file, options.function, options.space, options.budget, **how)
    except ValueError as error:
        raise CommandError(str(error)) from None


def _challenge(options: argparse.Namespace) -> int:
    if options.new is not None and (options.name is None or options.file is not None):
        raise CommandError("--new needs the name of a challenge, and no further file")
    if options.send is not None and (options.file is None or options.new or options.traces or options.seed is not None):
        raise CommandError("--send needs a challenge, a file, and no other option")
    if options.withdraw and (
        options.name is None or any((options.file, options.new, options.traces, options.send, options.seed))
    ):
        raise CommandError("--withdraw needs the name of a challenge, and no other option")
    from labkit.challenges import command

    if options.withdraw:
        return command.withdraw(options.name)
    if options.send is not None:
        return command.send(options.name, options.file, options.send)
    return command.main(options.name, options.file, options.new, options.traces, options.seed)


def _sync(options: argparse.Namespace) -> int:
    from labkit import sync

    return sync.main(check=options.check)


def _docs(options: argparse.Namespace) -> int:
    from labkit.catalogue import root
    from labkit.site.command import main as build

    return build(options.output or root() / "site", fresh=options.fresh)


def _edit(options: argparse.Namespace) -> int:
    require_file(options.notebook)
    from labkit.edit import edit

    return edit(options.notebook)


def _doctor(options: argparse.Namespace) -> int:
    from labkit import doctor

    return doctor.list_patches() if options.patches else doctor.main()


if __name__ == "__main__":
    sys.exit(main())
