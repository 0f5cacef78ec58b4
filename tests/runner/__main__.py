"""`./lab test`: the checks and tests of one tier.

./lab test                       default: every check and test
./lab test --quick               checks, and what runs in one process and on virtual ranks
./lab test --merge               what CI runs: quick, one real run of each kind, and what the change reaches
./lab test --all [--shard 2/4]   also the exhaustive tests; a shard that was stopped goes on where it was
./lab test --list                prints what --merge chooses, and why
./lab test --install-command     prints how to install the system packages that tests need and that are missing
./lab test --list-bare           the tests for a machine with Python alone; with --merge, those of that tier
./lab test --bare TESTS          those tests, on such a machine
./lab test --until-failure TEST [--busy 8]   again and again, beside eight busy processes
./lab test PYTEST_ARGUMENTS      pytest alone, with those arguments
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "plugins"))

import last_pass
import outcome_log
import plan
import system_packages
from changes import Checkout
from sources import Sources
from steps import Steps

ROOT = Path(__file__).resolve().parent.parent.parent
UNTIL_FAILURE = ROOT / "tests/runner/until_failure.py"
SHARDS = ROOT / ".labkit/shards"
"""Outcomes of shards that have begun, a file each; to go on elsewhere, copy the file."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="./lab test", usage=__doc__, add_help=False, allow_abbrev=False)
    tiers = parser.add_mutually_exclusive_group()
    for tier in ("quick", "merge", "all"):
        tiers.add_argument(f"--{tier}", dest="tier", action="store_const", const=tier, default="default")
    parser.add_argument("--shard", type=_shard, metavar="K/N")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--list-bare", action="store_true")
    parser.add_argument("--install-command", action="store_true")
    parser.add_argument("--slowest", action="store_true")
    parser.add_argument("--bare", action="store_true")
    if arguments[:1] == ["--until-failure"]:
        os.execvp("python", ["python", str(UNTIL_FAILURE), *arguments[1:]])
    options, rest = parser.parse_known_args(arguments)
    os.chdir(ROOT)
    if options.bare:
        with tempfile.TemporaryDirectory(prefix="lab-test-") as scratch:
            return _ended(Steps(ROOT, Path(scratch), plan.bare(rest), [], Path(scratch, "outcomes")).run())
    if rest:
        os.execvp("pytest", ["pytest", *arguments])
    missing = system_packages.missing()
    if options.install_command:
        print(system_packages.command_to_install(missing) if missing else "", end="")
        return 0
    if missing and os.environ.get("CI") == "true" and not (options.list or options.list_bare):
        print(
            f"lab test: tests need system packages that are not installed here: {', '.join(missing)}. Under CI=true a "
            f"skipped test fails. This installs them:\n    {system_packages.command_to_install(missing)}",
            file=sys.stderr,
        )
        return 2
    checkout = Checkout(ROOT)
    chosen = _plan(options, checkout)
    if options.list_bare:
        print(*chosen.for_a_bare_machine(), sep="\n")
        return 0
    print(chosen.describe(), flush=True)
    if options.list:
        return 0
    began, commit = time.monotonic(), checkout.commit()
    with tempfile.TemporaryDirectory(prefix="lab-test-") as scratch:
        results = _begun(options, commit) if chosen.exhaustive else Path(scratch, "outcomes")
        steps = Steps(ROOT, Path(scratch), chosen, ["--slowest"] if options.slowest else [], results)
        if _ended(steps.run()):
            return 1
        if chosen.tier == "default" and commit is not None and commit == checkout.commit():
            minutes = (time.monotonic() - began) / 60
            last_pass.report(commit, minutes, steps.workers, outcome_log.load(results), steps.second_tries()).save(ROOT)
    return 0


def _ended(failed: list[str]) -> int:
    """Exit status, after naming the steps that have failed."""
    if failed:
        print(f"lab test: failed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


def _plan(options: argparse.Namespace, checkout: Checkout) -> plan.Plan:
    files = checkout.files() or _without_git()
    last = last_pass.load(ROOT)
    if options.tier == "merge" or options.list:
        return plan.merge(Sources(ROOT, files), checkout.changed_since(last.commit), last)
    if options.tier == "quick":
        return plan.quick(files, last)
    if options.tier == "all":
        return plan.exhaustive(files, options.shard or (1, 1), last)
    return plan.default(files, last)


def _without_git() -> list[str]:
    """The files of a checkout that is no git repository, as git would list them."""
    folders = ("autograder", "labkit", "notebooks", "solutions", "templates", "tests", "benchmarks", "cluster", "docs")
    found = (path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file())
    return sorted(str(path.relative_to(ROOT)) for path in found if "__pycache__" not in path.parts)


def _begun(options: argparse.Namespace, commit: str | None) -> Path:
    """The file of a shard's outcomes: those of this commit stay, so that what has passed is not run again."""
    number, count = options.shard or (1, 1)
    SHARDS.mkdir(parents=True, exist_ok=True)
    path = SHARDS / f"{commit}-{number}-of-{count}.jsonl"
    if commit is None:  # the files differ from the commit's: nothing says that they are the same as before
        path.unlink(missing_ok=True)
    for other in SHARDS.glob(f"*-{number}-of-{count}.jsonl"):
        if other != path:
            other.unlink()
    return path


def _shard(text: str) -> tuple[int, int]:
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(f"K/N with 1 <= K <= N, not {text}")
    return int(number), int(count)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
