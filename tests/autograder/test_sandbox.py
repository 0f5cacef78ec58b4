"""What code in the sandbox can see, reach and use up, tested from inside."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from event_clock import HANG_SECONDS, SAYS_IT_HANGS, ByEvents
from unix_users import mounts_that_open
from waiting import BROKEN_SECONDS, wait_until

import autograder
import labkit
from autograder.sandbox import Sandbox, SandboxInstance
from autograder.sandbox.bwrap import bwrap
from labkit import catalogue
from labkit.clusters import Job, torchrun
from labkit.clusters.local import local
from labkit.linux import landlock

HERE = Path(__file__).resolve()


pytestmark = pytest.mark.skipif(not Sandbox().available, reason="needs namespaces, for the sandbox")

SPY = """
import ctypes, gc, json, multiprocessing, os, pty, signal, socket, sys

def tried(action):
    try:
        return repr(action())
    except Exception as error:
        return f"{type(error).__name__}: {error}"

libc = ctypes.CDLL(None, use_errno=True)

def called(number, *arguments):
    ctypes.set_errno(0)
    return os.strerror(ctypes.get_errno()) if libc.syscall(number, *arguments) == -1 else "allowed"

def written(path):
    with open(path, "r+b") as file:
        file.write(b"x")

status = dict(line.split(":", 1) for line in open("/proc/self/status"))
first_seen = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
tried(lambda: os.kill(1, signal.SIGKILL))
child = multiprocessing.get_context("fork").Process(target=print)
child.start()
child.join()
print(json.dumps({
    "seen": [path for path in PATHS if os.path.exists(path)],
    "listener": tried(lambda: socket.create_connection(("127.0.0.1", PORT), 2)),
    "network": tried(lambda: socket.create_connection(("192.0.2.1", 80), 2)),
    "host of a virtual machine": tried(lambda: socket.socket(40, socket.SOCK_STREAM)),
    "interfaces": [name for _, name in socket.if_nameindex()],
    "own name": tried(lambda: socket.gethostbyname(socket.gethostname())),
    "processes": first_seen,
    "still there": tried(lambda: os.kill(1, 0)),
    "open files": [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if int(fd) > 2
                   and os.path.lexists(f"/proc/self/fd/{fd}")],
    "files of the first": tried(lambda: os.listdir("/proc/1/fd")),
    "memory of the first": tried(lambda: written("/proc/1/mem")),
    "environment": dict(os.environ),
    "write system": tried(lambda: open("/usr/x", "w")),
    "write labkit": tried(lambda: open(os.path.join(__import__("labkit").__path__[0], "x"), "w")),
    "write devices": tried(lambda: open("/dev/x", "w")),
    "write etc": tried(lambda: open("/etc/x", "w")),
    "terminals": os.listdir("/dev/pts"),
    "terminal": tried(lambda: os.close(pty.openpty()[0])),
    "write home": tried(lambda: open(os.path.expanduser("~/x"), "w").write("x")),
    "home": os.listdir(os.path.expanduser("~")),
    "collects garbage": gc.isenabled(),
    "shared memory": os.listdir("/dev/shm"),
    "too much memory": tried(lambda: len(bytearray(64 << 30))),
    "large file": tried(lambda: [open("/tmp/big", "ab").write(bytes(1 << 20)) for _ in range(1000)]),
    "many files": tried(lambda: [open(f"/dev/shm/{i}", "w").close() for i in range(100_000)]),
    "become root": tried(lambda: os.setuid(0)),
    "capabilities": [status[name].strip() for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")],
    "held down": [status[name].strip() for name in ("NoNewPrivs", "Seccomp")],
    "calls": {name: called(*call) for name, call in CALLS.items()},
    "child": child.exitcode,
    "torch": tried(lambda: float(__import__("torch").ones(3).sum())),
}))
"""

X86_64 = {
    "ptrace": [101, 0, 0, 0, 0], "unshare": [272, 0x10000000], "setns": [308, 0, 0], "clone": [56, 0x10000011, 0, 0],
    "mount": [165, 0, 0, 0, 0, 0], "keyctl": [250, 0, 0, 0], "bpf": [321, 0, 0, 0], "io_uring": [425, 1, 0],
    "read": [310, 1, 0, 0, 0, 0, 0], "clone3": [435, 0, 0],
}  # fmt: skip
AARCH64 = {
    "ptrace": [117, 0, 0, 0, 0], "unshare": [97, 0x10000000], "setns": [268, 0, 0], "clone": [220, 0x10000011, 0, 0],
    "mount": [40, 0, 0, 0, 0, 0], "keyctl": [219, 0, 0, 0], "bpf": [280, 0, 0, 0], "io_uring": [425, 1, 0],
    "read": [270, 1, 0, 0, 0, 0, 0], "clone3": [435, 0, 0],
}  # fmt: skip
CALLS = X86_64 if os.uname().machine == "x86_64" else AARCH64


def printed(instance: SandboxInstance, source: str) -> str:
    """Return what a process in the sandbox prints that runs `source`."""
    run = local(1, forkserver=instance.forkserver).run(Job(source=source, filename="spy.py", timeout=BROKEN_SECONDS))
    assert run.ranks[0].error is None, run.ranks[0].error
    return run.ranks[0].output


def spied(instance: SandboxInstance, paths: list[str], port: int) -> dict[str, Any]:
    text = printed(instance, f"PATHS, PORT, CALLS = {paths!r}, {port!r}, {CALLS!r}\n{SPY}")
    report: dict[str, Any] = json.loads(text.strip().splitlines()[-1])
    return report


def secrets(tmp_path: Path) -> list[str]:
    """Files of the course and of this machine that no submission may see."""
    gradebook = tmp_path / "gradebook.db"
    gradebook.write_text("")
    root, package = catalogue.root(), Path(autograder.__file__).parent
    found = [gradebook, HERE, root / "solutions", root / "notebooks"]
    # of the grader, all but `sandbox/inside`
    found += [path for path in package.iterdir() if path.name != "sandbox"]
    found += [path for path in (package / "sandbox").iterdir() if path.name != "inside"]
    found += [Path("/etc/passwd"), Path("/etc/shadow"), Path.home() / ".profile", Path("/var")]
    assert all(path.exists() for path in found[:-3])
    return [str(path) for path in found]


def of_torchrun() -> set[str]:
    return set(
        torchrun.environment(0, nnodes=1, nproc_per_node=1, master_addr="127.0.0.1", master_port=1, run_id="any")
    )


def check_report(report: dict[str, Any]) -> None:
    assert report["seen"] == []
    assert report["listener"].startswith("ConnectionRefusedError")
    assert "unreachable" in report["network"]
    assert report["host of a virtual machine"].startswith("OSError")
    assert report["interfaces"] == ["lo"]
    assert report["own name"] == "'127.0.0.1'"
    ours = {"PATH", "HOME", "USER", "TMPDIR", "LANG", "PWD", "GLOO_SOCKET_IFNAME", "RES_OPTIONS", *of_torchrun()}
    of_python = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"}
    of_c = {"MALLOC_MMAP_THRESHOLD_"}
    assert {name for name in report["environment"] if not name.startswith("TORCH")} <= {*ours, *of_python, *of_c}
    for place in ("system", "labkit", "devices", "etc"):
        answer = report[f"write {place}"]
        assert answer.startswith("OSError") or "Permission" in answer, (place, answer)
    assert report["terminals"] == ["ptmx"] and report["terminal"].startswith(
        "OSError" if landlock.version() else "None"
    )
    assert (report["write home"], report["home"]) == ("1", ["x"])
    assert report["collects garbage"] is True
    assert report["shared memory"] == []
    assert report["too much memory"].startswith("MemoryError")
    assert "OSError" in report["large file"]
    assert "OSError" in report["many files"]
    assert "Error" in report["become root"]
    assert set(report["capabilities"]) == {"0" * 16}
    assert report["held down"] == ["1", "2"]
    denied = {name: "Operation not permitted" for name in CALLS} | {"clone3": "Function not implemented"}
    assert report["calls"] == denied
    assert (report["child"], report["torch"]) == (0, "3.0")
    # this one; others are invisible, or may not be inspected
    assert len(report["processes"]) <= 3 and report["still there"].startswith(("None", "PermissionError"))
    assert "Error" in report["files of the first"] and "Error" in report["memory of the first"]
    # pipes to the supervisor, and files without names; no socket leads outside
    assert all(name.startswith(("pipe:", "/memfd:", "/proc/", "/dev/null")) for name in report["open files"]), report[
        "open files"
    ]


def test_a_sandbox_shows_python_and_labkit_and_nothing_else(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, Sandbox(scratch_bytes=16 << 20).open() as instance:
        check_report(spied(instance, secrets(tmp_path), listener.getsockname()[1]))


AS_SOMEBODY = """
import ctypes, json, logging, os, struct, sys
sys.path += [os.path.dirname(PATH), os.path.join(os.path.dirname(PATH), "..", "plugins")]
if sys.argv[1:]:
    # as the filter of a container may be: bubblewrap's own call is allowed, that of a process within it is not
    lines = [(0x20, 0, 0, 0), (0x15, 0, 3, int(sys.argv[1])), (0x20, 0, 0, 16), (0x45, 0, 1, 0x20000000),
             (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7FFF0000)]
    program = b"".join(struct.pack("=HBBI", *line) for line in lines)
    held = ctypes.create_string_buffer(program, len(program))
    libc = ctypes.CDLL(None)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, struct.pack("@HP", len(lines), ctypes.addressof(held)), 0, 0) == 0
