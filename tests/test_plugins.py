"""The plugins in tests/plugins: which skips pass in CI, and what a run prints at its end."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
import second_try
from waiting import wait_until

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT / "tests/plugins")}


def run(
    folder: Path, source: str, *options: str, top: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run one file of tests, named after the folder, in a project that has the plugins. top: the project's folder."""
    top = top or folder
    folder.mkdir(exist_ok=True, parents=True)
    (top / "conftest.py").write_text((ROOT / "conftest.py").read_text())
    (folder / f"test_{folder.name}.py").write_text(f"import pytest\n{source}\ndef test_other():\n    pass\n")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, str(folder), f"--rootdir={top}"],
        env={**ENVIRONMENT, "TMPDIR": tempfile.gettempdir(), **environment},
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
    log = f"--outcomes={tmp_path / 'log'}"
    run(tmp_path / "first", sleeps.format(0.3), log)
    done = run(tmp_path / "last", sleeps.format(0.1), log, "--slowest")
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


LEAVES = """
import subprocess, socket, tempfile, time
from multiprocessing import shared_memory
kept = []
@pytest.fixture(scope="session")
def daemon():
    kept.append(subprocess.Popen(["sleep", "3001"]))
    kept.append(socket.create_server(("127.0.0.1", 0)))
    kept.append(tempfile.mkdtemp(prefix="of-the-session-"))
    yield
    kept[0].kill()
@pytest.fixture(scope="module")
def child():
    started = subprocess.Popen(["sleep", "3002"])
    yield
    started.kill()
def test_with_what_ends(daemon, child, tmp_path):
    (tmp_path / "file").touch()
    with tempfile.TemporaryDirectory(), socket.create_server(("127.0.0.1", 0)):
        subprocess.run(["true"])
"""
LEFT = {
    "child": ('subprocess.Popen(["sleep", "3003"])', r"process \d+, begun in \S+::test_leaves: sleep 3003"),
    "orphan": (
        'subprocess.run("setsid sleep 3004 &", shell=True)',
        r"process \d+, begun in \S+::test_leaves: sleep 3004",
    ),
    "port": (
        'kept.append(socket.create_server(("127.0.0.1", 0)))',
        r"port \d+, open in process \d+ \(.*pytest.*\) after \S+::test_leaves",
    ),
    "memory": (
        "kept.append(shared_memory.SharedMemory(create=True, size=8))",
        r"file /dev/shm/psm_\w+, there after \S+::test_leaves",
    ),
    "file": ('tempfile.mkdtemp(prefix="mine-")', r"file \S+/mine-\w+, there after \S+::test_leaves"),
}


def test_a_module_that_leaves_nothing_passes(tmp_path: Path) -> None:
    done = run(tmp_path / "clean", LEAVES)
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout


def test_a_module_fails_by_what_it_leaves(tmp_path: Path) -> None:
    """Each thing is named with the test that made it, and a module that comes later is not blamed for it."""
    folder = tmp_path / "leaves"
    folder.mkdir()
    (folder / "test_later.py").write_text("def test_later():\n    pass\n")
    # the kernel's clock ticks: not in that of the tests before and after
    made = "\n    ".join(["time.sleep(0.1)", *(statement for statement, _ in LEFT.values()), "time.sleep(0.1)"])
    source = f"import left_over\nleft_over.STILL_SECONDS = 0.0\n{LEAVES}\ndef test_leaves():\n    {made}\n"
    done = run(folder, source)
    assert "4 passed, 1 error" in done.stdout, done.stdout
    (message,) = re.findall(r"ERROR at teardown of test_other _+\n(.*?)\n=", done.stdout, re.DOTALL)
    _, *lines = message.splitlines()
    assert len(lines) == len(LEFT), message
    for _, pattern in LEFT.values():
        assert any(re.fullmatch(pattern, line) for line in lines), message


LUCK = """
from pathlib import Path
import os
def passes(name):
    there = Path(os.environ["MARKS"], name)
    if there.exists():
        return True
    there.touch()
    print("the first try of", name)
    return False
@pytest.fixture
def torn_down():
    yield
    assert passes("torn_down")
@pytest.mark.parametrize("n", ["a b", "::"])
def test_luck(n):
    assert passes(f"luck{n}")
def test_tear_down(torn_down):
    pass
def test_broken():
    assert not os.environ.get("BROKEN")
"""
REAL, IN_PROCESS = "tests/launch", "tests/trace"


