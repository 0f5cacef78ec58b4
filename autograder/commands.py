"""Instructors' commands of `labkit`, an entry point; each imports what it needs only when it runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NoReturn

from labkit.command_line.commands import CommandError, require_file


def add(commands: Any) -> None:
    """Add the commands to the sub-parsers of `labkit`."""
    course = "the course's folder (default: $LABKIT_COURSE, else course/ in the lab)"

    demo = commands.add_parser("demo", help="take one exercise from notebook cell to gradebook")
    demo.set_defaults(run=_demo)

    integrity = commands.add_parser("integrity", help="list what to review in submissions; changes no marks")
    integrity.add_argument("phase", metavar="PHASE", help="the assignment, such as phase3_multi_node")
    integrity.add_argument("--course", type=Path, metavar="DIR", help=course)
    integrity.add_argument(
        "--also", type=Path, metavar="DIR", action="append", default=[], help="an earlier course to compare with"
    )
    integrity.add_argument("--anonymous", action="store_true", help="hide learners' names")
    integrity.set_defaults(run=_integrity)

    autograde = commands.add_parser(
        "autograde",
        help="grade submissions in parallel on all cores",
        epilog="Settings of nbgrader_config.py can be overridden for this run: --JudgeCells.timeout=40",
    )
    autograde.add_argument("assignment", metavar="ASSIGNMENT", help="the assignment, such as phase3_multi_node")
    autograde.add_argument("--student", nargs="+", default=[], metavar="NAME", help="only these learners")
    autograde.add_argument("--workers", type=_count, metavar="N", help="judging processes (default: one per core)")
    autograde.add_argument("--course", type=Path, metavar="DIR", help=course)
    autograde.add_argument("--regrade", action="store_true", help="judge again, even submissions with a valid verdict")
    autograde.add_argument("--retry", action="store_true", help="only submissions that ended in a grader error")
    autograde.add_argument("--status", action="store_true", help="grade nothing; show the status of all submissions")
    autograde.add_argument("--json", action="store_true", help="print the results as JSON")
    autograde.set_defaults(run=_autograde, passed_on=[])

    teach = commands.add_parser(
        "teach", help="open JupyterLab on the course's formgrader; further options are passed on to JupyterLab"
    )
    teach.add_argument("--course", type=Path, metavar="DIR", help=course)
    teach.set_defaults(run=_teach, passed_on=[])

    hub = commands.add_parser("hub", help="run the course for many learners: JupyterHub on this machine, until Ctrl-C")
    hub.add_argument("--site", type=Path, metavar="FILE", help="settings (default: cluster/jupyterhub/site.toml)")
    hub.add_argument("--learners", type=_count, metavar="N", default=0, help="let learner1 to learnerN log in, too")
    hub.add_argument("--demo", action="store_true", help="fill the course with submissions of the learners")
    hub.add_argument("--check", action="store_true", help="start nothing; report what is missing on this machine")
    hub.add_argument("--new-password", metavar="NAME", help="forget a password; an instructor is given a new one")
    hub.add_argument("--backup", type=Path, metavar="FILE", help="write the whole classroom to FILE, a .tar.gz")
    hub.add_argument("--restore", type=Path, metavar="FILE", help="make the classroom from a backup")
    hub.add_argument("--roster", action="store_true", help="let the learners of the learning platform's course log in")
    hub.add_argument("--send-marks", metavar="ASSIGNMENT", help="send an assignment's marks to the learning platform")
    hub.set_defaults(run=_hub)

    verdict = commands.add_parser("verdict", help="show everything that the judge found in a learner's submission")
    verdict.add_argument("assignment", metavar="ASSIGNMENT", help="the assignment, such as phase3_multi_node")
    verdict.add_argument("student", metavar="NAME", help="the learner's name in submitted/")
    verdict.add_argument("--course", type=Path, metavar="DIR", help=course)
    verdict.set_defaults(run=_verdict)

    grades = commands.add_parser("grades", help="write the marks to a file, optionally for Canvas or Moodle")
    grades.add_argument("assignment", metavar="ASSIGNMENT", nargs="*", help="the assignments (default: all)")
    grades.add_argument(
        "--to", type=Path, metavar="FILE", default=Path("grades.csv"), help="write them there (default: %(default)s)"
    )
    grades.add_argument("--lms", choices=("canvas", "moodle"), help="format for import into that platform")
    grades.add_argument("--course", type=Path, metavar="DIR", help=course)
    grades.set_defaults(run=_grades)

    challenge = commands.add_parser("judge-challenge", help="score entries of a challenge in the sandbox")
    challenge.add_argument("name", metavar="NAME", help="the challenge")
    challenge.add_argument("files", metavar="FILE", nargs="+", type=Path, help="the entries")
    challenge.add_argument(
        "--seed", type=int, required=True, metavar="N", help="seed of the instances, 10 digits; keep it to yourself"
    )
    challenge.set_defaults(run=_judge_challenge)

    for kind, what in (
        ("mutants", "show wrong solutions that test the rubrics, and their marks"),
        ("variants", "show other right solutions, which earn full marks"),
    ):
        modules = commands.add_parser(kind, help=what)
        modules.add_argument("what", choices=("show", "diff"), help="the module, or its diff from a correct one")
        modules.add_argument("exercise", metavar="EXERCISE", help="the exercise, such as ring_allreduce")
        modules.add_argument("name", metavar="NAME", nargs="?", help=f"one of the {kind} (default: list all)")
        modules.set_defaults(run=_modules, kind=kind)

    judging = commands.add_parser("judge-mutants", help="judge wrong solutions by all checks, and write their table")
    judging.add_argument("exercises", nargs="*", metavar="EXERCISE", help="names (default: all)")
    judging.add_argument(
        "--draws", type=_count, default=1, metavar="N", help="judge each N times, with other inputs (default: 1)"
    )
    judging.set_defaults(run=_judge_mutants)

    new = commands.add_parser("new-exercise", help="make every file of a new exercise from skeletons; for authors")
    new.add_argument("name", metavar="PHASE/NAME", nargs="?", help="the exercise, such as phase3_multi_node/ddp")
    new.add_argument(
        "--number", type=_count, metavar="N", help="the exercise's place in the course (default: the next)"
    )
    new.add_argument(
        "--into",
        type=Path,
        metavar="FOLDER",
        help="your own exercises, outside of the lab (default: $LABKIT_EXERCISES, else the lab)",
    )
    new.add_argument("--check", action="store_true", help="list what is missing or still to be filled in")
    new.set_defaults(run=_new_exercise)


def _autograde(options: argparse.Namespace) -> int:
    from autograder.batch.launch import WorkerForkServer, begin

    if not options.status:
        begin()  # the sandboxes' forkserver imports in parallel with the imports below
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
        forkserver=None if options.status else WorkerForkServer(forked=True),
    )


def _teach(options: argparse.Namespace) -> NoReturn:
    from autograder import teach

    teach.main(options.course, options.passed_on)


def _hub(options: argparse.Namespace) -> int:
    from autograder.classroom.site import DEFAULT
    from labkit import catalogue

    site = (options.site or catalogue.root() / DEFAULT).resolve()
    if options.backup or options.restore:
        from autograder.classroom import backup

        return backup.backup(site, options.backup) if options.backup else backup.restore(site, options.restore)
    if options.roster or options.send_marks:
        from autograder.classroom import platform_commands

        if options.roster:
            return platform_commands.roster(site)
        return platform_commands.send_marks(site, options.send_marks)
    from autograder.classroom import check, command

    if options.check:
        return check.main(site)
    if options.new_password:
        return command.forget_password(site, options.new_password)
    return command.main(site, options.learners, options.demo)


def _verdict(options: argparse.Namespace) -> int:
    from autograder.feedback import command

    return command.main(options.assignment, options.student, options.course)


def _grades(options: argparse.Namespace) -> int:
    from autograder.batch import command

    return command.grades(options.assignment, options.to, options.lms or "csv", options.course)


def _judge_challenge(options: argparse.Namespace) -> int:
    for file in options.files:
        require_file(file)
    from autograder import challenge

    return challenge.main(options.name, options.files, options.seed)


def _modules(options: argparse.Namespace) -> int:
    from autograder.mutants import command

    return command.main(options.kind, options.what, options.exercise, options.name)


def _judge_mutants(options: argparse.Namespace) -> int:
    from autograder.mutants import whole_table

    return whole_table.main(options.exercises, options.draws)


def _new_exercise(options: argparse.Namespace) -> int:
    if options.check == bool(options.name):
        raise CommandError("give either the name of the new exercise, PHASE/NAME, or --check")
    from autograder.authoring import new_exercise

    return new_exercise.check() if options.check else new_exercise.main(options.name, options.number, options.into)


def _demo(options: argparse.Namespace) -> int:
    from autograder import demo

    return demo.main()


def _integrity(options: argparse.Namespace) -> int:
    for folder in options.also:
        if not folder.is_dir():
            raise CommandError(f"{folder} is not a folder")
    from autograder.integrity import command

    return command.main(options.phase, options.course, options.also, options.anonymous)


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)