from autograder.sandbox import Sandbox
import test_sandbox
logging.basicConfig(level=logging.WARNING)
report = []
for _ in range(2):
    with Sandbox(scratch_bytes=16 << 20).open() as instance:
        report.append(test_sandbox.spied(instance, PATHS, PORT))
print(json.dumps(report))
"""


def as_somebody(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Open two sandboxes with the bubblewrap of requirements/, as an unprivileged user, and spy in each."""
    setpriv = shutil.which("setpriv")
    assert setpriv is not None
    # that user may read Python and the lab, which lie in root's home on some machines
    packages = {Path(package.__path__[0]).parent for package in (labkit, autograder)}
    view = [bwrap(), "--setenv", "PATH", str(Path(sys.executable).parent), "--dev-bind", "/", "/"]
    view += mounts_that_open(sorted({Path(sys.prefix), Path(sys.base_prefix), *packages}))
    nobody = [*view, setpriv, "--reuid=65534", "--regid=65534", "--clear-groups", "--"]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        told = f"PATH, PATHS, PORT = {str(HERE)!r}, {secrets(tmp_path)!r}, {listener.getsockname()[1]}"
        return subprocess.run(
            [*nobody, sys.executable, "-c", f"{told}\n{AS_SOMEBODY}", *arguments],
            capture_output=True,
            text=True,
        )


