"""What code in the sandbox can see, reach and use up, tried out from inside."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import autograder
import labkit
from autograder.sandbox import Sandbox, SandboxUnavailable
from labkit import exercises

HERE = Path(__file__).resolve()


def bubblewrap_is_missing() -> str:
    try:
        Sandbox().check()
    except SandboxUnavailable as problem:
        return str(problem)
    return ""


pytestmark = pytest.mark.skipif(bool(bubblewrap_is_missing()), reason=f"needs bubblewrap: {bubblewrap_is_missing()}")

SPY = """
import json, os, socket, sys

def tried(action):
    try:
        return repr(action())
    except Exception as error:
        return f"{type(error).__name__}: {error}"

paths, port, uid_outside = json.loads(sys.argv[1])
print(json.dumps({
    "seen": [path for path in paths if os.path.exists(path)],
    "listener": tried(lambda: socket.create_connection(("127.0.0.1", port), 2)),
    "network": tried(lambda: socket.create_connection(("192.0.2.1", 80), 2)),
    "interfaces": [name for _, name in socket.if_nameindex()],
    "own name": tried(lambda: socket.gethostbyname(socket.gethostname())),
    "processes": [int(name) for name in os.listdir("/proc") if name.isdigit()],
    "environment": dict(os.environ),
    "write system": tried(lambda: open("/usr/x", "w")),
    "write labkit": tried(lambda: open(os.path.join(__import__("labkit").__path__[0], "x"), "w")),
    "write home": tried(lambda: open(os.path.expanduser("~/x"), "w").write("x")),
    "home": os.listdir(os.path.expanduser("~")),
    "too much memory": tried(lambda: len(bytearray(64 << 30))),
    "large file": tried(lambda: [open("/tmp/big", "ab").write(bytes(1 << 20)) for _ in range(1000)]),
    "become root": tried(lambda: os.setuid(0)),
    "torch": tried(lambda: float(__import__("torch").ones(3).sum())),
}))
"""


def spied(command: Sequence[str], paths: list[Path], port: int) -> dict[str, object]:
    told = json.dumps([[str(path) for path in paths], port, os.getuid()])
    done = subprocess.run([*command, sys.executable, "-c", SPY, told], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def secrets(tmp_path: Path) -> list[Path]:
    """Files of the course and of this machine that no submission may see."""
    gradebook = tmp_path / "gradebook.db"
    gradebook.write_text("")
    root, package = exercises.root(), Path(autograder.__file__).parent
    found = [gradebook, HERE, root / "solutions", root / "autograder", root / "notebooks", package / "rubrics"]
    found += [package / "judge.py", Path("/etc/passwd"), Path("/etc/shadow"), Path.home() / ".profile", Path("/var")]
    assert all(path.exists() for path in found[:-3])
    return found


def check_report(report: dict[str, object]) -> None:
    assert report["seen"] == []
    assert str(report["listener"]).startswith("ConnectionRefusedError")
    assert "unreachable" in str(report["network"])
    assert report["interfaces"] == ["lo"]
    assert report["own name"] == "'127.0.0.1'"
    assert set(report["environment"]) <= {
        *("PATH", "HOME", "USER", "TMPDIR", "LANG", "PWD", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE"),
        *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "GLOO_SOCKET_IFNAME"),
    }
    assert str(report["write system"]).startswith("OSError") or "Permission" in str(report["write system"])
    assert str(report["write labkit"]).startswith("OSError") or "Permission" in str(report["write labkit"])
    assert (report["write home"], report["home"]) == ("1", ["x"])
    assert str(report["too much memory"]).startswith("MemoryError")
    assert "OSError" in str(report["large file"])
    assert "Error" in str(report["become root"])
    assert report["torch"] == "3.0"
    assert len(report["processes"]) < 6  # type: ignore[arg-type]


def test_a_sandbox_shows_python_and_labkit_and_nothing_else(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = Sandbox(scratch_bytes=16 << 20).command_prefix()
        check_report(spied(command, secrets(tmp_path), listener.getsockname()[1]))


AS_SOMEBODY = """
import json, sys
from autograder.sandbox import Sandbox
print(json.dumps(Sandbox(scratch_bytes=16 << 20).command_prefix()))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root: the other test has run as an ordinary user already")
def test_a_sandbox_works_for_an_ordinary_user_too(tmp_path: Path) -> None:
    # a view of this machine in which that user may read Python, which lies in root's home on some machines
    home = Path.home()
    view = ["bwrap", "--dev-bind", "/", "/", "--perms", "0755", "--tmpfs", str(home)]
    packages = {Path(package.__path__[0]).parent for package in (labkit, autograder)}
    needed = {Path(sys.prefix), Path(sys.base_prefix), *packages}
    for path in sorted(p for p in needed if p.is_relative_to(home)):
        for parent in reversed([p for p in path.parents if p.is_relative_to(home) and p != home]):
            view += ["--perms", "0755", "--dir", str(parent)]
        view += ["--ro-bind", str(path), str(path)]
    nobody = [*view, "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"]
    asked = subprocess.run([*nobody, sys.executable, "-c", AS_SOMEBODY], capture_output=True, text=True, timeout=120)
    assert asked.returncode == 0, asked.stderr
    prefix = json.loads(asked.stdout)
    assert "--unshare-user" in prefix
    with socket.create_server(("127.0.0.1", 0)) as listener:
        check_report(spied([*nobody, *prefix], secrets(tmp_path), listener.getsockname()[1]))


FORK_BOMB = """
import os, time
count = 0
try:
    while True:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        count += 1
except OSError:
    print(count)
"""


def test_a_fork_bomb_is_bounded_and_ends_with_its_sandbox() -> None:
    command = Sandbox(processes=40).command_prefix()
    done = subprocess.run([*command, sys.executable, "-c", FORK_BOMB], capture_output=True, text=True, timeout=60)
    assert 0 < int(done.stdout) < 40, done.stderr


def test_without_bubblewrap_the_grader_refuses_unless_told_otherwise(tmp_path: Path) -> None:
    script = """
from autograder.sandbox import Sandbox, SandboxUnavailable
try:
    Sandbox().check()
except SandboxUnavailable as problem:
    print(problem)
trusting = Sandbox(allow_none=True)
trusting.check()
print(trusting.available, trusting.command_prefix())
"""
    done = subprocess.run([sys.executable, "-c", script], env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    refusal, trusting = done.stdout.splitlines()
    assert "bwrap" in refusal and "Install bubblewrap" in refusal and "--Sandbox.allow_none=True" in refusal
    assert trusting == "False ()"