def tries(folder: Path, where: str, **environment: str) -> list[subprocess.CompletedProcess[str]]:
    """A run side by side, and its second try."""
    for name in ("marks", "runs"):
        (folder / name).mkdir()
    variables = {"MARKS": str(folder / "marks"), "LAB_TEST_RUNS": str(folder / "runs"), **environment}
    (folder / "tests").mkdir()
    first = run(folder / where, LUCK, "-p", "xdist.plugin", "-n2", "--dist", "loadgroup", top=folder, **variables)
    return [first, run(folder / where, LUCK, "--second-try", top=folder, **variables)]


def test_a_test_of_real_processes_has_a_second_try(tmp_path: Path) -> None:
    first, second = tries(tmp_path, REAL)
    assert first.returncode == 0 and second.returncode == 0, first.stdout + second.stdout
    assert "2 failed" in first.stdout and "1 error" in first.stdout
    # the whole module of a tear-down that has failed
    assert "5 passed" in second.stdout.splitlines()[-1]
    table = second.stdout[second.stdout.index("failed, and passed alone") :]
    for test in ("test_luck[a b]", "test_luck[::]", "test_tear_down"):
        assert f"{REAL}/test_launch.py::{test}" in table
        assert re.search(rf"\./lab test --until-failure \S*{re.escape(test)}\S* --busy 8", table)
    assert "the first try of lucka b" in table and "commit" in table
    assert len((tmp_path / "runs" / "lucky").read_text().splitlines()) == 3


def test_the_second_try_has_what_a_test_builds_on() -> None:
    ran = ["a.ipynb::Cell 0", "a.ipynb::Cell 1", "b.ipynb::Cell 0", "test_a.py::test_one", "test_a.py::test_two"]
    assert second_try.together("a.ipynb::Cell 1", "call", ran) == ran[:2]
    assert second_try.together("test_a.py::test_two", "call", ran) == ran[4:]
    assert second_try.together("test_a.py::test_two", "teardown", ran) == ran[3:]


def test_a_second_try_may_fail(tmp_path: Path) -> None:
    first, second = tries(tmp_path, REAL, BROKEN="yes")
    assert first.returncode == 0 and second.returncode == 1, first.stdout + second.stdout
    assert "1 failed" in second.stdout.splitlines()[-1] and "test_luck[a b]" in second.stdout
    # nor has its module left nothing
    for test in ("test_broken", "test_tear_down"):
        assert re.search(rf"^did not pass alone either: \S*{test} ", second.stdout, re.MULTILINE), second.stdout


def test_ranks_in_processes_make_any_test_one_of_real_processes(tmp_path: Path) -> None:
    source = """
from labkit import Job, local, virtual
def test_ranks():
    local(nproc_per_node=1).run(Job(source="1"))
    assert False
def test_virtual_ranks():
    virtual(nproc_per_node=1).run(Job(source="1"))
"""
    environment = {"LAB_TEST_RUNS": str(tmp_path), "PYTHONPATH": f"{ENVIRONMENT['PYTHONPATH']}:{ROOT}"}
    done = run(tmp_path / "tests/trace", source, "-p", "xdist.plugin", "-n1", top=tmp_path, **environment)
    assert "1 failed, 2 passed" in done.stdout and done.returncode == 0, done.stdout
    done = run(tmp_path / "tests/plots", source + "    assert False", top=tmp_path, **environment)
    assert "2 failed, 1 passed" in done.stdout and done.returncode == 1, "that of virtual ranks is no luck"


def test_other_tests_have_none(tmp_path: Path) -> None:
    first, second = tries(tmp_path, IN_PROCESS)
    assert first.returncode == 1 and second.returncode == 4, first.stdout + second.stdout


