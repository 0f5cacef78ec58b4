"""The `labkit` command: the same checks, hints and tools as in a notebook, for the terminal.

Each command imports what it needs only when it runs, so that `labkit --help` and `labkit doctor` start fast.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

from labkit.command_line.commands import ENTRY_POINTS, CommandError, LabFailed, require_file
from labkit.command_line.parser import CommandParser
from labkit.installing import how_to_install


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0 success, 1 the check or tool found a fault, 2 wrong usage."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        from labkit.catalogue import MissingModule, UnknownExercise, WrongCatalogue
        from labkit.text_files import UnreadableText

        try:
            if arguments[:1] == ["launch"]:  # its words after -- are those of another program
                return _launch(arguments[1:])
            options, options.passed_on = parser().parse_known_args(arguments)
            return int(options.run(options))
        except LabFailed as error:
            print(f"labkit: {error.in_words()}", file=sys.stderr)
            return 2
        except (CommandError, UnknownExercise, MissingModule, WrongCatalogue, UnreadableText) as error:
            print(f"labkit: {error}", file=sys.stderr)
            return 2
    except KeyboardInterrupt:
        print("labkit: interrupted", file=sys.stderr)
        return 130


def parser() -> CommandParser:
    """Return the parser of all commands; `commands` of it are those of the lab and of installed packages."""
    made = CommandParser(prog="labkit", description="Learn distributed training by writing it.")
    commands = made.add_subparsers(metavar="COMMAND", required=True)

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
    hint.add_argument("name", metavar="EXERCISE", help="the exercise, such as ring_allreduce")
    hint.add_argument(
        "todo", type=int, nargs="?", metavar="TODO", help="number of the TODO (default: the first that is not written)"
    )
    hint.add_argument("--all", action="store_true", help="show the hints that you have taken, and no new one")
    hint.set_defaults(run=_hint)

    dashboard = commands.add_parser("dashboard", help="show a monitor's log in the browser, also while a job writes it")
    shown = dashboard.add_mutually_exclusive_group(required=True)
    shown.add_argument(
        "logdir",
        type=Path,
        nargs="?",
        help="the monitor's log_dir, which holds rank-00000.jsonl, ...",
        metavar="LOGDIR",
    )
    shown.add_argument(
        "--grafana", action="store_true", help="print a dashboard for Grafana, of what PrometheusSink exports"
    )
    dashboard.add_argument(
        "--port", type=int, default=0, help="port of the page, on this machine (default: a free one)"
    )
    dashboard.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="NAME",
        help="answer also to browsers that use this name, as behind a proxy; repeatable",
    )
    dashboard.add_argument("--no-browser", action="store_true", help="print the address, open no browser")
    dashboard.set_defaults(run=_dashboard)

    _add_tune(commands)

    challenge = commands.add_parser("challenge", help="list the challenges; score an entry on the virtual clock")
    challenge.add_argument("name", nargs="?", metavar="NAME", help="the challenge (default: list them)")
    challenge.add_argument("file", type=Path, nargs="?", metavar="FILE", help="your entry (default: show standings)")
    challenge.add_argument("--new", type=Path, metavar="FILE", help="write a file to begin with")
    challenge.add_argument(
        "--traces", type=Path, metavar="FOLDER", help="folder for the entry's traces (default: beside it)"
    )
    challenge.add_argument("--seed", type=int, metavar="N", help="draw instances of the same family from N")
    challenge.add_argument("--send", metavar="NAME", help="send FILE to the standings of a course's hub, as NAME")
    challenge.add_argument("--withdraw", action="store_true", help="take back what you have sent to a course's hub")
    challenge.set_defaults(run=_challenge)

    sync = commands.add_parser("sync", help="write templates and the notebooks' exercise cells from solutions")
    sync.add_argument("--check", action="store_true", help="write nothing; exit with 1 if files are out of date")
    sync.set_defaults(run=_sync)

    site = commands.add_parser("docs", help="write the course site: guides, course map, notebooks, reference")
    site.add_argument(
        "--to", type=Path, default=None, metavar="FOLDER", help="write it there (default: site/ of the course)"
    )
    site.add_argument("--fresh", action="store_true", help="read all pages again, not only those that changed")
    site.set_defaults(run=_docs)

    edit = commands.add_parser("edit", help="edit a notebook as text in $EDITOR; unchanged cells keep their outputs")
    edit.add_argument("notebook", type=Path, metavar="NOTEBOOK", help="the notebook, a file")
    edit.set_defaults(run=_edit)

    launch = _filled_by("labkit.launch.options")
    commands.add_parser("launch", help="run a program on the ranks of a cluster, as torchrun does", fill=launch)
    jobs = commands.add_parser("jobs", help="list what launch --detach has started")
    shown_as = jobs.add_mutually_exclusive_group()
    shown_as.add_argument("--prune", action="store_true", help="forget jobs that have ended, with their output")
    shown_as.add_argument("--json", action="store_true", help="print a list of the jobs as JSON")
    jobs.set_defaults(run=_jobs)
    logs = commands.add_parser("logs", help="show the output of a detached job")
    logs.add_argument("name", metavar="JOB", help="name of the job, such as train-3")
    logs.add_argument(
        "-f", "--follow", action="store_true", help="follow the output until the job ends, and exit with its status"
    )
    logs.set_defaults(run=_logs)
    stop = commands.add_parser("stop", help="end detached jobs")
    stop.add_argument(
        "names", nargs="+", metavar="JOB", help="name of a job, such as train-3; of an array, all or one: train-3_1"
    )
    stop.set_defaults(run=_stop)
    for name, module, run, what in (
        ("predict", "command", _predict, "predict a step's time and memory, find the best layout"),
        ("calibrate", "options", _calibrate, "measure this machine, and save the results for predictions"),
        ("bench", "options", _bench, "measure how training scales: bench scaling --gpus 1 2 4 8"),
        ("analyze", "options", _analyze, "draw what a run recorded, and say what limits it"),
    ):
        command = commands.add_parser(name, help=what, fill=_filled_by(f"labkit.{name}.{module}"))
        command.set_defaults(run=run)
    start = commands.add_parser("start", help="open JupyterLab; further arguments are passed on to it",
        description="Open JupyterLab on the course home, or on NOTEBOOK.ipynb. Further arguments are passed on to it.",
        allow_abbrev=False)  # fmt: skip
    start.set_defaults(run=_start, passed_on=[])
    doctor = commands.add_parser("doctor", help="check what works on this machine")
    doctor.add_argument(
        "--patches", action="store_true", help="instead, list what virtual ranks replace in torch and Python, and why"
    )
    doctor.set_defaults(run=_doctor)
    missing = _add_installed(commands)
    if missing:
        made.explain_unknown_commands(missing)
    return made


def _filled_by(module: str) -> Callable[[CommandParser], None]:
    """Return a function that adds to a parser what `add_arguments` of a module adds, which is imported only then."""

    def fill(command: CommandParser) -> None:
        importlib.import_module(module).add_arguments(command)

    return fill


def _add_tune(commands: Any) -> None:
    tune = commands.add_parser("tune", help="tune an objective, or a model's layout, with exercise autotune")
    tune.add_argument("file", type=Path, nargs="?", metavar="FILE", help="Python file with the objective")
    tune.add_argument(
        "--function",
        default="objective",
        help="name of the objective in FILE: takes (configuration, steps), returns the loss (default: %(default)s)",
    )
    tune.add_argument(
        "--space",
        action="append",
        default=[],
        metavar="NAME=VALUES",
        help="values to choose from: width=16,32 or dropout=0..0.5 or lr=log:1e-4..1; repeatable",
    )
    tune.add_argument("--budget", type=int, default=1000, help="steps of all trials together (default: %(default)s)")
    tune.add_argument("--seed", type=int, default=0, help="seed of the configurations (default: %(default)s)")
    tune.add_argument(
        "--reduction", type=int, default=3, help="one trial in N goes on to the next rung (default: %(default)s)"
    )
    tune.add_argument(
        "--min-steps", type=int, default=1, help="steps of a trial on the first rung (default: %(default)s)"
    )
    tune.add_argument("--model", help="instead of a file: a model of labkit predict, whose layout is searched")
    tune.add_argument("--cluster", default="a100x8", help="GPUs for --model, such as p4dx32 (default: %(default)s)")
    tune.add_argument("--batch", type=int, help="samples of a step, for --model (default: 8 for each GPU)")
    tune.add_argument(
        "--trials", type=int, default=96, help="number of layouts to measure, for --model (default: %(default)s)"
    )
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
        return (
            "instructors' commands come with the autograder: ./lab demo installs it in the lab's folder; in an "
            f"environment of your own: {how_to_install('nbgrader', 'grading')}, then pip install --no-deps ./autograder"
        )
    return missing


def _start(options: argparse.Namespace) -> NoReturn:
    from labkit.start import start

    start(options.passed_on)


def _launch(arguments: list[str]) -> int:
    from labkit.clusters.forkserver import starting
    from labkit.clusters.job import InvalidJob
    from labkit.launch import programs
    from labkit.launch.options import parse, require_fit

    options = parse(arguments)
    try:
        # a wrong request is refused before torch is imported
        require_fit(options)
        programs.require(options)
        # it imports torch while this process does
        starting.begin()
        from labkit.launch import command

        return command.main(options, arguments)
    except InvalidJob as error:
        raise CommandError(str(error)) from None


def _jobs(options: argparse.Namespace) -> int:
    from labkit.launch import job_commands

    return job_commands.jobs(options.prune, options.json)


def _logs(options: argparse.Namespace) -> int:
    from labkit.launch import job_commands

    return job_commands.logs(options.name, options.follow)


def _stop(options: argparse.Namespace) -> int:
    from labkit.launch import job_commands

    return job_commands.stop(options.names)


def _predict(options: argparse.Namespace) -> int:
    from labkit.predict import command
    from labkit.predict.scale_report import Report

    def draw(report: Report) -> bytes:
        from labkit.plots import predicted_scaling

        points = {"data parallel": report.points}
        return predicted_scaling(points, report.samples or 1e6, report.price, report.title).png()

    try:
        return command.main(options, draw)
    except ValueError as error:
        raise CommandError(str(error)) from None


def _calibrate(options: argparse.Namespace) -> int:
    from labkit.calibrate.options import require_valid

    with _refusing(ValueError):
        require_valid(options)
    from labkit.calibrate import MeasuringFailed, command

    with _refusing(ValueError, MeasuringFailed, OSError):
        return command.main(options)


def _bench(options: argparse.Namespace) -> int:
    from labkit.bench.options import require_valid

    with _refusing(ValueError):
        require_valid(options)
    from labkit.bench import command

    with _refusing(ValueError, OSError):
        return command.main(options)


def _analyze(options: argparse.Namespace) -> int:
    from labkit.analyze.options import require_valid

    with _refusing(ValueError):
        require_valid(options)
    from labkit.analyze import command

    with _refusing(ValueError, OSError):
        return command.main(options)


@contextmanager
def _refusing(*errors: type[Exception]) -> Iterator[None]:
    """Turn these errors, whose messages are for people, into `CommandError`s."""
    try:
        yield
    except errors as error:
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
    if options.file is not None:
        require_file(options.file)
    from labkit import exercises
    from labkit.catalogue import find
    from labkit.checks.working_modules import all_modules, show, working_modules
    from labkit.course.phase4_production.autotune.given import command

    chosen = working_modules(find("autotune"), purpose="tunes")
    with _refusing(ValueError), exercises.installed(all_modules()):
        if options.model is not None:
            status = command.tune_layout(options.model, options.cluster, options.batch, options.trials)
        else:
            how = {"seed": options.seed, "reduction": options.reduction, "min_steps": options.min_steps}
            status = command.tune_file(options.file, options.function, options.space, options.budget, **how)
    show(chosen)
    return status


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

    return build(options.to or root() / "site", fresh=options.fresh)


def _edit(options: argparse.Namespace) -> int:
    require_file(options.notebook)
    from labkit.edit import edit

    return edit(options.notebook)


def _doctor(options: argparse.Namespace) -> int:
    from labkit import doctor

    return doctor.list_patches() if options.patches else doctor.main()


if __name__ == "__main__":
    sys.exit(main())
