"""The tiers of `./lab test`: which tests each has."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import last_pass
import plan
import pytest
import tiers
from changes import Checkout
from last_pass import LastPass
from outcome_log import Outcome, ended_well, load
from selection import Chosen
from sources import Sources

ROOT = Path(__file__).resolve().parent.parent.parent


def test_quick_has_what_runs_in_one_process_but_the_slowest(files: list[str]) -> None:
    slow, fast = "tests/plots/test_cuts.py::test_slow", "tests/plots/test_cuts.py::test_fast"
    limit = tiers.table()["quick"]["longest_seconds"]
    chosen = plan.quick(files, LastPass(slow={slow: limit + 1, fast: limit})).chosen
    assert chosen is not None
    assert chosen.has(fast) and not chosen.has(slow)
    assert not chosen.has("tests/clusters/local/test_ranks.py::test_it")
    assert chosen.has("tests/clusters/virtual/test_store.py::test_it")


def test_merge_has_quick_one_real_run_of_each_kind_and_what_the_change_reaches(files: list[str]) -> None:
    made = plan.merge(
        Sources(ROOT, files), ["solutions/phase3_multi_node/zero.py", last_pass.NAME], LastPass("1234567890")
    )
    assert made.tier == "merge" and made.chosen is not None
    for chosen in (
        "tests/plots/test_cuts.py::test_it",
        "tests/course/phase3_multi_node/zero/test_zero.py::test_it[local]",
        "notebooks/phase3_multi_node/15_zero.ipynb::Cell 3",
        "tests/autograder/test_whole_course.py::test_it[zero]",
        "tests/autograder/test_whole_course.py::test_it",
        *(pattern.replace("*", "test_it") for pattern in tiers.table()["one_of_each"].values()),
    ):
        assert made.chosen.has(chosen), chosen
        assert chosen.partition("::")[0] in made.modules
    for left_out in (
        "tests/autograder/test_whole_course.py::test_it[ring_allreduce]",
        "tests/notebook/test_viewer.py::test_it",
        "notebooks/phase3_multi_node/10_ring_allreduce.ipynb::Cell 3",
    ):
        assert not made.chosen.has(left_out), left_out
    assert "solutions/phase3_multi_node/zero.py reaches" in made.describe()
    assert made.for_a_bare_machine() == tiers.table()["bare"]["always"], (
        "it does nothing else on a machine with Python alone"
    )


@pytest.mark.parametrize("changed", [None, ["lab"], ["strange.bin"]])
def test_merge_is_default_where_a_selection_cannot_be_computed(sources: Sources, changed: list[str] | None) -> None:
    made = plan.merge(sources, changed, LastPass())
    assert set(made.for_a_bare_machine()) == {test for tests in tiers.table()["bare"].values() for test in tests}
    assert (made.tier, made.modules, made.chosen) == ("default", plan.default(sources.files, LastPass()).modules, None)


def test_every_kind_of_the_table_has_tests_and_one_of_each_is_real(files: list[str]) -> None:
    modules = plan.default(files, LastPass()).modules
    table = tiers.table()
    for kind, patterns in table["real"].items():
        for pattern in patterns:
            assert any(tiers.matches(f"{module}::", [pattern]) for module in modules), f"{kind}: nothing fits {pattern}"
    for kind, pattern in table["one_of_each"].items():
        assert pattern.partition("::")[0] in modules and tiers.real_kind(pattern), kind
    named = [pattern.partition("::")[0] for tests in table["bare"].values() for pattern in tests]
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_all_tests_depend_on_what_every_run_loads(sources: Sources) -> None:
    named = ast.literal_eval(sources.text("conftest.py").partition("pytest_plugins = ")[2])
    waiting = [f"tests/plugins/{name}.py" for name in named] + ["tests/runner/__main__.py"]
    loaded: set[str] = set()
    while waiting:
        loaded.add(path := waiting.pop())
        used = sources.uses(path).files - loaded
        waiting += [one for one in used if one.startswith(("tests/plugins/", "tests/runner/")) and one.endswith(".py")]
    loaded -= {"tests/runner/until_failure.py", "tests/runner/conftest.py"}  # another command, and the runner's tests
    assert [path for path in sorted(loaded) if not tiers.matches(path, tiers.table()["everything"]["files"])] == []


def test_what_takes_longest_begins_first_and_stays_together() -> None:
    slurm = ["tests/clusters/slurm/test_a.py", "tests/clusters/slurm/test_c.py"]
    seconds = {"tests/trace/test_b.py": 30.0, slurm[0]: 20.0, slurm[1]: 15.0}
    files = ["tests/trace/test_new.py", *seconds, "tests/trace/test_a.py"]
    modules = plan.default(files, LastPass(seconds=seconds | {"tests/trace/test_a.py": 1.0})).modules
    assert modules == (*slurm, files[1], files[0], files[-1])


@pytest.mark.parametrize("count", [1, 3])
def test_shards_are_all_tests_once_and_take_equally_long(files: list[str], count: int) -> None:
    modules = plan.default(files, LastPass()).modules
    seconds = {module: float(number % 50) for number, module in enumerate(modules)}
    shards = [plan.exhaustive(files, (number, count), LastPass(seconds=seconds)) for number in range(1, count + 1)]
    assert sorted(module for shard in shards for module in shard.modules) == sorted(modules)
    lengths = [sum(seconds[module] for module in shard.modules) for shard in shards]
    assert max(lengths) - min(lengths) <= 1


def test_of_a_module_of_all_exercises_those_of_one_run_and_those_of_none() -> None:
    chosen = Chosen(modules={"tests/test_all.py": ["ddp"]}, exercises=["ddp", "zero"])
    names = [
        "test_it",
        "test_it[ddp-2]",
        "test_it[phase3/ddp]",
        "test_it[zero-2]",
        "test_it[4-zero]",
        "test_it[zeroed]",
    ]
    assert [chosen.has(f"tests/test_all.py::{name}") for name in names] == [True, True, True, False, False, True]


def test_changes_are_those_since_the_last_pass_committed_or_not(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    checkout = Checkout(tmp_path)
    assert checkout.files() is None and checkout.commit() is None
    git("init", "-q", "-b", "main")
    for name in ("stays", "moves", "goes", "changes in a commit", "geändert"):
        (tmp_path / name).write_text(name)
    git("add", ".")
    git("commit", "-qm", "passed")
    passed = git("rev-parse", "HEAD")
    assert (checkout.commit(), checkout.changed_since(passed)) == (passed, [])
    git("mv", "moves", "moved")
    (tmp_path / "changes in a commit").write_text("2")
    git("commit", "-qam", "later")
    (tmp_path / "goes").unlink()
    (tmp_path / "geändert").write_text("2")
    (tmp_path / "new").touch()
    assert checkout.changed_since(passed) == ["changes in a commit", "geändert", "goes", "moved", "moves", "new"]
    assert checkout.commit() is None, "these are no commit's files"
    assert checkout.files() == ["changes in a commit", "geändert", "moved", "new", "stays"]
    git("checkout", "-q", "--orphan", "another", "--force")
    git("commit", "-qm", "another history")
    assert checkout.changed_since(passed) is None and checkout.changed_since("") is None


def test_a_report_sums_up_what_the_log_has(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        '["a/test_a.py::test_1", "setup", "passed", 2.0]\n["a/test_a.py::test_1", "call", "passed", 1.5]\n'
        '["a/test_a.py::test_1", "teardown", "passed", 0.5]\n["a/test_a.py::test_2", "setup", "skipped", 0.1]\n'
        '["a/test_a.py::test_2", "teardown", "passed", 0.1]\n["a/test_a.py::test_3", "se'
    )
    report = last_pass.report("abc", 12.34, 3, load(log), ["b"])
    assert report == LastPass(
        commit="abc",
        minutes=12.3,
        workers=3,
        counts={"passed": 1, "skipped": 1},
        second_tries=["b"],
        seconds={"a/test_a.py": 4.2},
        slow={"a/test_a.py::test_1": 4.0},
    )
    (tmp_path / "tests").mkdir()
    assert last_pass.load(tmp_path) == LastPass()
    report.save(tmp_path)
    assert last_pass.load(tmp_path) == report


def test_tests_that_failed_or_were_cut_short_run_again() -> None:
    log = [
        *(Outcome("passed", phase, "passed", 0.0) for phase in ("setup", "call", "teardown")),
        *(Outcome("skipped", phase, outcome, 0.0) for phase, outcome in (("setup", "skipped"), ("teardown", "passed"))),
        Outcome("failed", "setup", "passed", 0.0),
        Outcome("failed", "call", "failed", 0.0),
        Outcome("failed", "teardown", "passed", 0.0),
        Outcome("cut short", "setup", "passed", 0.0),
        Outcome("cut short", "call", "passed", 0.0),
        *(Outcome("passed later", phase, "failed", 0.0) for phase in ("setup", "call", "teardown")),
        *(Outcome("passed later", phase, "passed", 0.0) for phase in ("setup", "call", "teardown")),
    ]
    assert ended_well(log) == {"passed", "skipped", "passed later"}
