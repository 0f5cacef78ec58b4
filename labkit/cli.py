"""The `labkit` command: the same checks, hints and tools as in a notebook, for those who work in a terminal.

Each command is thin and imports what it needs when it runs, so that `labkit --help` and `labkit doctor` start fast.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn


class CommandError(Exception):
    """The command cannot do what it was asked; the message says why in one line, and what to try."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 the check or tool found a fault, 2 it was asked wrongly."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    from labkit.exercises import MissingModule, UnknownExercise

    try:
        if arguments[:1] == ["start"]:  # all that follows is for jupyter
            from labkit.start import start

            start(arguments[1:])
        if arguments[:1] == ["predict"]:
            return _predict(arguments[1:])
        if arguments[:1] == ["calibrate"]:
            return _calibrate(arguments[1:])
        parser = _parser()
        options, more = parser.parse_known_args(arguments)
        if more and not hasattr(options, "passed_on"):
            parser.error(f"unrecognized arguments: {' '.join(more)}")
        options.passed_on = more
        return int(options.run(options))
    except (CommandError, UnknownExercise, MissingModule) as error:
        print(f"labkit: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="labkit", description="Learn distributed training by writing it.")
    course = "default: LABKIT_COURSE, else course/ of the lab"
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    check = commands.add_parser("check", help="run an exercise's visible checks")
    check.add_argument("name", metavar="EXERCISE", help="ring_allreduce, phase3_multi_node/ring_allreduce, or a phase")
    check.add_argument("--file", type=Path, help="the module to check; without it, the one in your workspace")
    check.add_argument(
        "--cluster", choices=("virtual", "local"), default="virtual", help="where its ranks run (default: %(default)s)"
    )
    check.add_argument("--seed", type=int, help="draw the inputs of an earlier report again")
    check.set_defaults(run=_check)

    hint = commands.add_parser("hint", help="the next hint for an exercise, one at a time")
    hint.add_argument("name", metavar="EXERCISE")
    hint.set_defaults(run=_hint)

    sync = commands.add_parser("sync", help="write templates and the notebooks' exercise cells from solutions")
    sync.add_argument("--check", action="store_true", help="write nothing; exit 1 when something drifts")
    sync.set_defaults(run=_sync)

    edit = commands.add_parser("edit", help="edit a notebook as text in $EDITOR; outputs of unchanged cells stay")
    edit.add_argument("notebook", type=Path, metavar="NOTEBOOK")
    edit.set_defaults(run=_edit)

    integrity = commands.add_parser("integrity", help="what to look at in what was handed in; changes no mark")
    integrity.add_argument("phase", metavar="PHASE", help="the assignment, such as phase3_multi_node")
    integrity.add_argument("--course", type=Path, metavar="DIR", help=course)
    integrity.add_argument(
        "--also", type=Path, metavar="DIR", action="append", default=[], help="an earlier course to compare with"
    )
    integrity.add_argument("--anonymous", action="store_true", help="hide learners' names")
    integrity.set_defaults(run=_integrity)

    autograde = commands.add_parser(
        "autograde",
        help="grade what was handed in, side by side on all cores",
        epilog="Settings of nbgrader_config.py can be given, too, for this run: --JudgeCells.timeout=40",
    )
    autograde.add_argument("assignment", metavar="ASSIGNMENT", help="phase3_multi_node, say")
    autograde.add_argument("--student", nargs="+", default=[], metavar="NAME", help="these learners only")
    autograde.add_argument("--workers", type=_count, metavar="N", help="processes that judge (default: one a core)")
    autograde.add_argument("--course", type=Path, metavar="DIR", help=course)
    autograde.add_argument(
        "--regrade", action="store_true", help="judge anew also what has a verdict that still counts"
    )
    autograde.add_argument("--retry", action="store_true", help="only what ended in an error of the grader")
    autograde.add_argument("--status", action="store_true", help="grade nothing; show how everything stands")
    autograde.add_argument("--json", action="store_true", help="print the outcome as JSON")
    autograde.set_defaults(run=_autograde, passed_on=[])

    formgrader = commands.add_parser(
        "formgrader", help="open the course's formgrader in JupyterLab; further options are passed on to that"
    )
    formgrader.add_argument("--course", type=Path, metavar="DIR", help=course)
    formgrader.set_defaults(run=_formgrader, passed_on=[])

    verdict = commands.add_parser("verdict", help="all that the judge found in what a learner handed in")
    verdict.add_argument("assignment", metavar="ASSIGNMENT", help="phase3_multi_node, say")
    verdict.add_argument("student", metavar="NAME", help="the learner, as in submitted/")
    verdict.add_argument("--course", type=Path, metavar="DIR", help=course)
    verdict.set_defaults(run=_verdict)

    grades = commands.add_parser("grades", help="write the marks to a file, also for Canvas or Moodle")
    grades.add_argument("assignment", metavar="ASSIGNMENT", nargs="*", help="default: all")
    grades.add_argument("--to", type=Path, metavar="FILE", default=Path("grades.csv"), help="default: %(default)s")
    grades.add_argument("--lms", choices=("canvas", "moodle"), help="as that platform imports it")
    grades.add_argument("--course", type=Path, metavar="DIR", help=course)
    grades.set_defaults(run=_grades)

    mutants = commands.add_parser("mutants", help="wrong solutions that test the rubrics, and what they earn")
    mutants.add_argument("what", choices=("show", "diff"), help="the module, or what differs from a right one")
    mutants.add_argument("exercise", metavar="EXERCISE", help="ring_allreduce, say")
    mutants.add_argument("name", metavar="NAME", nargs="?", help="the mutant (default: list all)")
    mutants.set_defaults(run=_mutants)

    commands.add_parser("predict", help="how long a step takes, what it holds, the best layout", add_help=False)
    commands.add_parser("calibrate", help="measure this machine, and write it down for predictions", add_help=False)
    commands.add_parser("start", help="open JupyterLab; what follows is passed on to it", add_help=False)
    commands.add_parser("demo", help="one exercise from notebook cell to gradebook").set_defaults(run=_demo)
    commands.add_parser("doctor", help="what works on this machine").set_defaults(run=_doctor)
    return parser


def _predict(arguments: list[str]) -> int:
    from labkit.predict import command

    try:
        return command.main(arguments)
    except ValueError as error:
        raise CommandError(str(error)) from None


def _calibrate(arguments: list[str]) -> int:
    from labkit.calibrate import MeasuringFailed, command

    try:
        return command.main(arguments)
    except (ValueError, MeasuringFailed, OSError) as error:
        raise CommandError(str(error)) from None


def _check(options: argparse.Namespace) -> int:
    if options.file is not None:
        _require_file(options.file)
    from labkit.checks import command

    return command.main(options.name, options.file, options.cluster, options.seed)


def _hint(options: argparse.Namespace) -> int:
    from labkit.checks import hints

    return hints.main(options.name)


def _sync(options: argparse.Namespace) -> int:
    from labkit import sync

    return sync.main(check=options.check)


def _edit(options: argparse.Namespace) -> int:
    _require_file(options.notebook)
    from labkit.edit import edit

    return edit(options.notebook)


def _autograde(options: argparse.Namespace) -> int:
    _require_autograder("grading")
    from autograder.batch.launch import Nursery, begin

    if not options.status:
        begin()  # the imports of what sandboxes are forked from go on beside the next ones
    from autograder.batch import command

    return command.main(
        options.assignment,
        options.student,
        course=options.course,
        workers=options.workers,
        again=options.regrade,
        only_errors=options.retry,
        status=options.status,
        json=options.json,
        settings=options.passed_on,
        nursery=None if options.status else Nursery(forked=True),
    )


def _formgrader(options: argparse.Namespace) -> NoReturn:
    _require_autograder("the formgrader")
    from autograder import formgrader

    formgrader.main(options.course, options.passed_on)


def _verdict(options: argparse.Namespace) -> int:
    _require_autograder("a verdict")
    from autograder.feedback import command

    return command.main(options.assignment, options.student, options.course)


def _grades(options: argparse.Namespace) -> int:
    _require_autograder("reading the gradebook")
    from autograder.batch import command

    return command.grades(options.assignment, options.to, options.lms or "csv", options.course)


def _mutants(options: argparse.Namespace) -> int:
    _require_autograder("showing wrong solutions")
    from autograder.mutants import command

    return command.main(options.what, options.exercise, options.name)


def _demo(options: argparse.Namespace) -> int:
    _require_autograder("the demo")
    from autograder import demo

    return demo.main()


def _integrity(options: argparse.Namespace) -> int:
    if importlib.util.find_spec("autograder") is None:
        raise CommandError("comparing submissions needs the autograder: pip install ./autograder")
    for folder in options.also:
        if not folder.is_dir():
            raise CommandError(f"{folder} is not a folder")
    from autograder.integrity import command

    return command.main(options.phase, options.course, options.also, options.anonymous)


def _doctor(options: argparse.Namespace) -> int:
    from labkit import doctor

    return doctor.main()


def _require_autograder(what: str) -> None:
    if importlib.util.find_spec("autograder") is None:
        raise CommandError(f"{what} needs the autograder: pip install ./autograder, or use ./lab")


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a number of 1 or more is needed, not {text!r}")
    return int(text)


def _require_file(path: Path) -> None:
    if not path.is_file():
        raise CommandError(f"{path} is not a file" if path.exists() else f"there is no file {path}")


if __name__ == "__main__":
    sys.exit(main())
