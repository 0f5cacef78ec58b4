"""A class's forkservers: what they import ahead, and a notebook's kernel that is forked from one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
from waiting import BROKEN_SECONDS, wait_until

from labkit.forking import client
from labkit.forking.request import Request
from labkit.zygote import kernel

_SERVE = "import sys; from labkit.forking.server import Server, listen; Server(listen(sys.argv[1])).serve()()"


def forked_by(path: Path, asked: Request, output: int) -> client.ForkedProcess | None:
    """Return the process; None if nobody listens yet: the socket has its name before."""
    try:
        return client.fork(asked, [output], str(path))
    except client.NoForkServer:
        return None


def test_a_kernel_ends_with_its_zygote(tmp_path: Path) -> None:
    connection = tmp_path / "kernel.json"
    command = [sys.executable, "-P", "-c", _SERVE, str(tmp_path / "socket")]
    with subprocess.Popen(command) as zygote, (tmp_path / "output").open("wb") as output:
        wait_until((tmp_path / "socket").exists)
        asked = Request(kernel.main, ["-f", str(connection)], dict(os.environ), "/", kernel.NAME, prints=True)
        forked = wait_until(lambda: forked_by(tmp_path / "socket", asked, output.fileno()))
        wait_until(connection.exists, (tmp_path / "output").read_text)
        running = psutil.Process(forked.pid)
        zygote.kill()
        running.wait(BROKEN_SECONDS)


AHEAD = """
import os, sys
from labkit.zygote import preloading
preloading.load()
written = os.listdir(os.environ["HOME"])
print(len(os.listdir("/proc/self/task")), written, *(name in sys.modules for name in ("autograder", "matplotlib")))
from labkit.zygote import kernel
before = set(sys.modules)
app = kernel.KernelApp.instance()
app.initialize(["-f", os.environ["HOME"] + "/kernel.json", "--Session.key=b'key'"])
told = sys.__stdout__
import random
print(random.__file__ in app.kernel.debugger.kernel_modules, before <= app.shell._sys_modules_keys, file=told)
print(sorted(set(sys.modules) - before), file=told, flush=True)
os._exit(0)
"""


def test_what_is_imported_ahead_is_all_that_a_kernel_needs_and_starts_no_thread(tmp_path: Path) -> None:
    one = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    environment = {**os.environ, **one, "HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run([sys.executable, "-P", "-c", AHEAD], env=environment, capture_output=True, text=True)
    ahead, *_, remembered, later = ran.stdout.splitlines()  # IPython says something, too
    assert (ahead, remembered) == ("1 [] False False", "True True"), ran.stderr
    assert len(later.split(",")) < 5, later