@pytest.mark.skipif(os.getuid() != 0, reason="needs root: the other test has run as an ordinary user already")
def test_a_sandbox_works_for_an_ordinary_user_too(tmp_path: Path) -> None:
    done = as_somebody(tmp_path)
    assert done.returncode == 0, done.stderr
    for report in json.loads(done.stdout.splitlines()[-1]):
        check_report(report)
    assert "torch is imported" not in done.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="needs root: to become an ordinary user")
def test_where_namespaces_do_not_nest_each_submission_has_a_bubblewrap(tmp_path: Path) -> None:
    done = as_somebody(tmp_path, str(CALLS["unshare"][0]))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("torch is imported for each submission") == 1, done.stderr
    for report in json.loads(done.stdout.splitlines()[-1]):
        report["processes"].remove(1)  # bubblewrap's own
        report["many files"] = "OSError"  # those it does not count
        report["files of the first"] = report["memory of the first"] = "Error"
        check_report(report)


LEAVES_TRACES = """
import os, socket
for folder in ("/tmp", "/dev/shm", os.path.expanduser("~")):
    open(f"{folder}/trace", "w").close()
quiet = socket.socket(socket.AF_UNIX)
quiet.bind("\\0trace")
print("left")
"""
LOOKS_FOR_TRACES = """
import os, signal, socket
print([name for folder in ("/tmp", "/dev/shm", os.path.expanduser("~")) for name in os.listdir(folder)
       if "trace" in name])
try:
    socket.socket(socket.AF_UNIX).connect("\\0trace")
except ConnectionRefusedError:
    print("nobody")
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.kill(-1, signal.SIGTERM)
"""