@pytest.mark.parametrize(
    "source",
    [
        "import os\ndef test_crash():\n    os._exit(3)",
        "import missing_module",
    ],
    ids=["crash of a worker", "collection"],
)
def test_what_is_broken_is_not_luck(tmp_path: Path, source: str) -> None:
    options = ("-p", "xdist.plugin", "-n1", "--continue-on-collection-errors")
    # a worker that crashes leaves its temporary files
    environment = {"LAB_TEST_RUNS": str(tmp_path), "TMPDIR": str(tmp_path)}
    done = run(tmp_path / "tests" / "launch", source, *options, top=tmp_path, **environment)
    assert done.returncode == 1, done.stdout


def until_failure(folder: Path, source: str, *options: str) -> subprocess.Popen[str]:
    """Run a file of tests until it fails, in a project that has the plugins."""
    (folder / "conftest.py").write_text((ROOT / "conftest.py").read_text())
    (folder / "test_module.py").write_text(source)
    return subprocess.Popen(
        [sys.executable, str(ROOT / "tests/runner/until_failure.py"), "test_module.py", *options],
        cwd=folder,
        env={**ENVIRONMENT, "TMPDIR": tempfile.gettempdir()},
        stdout=subprocess.PIPE,
        text=True,
    )


FAILS_IN_THE_THIRD_RUN = """
import os, psutil
from pathlib import Path
def test_luck():
    lines = Path("runs").read_text().splitlines() if Path("runs").exists() else []
    busy = [child for child in psutil.Process(os.getppid()).children() if child.cmdline()[1] == "-S"]
    Path("runs").write_text("\\n".join([*lines, f"{os.getpid()} {len(busy)}"]))
    print("in the third")
    assert len(lines) < 2
"""


def test_a_test_is_run_until_it_fails_beside_busy_processes(tmp_path: Path) -> None:
    running = until_failure(tmp_path, FAILS_IN_THE_THIRD_RUN, "--busy", "2")
    output, _ = running.communicate()
    assert running.returncode == 1, output
    first, second, third, *failure = output.splitlines()
    assert first.startswith("run 1: 1 passed in ") and second.startswith("run 2: 1 passed in ")
    assert third.startswith("run 3: 1 failed in ")
    assert "in the third" in failure and failure[-1].startswith("runs that passed before: 2; output: ")
    (kept,) = (tmp_path / ".labkit" / "until_failure").iterdir()
    assert failure[-1].endswith(f"output: {kept.relative_to(tmp_path)}") and "in the third" in kept.read_text()
    runs = [line.split() for line in (tmp_path / "runs").read_text().splitlines()]
    assert len({pid for pid, _ in runs}) == 3 and {count for _, count in runs} == {"2"}


RUNS_FOR_LONG = """
import time
from pathlib import Path
def test_long(tmp_path):
    number = len(list(Path().glob("begun-*")))
    Path(f"begun-{number}").touch()
    try:
        time.sleep(3600 if number else 0)
    finally:
        Path("torn-down").touch()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_it_with_the_number_of_runs(tmp_path: Path, number: int) -> None:
    running = until_failure(tmp_path, RUNS_FOR_LONG, "--busy", "1")
    wait_until((tmp_path / "begun-1").exists)
    children = psutil.Process(running.pid).children()
    running.send_signal(number)
    output, _ = running.communicate()
    assert running.returncode == 0 and output.splitlines()[-1] == "no failure; runs that passed: 1", output
    assert (tmp_path / "torn-down").exists() and len(children) == 2
    assert not any(child.is_running() for child in children)
    assert not any((tmp_path / ".labkit" / "until_failure").iterdir())


def test_ctrl_c_shows_what_has_failed_by_then(tmp_path: Path) -> None:
    fails = "def test_fails():\n    print('in the first')\n    assert False\n"
    running = until_failure(tmp_path, fails + RUNS_FOR_LONG.replace("if number else 0", ""))
    wait_until((tmp_path / "begun-0").exists)
    running.send_signal(signal.SIGINT)
    output, _ = running.communicate()
    assert running.returncode == 1 and "in the first" in output, output
    assert "runs that passed before: 0" in output.splitlines()[-1]


def test_what_is_no_test_is_no_failure(tmp_path: Path) -> None:
    running = until_failure(tmp_path, "import missing_module")
    assert "missing_module" in running.communicate()[0] and running.returncode == 2
