"""`labkit launch --detach`, and the commands that find a job again, as a user types them in several shells."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from waiting import BROKEN_SECONDS, wait_until

from labkit.cli import main
from labkit.launch import job_commands
from labkit.launch.detached import all_jobs
from labkit.launch.detaching import indexes

LABKIT = [sys.executable, "-m", "labkit"]
COUNTS = """\
import os, sys, time
print("begins", flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
print("goes on with", sys.argv[1], flush=True)
assert sys.argv[1] != "failure"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a program, and a state folder without jobs; what a failed test leaves is stopped."""
    (tmp_path / "counts.py").write_text(COUNTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(job_commands, "_STOP_LIMIT_SECONDS", BROKEN_SECONDS)
    yield tmp_path
    if names := [job.name for job in all_jobs() if job.exit_status is None]:
        main(["stop", *names])


def test_a_job_goes_on_when_its_shell_is_gone(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    # the shell and all of its process group are killed
    script = f"{shlex.join(LABKIT)} launch counts.py --detach -- work >name; kill -KILL 0"
    shell = subprocess.run(["bash", "-c", script], capture_output=True, text=True, start_new_session=True)
    assert shell.returncode == -signal.SIGKILL, shell.stderr
    assert (folder / "name").read_text() == "counts-1\n"
    assert "labkit logs -f counts-1" in shell.stderr and "labkit stop counts-1" in shell.stderr

    (job,) = all_jobs()
    wait_until(lambda: "begins" in job.output.read_text())
    assert main(["jobs"]) == 0
    assert re.search(r"counts-1 +running +local .* counts\.py -- work +$", capfd.readouterr().out, re.MULTILINE)
    with subprocess.Popen([*LABKIT, "logs", "-f", "counts-1"], stdout=subprocess.PIPE, text=True) as attached:
        assert attached.stdout is not None
        assert "begins" in attached.stdout.readline()
        (folder / "go").touch()
        rest = attached.stdout.read()
    assert attached.returncode == 0 and "goes on with work" in rest
    assert main(["logs", "counts-1"]) == 0
    assert capfd.readouterr().out.splitlines() == ["[0] begins", "[0] goes on with work"]
    assert main(["jobs"]) == 0 and re.search(r"counts-1 +succeeded", capfd.readouterr().out)
    assert main(["stop", "counts-1"]) == 0
    assert capfd.readouterr().out == "counts-1 has ended already: succeeded\n"


def test_a_job_runs_what_was_launched_and_reports_its_failure(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    cells = [new_code_cell(f"%%torchrun -n {n}\nprint('cell of', {n})\nassert {n} == 1") for n in (1, 2)]
    nbformat.write(new_notebook(cells=cells), folder / "two.ipynb")
    assert main(["launch", "two.ipynb", "--cluster", "virtual", "--detach"]) == 0
    (folder / "two.ipynb").write_text("edited meanwhile")
    assert main(["logs", "--follow", "two-1"]) == 1
    shown = capfd.readouterr().out
    assert "cell 1 of two.ipynb\n[0] cell of 1\ncell 2 of two.ipynb\n[0-1] cell of 2\n" in shown
    assert "RankFailed: AssertionError on every rank" in shown and "----> 3 assert 2 == 1" in shown
    assert main(["jobs"]) == 0 and "  failed, exit status 1  " in capfd.readouterr().out


def test_a_job_is_stopped(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "counts.py", "--detach", "--", "x"]) == 0
    (job,) = all_jobs()
    wait_until(lambda: "begins" in job.output.read_text())
    with subprocess.Popen([*LABKIT, "logs", "-f", "counts-1"], stdout=subprocess.DEVNULL) as attached:
        assert main(["stop", "counts-1"]) == 0
    assert attached.returncode == 143 and not job.is_locked()
    assert "terminated" in job.output.read_text() and re.search(r"counts\.py, line [2-4]\b", job.output.read_text())
    assert capfd.readouterr().out.splitlines()[-1] == "counts-1 is stopped"
    assert main(["jobs", "--prune"]) == 0 and all_jobs() == []


def test_a_launcher_that_is_killed_leaves_no_running_job(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "counts.py", "--detach", "--", "x"]) == 0
    (job,) = all_jobs()
    os.kill(job.pid, signal.SIGKILL)
    assert main(["logs", "-f", "counts-1"]) == 1
    assert "counts-1 ended without an exit status: its launcher was killed" in capfd.readouterr().err


def test_damaged_records_are_named_and_hide_no_other_job(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "go").touch()
    assert main(["launch", "counts.py", "--detach", "--", "work"]) == 0
    damages = {
        "fields-1": (
            '{"command": "launch a.py", "launched": "2026-11-26T17:00:00"}',
            "no valid cluster, directory, host,",
        ),
        "cut-1": ('{"command": "laun', "is not JSON"),
        "list-1": ("[]", "no valid command"),
    }
    jobs = folder / "state" / "labkit" / "jobs"
    for name, (text, _) in damages.items():
        (jobs / name).mkdir()
        (jobs / name / "job.json").write_text(text)
        (jobs / name / "output").write_text(f"[0] output of {name}\n")
    assert main(["logs", "-f", "counts-1"]) == 0
    capfd.readouterr()
    assert main(["jobs"]) == 0
    shown = " ".join(capfd.readouterr().out.split())
    assert "counts-1 succeeded" in shown
    for name, (_, wrong) in damages.items():
        assert name in shown
        assert main(["logs", name]) == 0 and capfd.readouterr().out == f"[0] output of {name}\n"
        for words in (["logs", "-f", name], ["stop", name]):
            assert main(words) == 2
            problem = capfd.readouterr().err
            assert f"{jobs}/{name}/job.json" in problem and wrong in problem
    # nobody knows whether they have ended
    assert main(["jobs", "--prune"]) == 0 and {job.name for job in all_jobs()} == damages.keys()
    for name in damages:
        (jobs / name / "exit_status").write_text("0\n")
    assert main(["jobs", "--prune"]) == 0 and all_jobs() == []


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["logs", "counts-7"], "there is no job counts-7; there are no jobs"),
        (["stop", "counts-7"], "there is no job counts-7"),
        (["launch", "counts.py", "--array", "0-3"], "--array needs --detach"),
        (["launch", "counts.py", "--detach", "--array", "0-3"], "--array: local clusters have no arrays of jobs"),
        (["launch", "counts.py", "--detach", "--save", "run.sh"], "--detach runs the program: leave out"),
        (["launch", "counts.py", "--detach", "--cluster", "slurn"], "unknown kind of cluster 'slurn'"),
    ],
)
def test_a_wrong_request_starts_nothing(
    folder: Path, capfd: pytest.CaptureFixture[str], words: list[str], answer: str
) -> None:
    status: object
    try:
        status = main(words)
    except SystemExit as error:
        status = error.code
    assert status == 2 and answer in capfd.readouterr().err
    assert all_jobs() == []


def test_indexes_are_those_of_sbatch() -> None:
    assert list(indexes("0-3")) == [0, 1, 2, 3]
    assert list(indexes("1,5-9:2%4")) == [1, 5, 7, 9]
    for wrong in ("", "3-1", "a", "1-", "1-4:0"):
        with pytest.raises(Exception, match="--array: expected indexes"):
            list(indexes(wrong))