def test_submissions_do_not_meet_and_each_has_a_user_of_its_own() -> None:
    sandbox = Sandbox(scratch_bytes=16 << 20)
    with sandbox.open() as first, sandbox.open() as second:
        assert printed(first, LEAVES_TRACES) == "left\n"
        looked = (
            local(1, forkserver=second.forkserver).run(Job(source=LOOKS_FOR_TRACES, timeout=BROKEN_SECONDS)).ranks[0]
        )
        assert looked.output == "[]\nnobody\n"
        assert printed(first, "print('alive')") == "alive\n"
        users = [printed(instance, "import os\nprint(os.getuid())") for instance in (first, second)]
    if os.getuid() == 0:
        assert len({*users, "0\n"}) == 3


FORK_BOMB = f"""
import os, time
count, first = 0, os.getpid()
try:
    while True:
        if os.fork() == 0:
            while os.getppid() == first:
                time.sleep(0.05)
            {SAYS_IT_HANGS}
            time.sleep(3600)
        count += 1
except OSError:
    print(count, flush=True)
"""
"""Its children stay when it has ended."""


def test_a_fork_bomb_is_bounded_and_ends_with_its_sandbox() -> None:
    with Sandbox(processes=40, runner=ByEvents).open() as instance:
        run = local(1, forkserver=instance.forkserver).run(Job(source=FORK_BOMB, timeout=HANG_SECONDS))
        assert 0 < int(run.ranks[0].output) < 40


def forkserver() -> psutil.Process:
    """Return the process below bubblewrap's two from which all others are forked."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "autograder.sandbox.inside.forkserver" in child.cmdline() and child.name() != "bwrap":
                found.append(child)
    return min(found, key=lambda child: child.create_time())


def test_a_template_that_dies_is_started_anew() -> None:
    with Sandbox().open() as instance:
        assert printed(instance, "print(1)") == "1\n"
        killed = forkserver()
        killed.kill()
        killed.wait(BROKEN_SECONDS)
        # its forks ended with it, and are restarted on demand
        assert printed(instance, "print(2)") == "2\n"
    with Sandbox().open() as instance:
        assert printed(instance, "print(3)") == "3\n"


GRADER = """
import sys
from autograder.sandbox import Sandbox
from labkit.clusters import Job
from labkit.clusters.local import local
instance = Sandbox().open()
local(2, forkserver=instance.forkserver).run(Job(source="import time; print('runs', flush=True); time.sleep(3600)"),
                                  on_output=lambda *_: print("runs", flush=True))
"""


def test_sandboxes_die_with_the_grader() -> None:
    with subprocess.Popen([sys.executable, "-c", GRADER], stdout=subprocess.PIPE, text=True) as grader:
        assert grader.stdout is not None
        assert grader.stdout.readline() == "runs\n"
        # bubblewrap twice, two forkservers, a sandbox of each, and of one the supervisor and ranks

        def all_below() -> list[psutil.Process]:
            below = psutil.Process(grader.pid).children(recursive=True)
            return below if len(below) == 9 else []

        below = wait_until(all_below, lambda: psutil.Process(grader.pid).children(recursive=True))
        grader.send_signal(signal.SIGKILL)
        assert psutil.wait_procs(below, timeout=BROKEN_SECONDS)[1] == []


TRIES = """
from autograder.sandbox import Sandbox, SandboxUnavailable
try:
    Sandbox().check()
except SandboxUnavailable as problem:
    print(problem)
trusting = Sandbox(allow_none=True)
trusting.check()
print(trusting.available)
"""


def test_without_namespaces_the_grader_refuses_unless_told_otherwise() -> None:
    forbids = HERE.with_name("without_namespaces.py")
    done = subprocess.run([sys.executable, forbids, sys.executable, "-c", TRIES], capture_output=True, text=True)
    refusal, trusting = done.stdout.splitlines()
    assert "new namespace" in refusal and "docs/sandbox.md" in refusal
    assert "c.Sandbox.allow_none = True" in refusal
    assert trusting == "False"
