"""The plugins in tests/plugins: which skips pass in CI, and what a run prints at its end."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def run(folder: Path, source: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run one file of tests, named after the folder, in a project that has the plugins."""
    folder.mkdir(exist_ok=True)
    (folder / "conftest.py").write_text((ROOT / "conftest.py").read_text())
    (folder / f"test_{folder.name}.py").write_text(f"import pytest\n{source}\ndef test_other():\n    pass\n")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, str(folder), f"--rootdir={folder}"],
        env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT / "tests/plugins"), **environment},
        capture_output=True,
        text=True,
    )


SKIPS = """
def test_on_a_gpu():
    pytest.skip("needs a GPU: NCCL has no other ranks")
def test_in_chromium():
    pytest.skip("needs system packages: chromium")
def test_as_root():
    pytest.skip("needs root: to become an ordinary user")
def test_in_a_sandbox():
    pytest.skip("needs bubblewrap")
"""


@pytest.mark.parametrize(
    ("environment", "options", "failed"),
    [
        ({"CI": "true"}, (), {"test_in_chromium", "test_as_root", "test_in_a_sandbox", "test_module"}),
        ({"CI": "true"}, ("--bare",), {"test_in_a_sandbox", "test_module"}),
        ({}, (), set()),
    ],
    ids=["CI", "CI on a bare machine", "elsewhere"],
)
def test_unexpected_skip_fails_in_ci(
    tmp_path: Path, environment: dict[str, str], options: tuple[str, ...], failed: set[str]
) -> None:
    (tmp_path / "test_module.py").write_text("import pytest\npytest.skip('missing', allow_module_level=True)\n")
    done = run(tmp_path, SKIPS, "--continue-on-collection-errors", *options, **environment)
    assert set(re.findall(r"^(?:FAILED|ERROR) .*?(test_\w+)(?:\.py)? - ", done.stdout, re.MULTILINE)) == failed
    assert bool(done.returncode) == bool(failed)


NEEDY = """
from system_packages import needs_packages
@pytest.fixture(scope="module")
def browser():
    needs_packages("chromium")
@pytest.mark.parametrize("n", [1, 2])
def test_in_browser(browser, n):
    raise AssertionError
def test_jobs():
    needs_packages("slurmctld", "slurmd", "munge")
"""


def test_one_line_counts_what_was_skipped_for_want_of_packages_in_all_runs(tmp_path: Path) -> None:
    """A PATH with python only; Debian keeps Slurm's daemons in /usr/sbin, which is searched, too."""
    runs = tmp_path / "runs"
    runs.mkdir()
    environment = {"PATH": str(tmp_path), "LAB_TEST_RUNS": str(runs)}
    source = f"import system_packages\nsystem_packages.FOLDERS = ()\n{NEEDY}"
    run(tmp_path / "first", source, **environment)
    done = run(tmp_path / "last", source, "-p", "xdist.plugin", "-n2", **environment)
    *_, line, closing = done.stdout.splitlines()
    assert line == "skipped for want of system packages: 4 tests (chromium), 2 tests (slurmctld slurmd munge)"
    assert "1 passed, 3 skipped" in closing


def test_slowest_sums_up_seconds_by_folder_over_all_runs(tmp_path: Path) -> None:
    sleeps = "import time\ndef test_sleeps():\n    time.sleep({})\n"
    run(tmp_path / "first", sleeps.format(0.3), LAB_TEST_RUNS=str(tmp_path))
    done = run(tmp_path / "last", sleeps.format(0.1), "--slowest", LAB_TEST_RUNS=str(tmp_path))
    lines = done.stdout.splitlines()
    rows = [line.split() for line in lines if "::" in line]
    own = [f"test_{run}.py::test_{name}" for run in ("first", "last") for name in ("other", "sleeps")]
    assert sorted(test.rpartition("/")[2] for _, test in rows) == own, done.stdout
    seconds = [float(spent) for spent, _ in rows]
    assert seconds == sorted(seconds, reverse=True) and seconds[0] >= 0.3, done.stdout
    (total,) = (line.split() for line in lines if line.endswith("in all"))
    assert float(total[0]) >= 0.4 and total[1] == "4"
    assert "2 passed" in lines[-1]


def test_the_tests_of_a_module_stay_on_one_worker(tmp_path: Path) -> None:
    source = "\n".join(f"def test_{number}(): pass" for number in range(12))
    (tmp_path / "test_another.py").write_text(source)
    done = run(tmp_path, source, "-p", "xdist", "-n", "2", "--dist", "loadgroup", "-v")
    workers: dict[str, set[str]] = {}
    for worker, module in re.findall(r"^\[(gw\d)\] .* PASSED (?:.*/)?(test_\w+)\.py::", done.stdout, re.MULTILINE):
        workers.setdefault(module, set()).add(worker)
    assert len(workers) == 2 and all(len(on) == 1 for on in workers.values()), done.stdout
