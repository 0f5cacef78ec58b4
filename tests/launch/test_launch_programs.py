"""`labkit launch`: programs on local and virtual ranks, as a user starts them from a shell."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from rank_lines import of_each_rank  # beside this file

from labkit.cli import main
from labkit.launch.options import parse
from labkit.launch.output import LiveOutput

ENVIRONMENT = """
import json, os, sys
import helper
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "MASTER_PORT", "ROLE_NAME")
here = {
    "argv": sys.argv, "file": __file__, "name": __name__, "folder": sys.path[0], "package": __package__,
    "main": sys.modules["__main__"].__file__, "helper": helper.__file__,
}
print(json.dumps(here))
if "RANK" in os.environ:
    print({name: os.environ[name] for name in names if name != "MASTER_PORT"})
"""
FAILS = """\
import os, signal, sys
import torch.distributed as dist
how = sys.argv[1]
dist.init_process_group("gloo")
if dist.get_rank() == 1:
    if how == "exit":
        sys.exit(3)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise ValueError("no data")
dist.barrier()
"""
WAITS = """\
import os, time
print(os.getpid(), flush=True), time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in {"environment.py": ENVIRONMENT, "fails.py": FAILS, "waits.py": WAITS, "helper.py": ""}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@dataclass
class Done:
    """A finished command."""

    status: int | str | None
    out: str
    err: str


@pytest.fixture
def launch(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """`labkit launch` in this process, whose torch and forkserver are there."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run(*words: str) -> Done:
        try:
            status: int | str | None = main(["launch", *words])
        except SystemExit as error:
            status = error.code
        shown = capsys.readouterr()
        return Done(status, shown.out, shown.err)

    return run


@pytest.mark.parametrize("program", [["environment.py"], ["-m", "package.environment"]])
def test_a_program_sees_what_it_sees_under_torchrun(
    folder: Path, launch: Callable[..., Done], program: list[str]
) -> None:
    (folder / "package").mkdir()
    (folder / "package" / "environment.py").write_text(ENVIRONMENT)
    words = ["--alpha", "a b", "--"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
    there = subprocess.run(
        [*torchrun, *program, *words], cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True,
        text=True,
    )  # fmt: skip
    assert there.returncode == 0, there.stderr
    here = launch(*program, "--", *words)
    assert here.status == 0, here.err
    assert here.out.replace("[0] ", "") == there.stdout
    assert '"--alpha", "a b", "--"' in here.out


@pytest.mark.parametrize(
    ("files", "module"),
    [
        (["a/__init__.py", "a/b/prog.py"], "a.b.prog"),  # a namespace package in a package
        (["a/b/c/prog.py"], "a.b.c.prog"),  # namespace packages alone
        (["a/b/__init__.py", "a/b/prog.py"], "a.b.prog"),  # a package in a namespace package
        (["a/__init__.py", "a/b/__main__.py"], "a.b"),
        (["a/__init__.py", "a/b/__init__.py", "a/b/__main__.py"], "a.b"),
    ],
)
def test_a_module_is_found_in_packages_with_and_without_init(
    folder: Path, launch: Callable[..., Done], files: list[str], module: str
) -> None:
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    (folder / files[-1]).write_text("print(__spec__.name, repr(__package__))")
    here = launch("-m", module)
    there = subprocess.run([sys.executable, "-m", module], cwd=folder, capture_output=True, text=True, check=True)
    assert (here.status, here.out) == (0, f"[0] {there.stdout}"), here.err


@pytest.mark.parametrize("cluster", [["local"], ["virtual", "--preset", "dgx-a100"]])
def test_ranks_of_several_nodes(launch: Callable[..., Done], cluster: list[str]) -> None:
    options = ["--nnodes", "2", "--nproc_per_node=2", "--role", "trainer"]
    done = launch("environment.py", "--cluster", *cluster, *options)
    assert done.status == 0, done.err
    lines = of_each_rank(done.out)
    assert sorted(lines) == [0, 1, 2, 3] and re.search(r"^\[1:\d", done.out, re.MULTILINE)
    for rank, (_, variables) in lines.items():
        assert eval(variables) == {
            "RANK": str(rank),
            "WORLD_SIZE": "4",
            "LOCAL_RANK": str(rank % 2),
            "GROUP_RANK": str(rank // 2),
            "ROLE_NAME": "trainer",
        }


@pytest.mark.parametrize(
    ("how", "shown"),
    [
        ("error", ["RankFailed: ValueError on rank 1 of 2", "  fails.py, line 10", "ValueError: no data"]),
        ("exit", ["RankFailed: rank 1 ended with exit code 3", "  fails.py, line 7"]),
        ("kill", ["RankFailed: rank 1 was killed by SIGKILL"]),
    ],
)
def test_a_failed_rank_is_named_with_its_line_and_the_status_is_torchruns(
    launch: Callable[..., Done], how: str, shown: list[str]
) -> None:
    done = launch("fails.py", "-n", "2", "--", how)
    assert done.status == 1
    assert [line for line in shown if line not in done.err.splitlines()] == [], done.err
    assert "Traceback" not in done.err and "\x1b" not in done.err


def test_restarts_are_noted_and_the_last_start_counts(folder: Path, launch: Callable[..., Done]) -> None:
    (folder / "again.py").write_text(
        "import os\nstart = os.environ['TORCHELASTIC_RESTART_COUNT']\nprint('start', start, __file__ != '')\n"
        "assert start == '1' or os.environ['RANK'] == '0'\n"
    )
    done = launch("again.py", "-n", "2", "--max-restarts", "1")
    assert done.status == 0, done.err
    assert set(of_each_rank(done.out)[1]) == {"start 0 True", "start 1 True"}
    assert "note: restarted once after rank 1 failed: AssertionError at " in done.err


def test_ctrl_c_stops_the_ranks(folder: Path) -> None:
    """SIGTERM: see test_detached.py."""
    (folder / "waits.py").write_text(WAITS)
    command = [sys.executable, "-m", "labkit", "launch", "waits.py", "-n", "2"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None and running.stderr is not None
        ranks = [int(running.stdout.readline().split()[1]) for _ in range(2)]
        running.send_signal(signal.SIGINT)
        errors = running.stderr.read()
        assert running.wait() == 130, errors
    assert "waits.py, line 2" in errors
    for pid in ranks:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_output_that_nobody_reads_ends_the_ranks_and_no_kernel_is_loaded(folder: Path) -> None:
    (folder / "prints.py").write_text(
        "import sys, time\nwhile True:\n    print([name for name in ('IPython', 'ipykernel') if name in sys.modules])\n"
        "    time.sleep(0.01)\n"
    )
    (folder / "launches.py").write_text(
        "import sys\nsys.modules['IPython'] = sys.modules['ipykernel'] = None\nfrom labkit.cli import main\n"
        "sys.exit(main(['launch', 'prints.py']))"
    )
    done = subprocess.run(
        ["bash", "-c", f"{shlex.quote(sys.executable)} launches.py | head -n 1; echo ${{PIPESTATUS[0]}}"],
        cwd=folder, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout == "[0] []\n141\n" and done.stderr == ""


def test_a_program_that_does_not_parse_is_not_started(folder: Path, launch: Callable[..., Done]) -> None:
    (folder / "broken.py").write_text("print(1)\nif True\n")
    done = launch("broken.py")
    assert done.status == 1 and done.out == ""
    assert f'File "{folder}/broken.py", line 2' in done.err and "SyntaxError" in done.err


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["nowhere.py"], "labkit: there is no file nowhere.py"),
        (["-m", "no.where"], "labkit: there is no module no.where: -m looks in this folder"),
        (["-m", "helper.nothing"], "labkit: there is no module helper.nothing: -m looks in this folder"),
        (["-m", "helper."], "labkit: there is no module helper.: -m looks in this folder"),
        ([], "give either a FILE, or -m MODULE, or --config FILE"),
        (["environment.py", "--lr", "1"], "unknown option --lr; words for the program go after --"),
        (["environment.py", "--cluster", "slurn"], "unknown kind of cluster 'slurn'; did you mean --cluster slurm?"),
        (["environment.py", "--preset", "x"], "unexpected argument 'x'; presets are for virtual clusters"),
        (["environment.py", "--rdzv-endpoint", "host:1"], "--rdzv-endpoint: the cluster sets up the rendezvous"),
        (["environment.py", "--standalone", "--nnodes", "2"], "--standalone: one node, but 2 are asked for"),
        (["environment.py", "--cluster", "virtual", "-n", "cpu"], "nproc_per_node"),
        (["environment.py", "--dry-run"], "labkit: --dry-run is for slurm and kubernetes, where jobs are submitted"),
    ],
)
def test_a_wrong_request_gets_one_clear_line(launch: Callable[..., Done], words: list[str], answer: str) -> None:
    done = launch(*words)
    assert done.status == 2 and answer in done.err.splitlines()[-1], done.err


def test_equal_lines_are_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    with LiveOutput(in_order=False) as output:
        output._ended.set()  # all is printed at the end, whenever it arrives
        output._thread.join()
        for rank in (1, 0, 2):
            output.on_output(rank, "stdout", "ready\nwith")
            output.on_output(rank, "stdout", f"out end\nrank {rank % 2}")
        output.on_output(1, "stderr", "warning\n")
    shown = capsys.readouterr()
    assert shown.out == "[0-2] ready\n[0-2] without end\n[0, 2] rank 0\n[1] rank 1\n"
    assert shown.err == "[1 stderr] warning\n"


def documented() -> list[str]:
    """Commands of docs/launch.md that are lines of their own, or in backticks and whole."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "launch.md").read_text()
    blocks = [line for block in text.split("```")[1::2] for line in block.splitlines()]
    inline = re.findall(r"(?<!`)`(labkit launch [^`]+)`", text)
    return [line.partition(" #")[0] for line in [*blocks, *inline] if line.startswith("labkit launch ")]


@pytest.mark.parametrize("command", documented())
def test_the_documented_commands_are_understood(command: str) -> None:
    _, _, *words = shlex.split(command)
    assert parse(words)


def test_there_are_documented_commands() -> None:
    assert len(documented()) >= 8
