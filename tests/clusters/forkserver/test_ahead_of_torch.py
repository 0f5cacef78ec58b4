"""In a notebook the forkserver starts before the kernel imports torch, so that both import it side by side.

Where memory is short it starts later."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

KERNEL = """
import sys

import psutil


def forkservers():
    return [child.pid for child in psutil.Process().children() if "launch.py" in " ".join(child.cmdline())]


class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            sys.meta_path.remove(self)
            before.extend(forkservers())


before = []
sys.meta_path.insert(0, Watch())
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "labkit")
shell.run_line_magic("cluster", "local")
shell.run_cell_magic("torchrun", "-n 2 -o run", "1")
print(before, forkservers(), len(shell.user_ns["run"].values))
"""


def test_the_forkserver_that_runs_the_cells_is_there_before_torch_is_imported() -> None:
    done = subprocess.run([sys.executable, "-c", KERNEL], capture_output=True, text=True)
    before, after, ranks = done.stdout.strip().splitlines()[-1].replace("] ", "]|").split("|")
    assert before != "[]", done.stdout + done.stderr
    assert (before, ranks) == (after, "2")


SITE_WITH_LITTLE_MEMORY = """
import os

import psutil

os.environ["LABKIT_IDLE_RANKS_MINUTES"] = "30"
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "labkit")
loaded = len(psutil.Process().children())
shell.run_cell_magic("exercise", "process_group", "pass")
print("children:", loaded, len(psutil.Process().children()))
"""


def test_where_a_site_limits_idle_ranks_it_starts_with_the_first_exercise(tmp_path: Path) -> None:
    environment = {**os.environ, "LABKIT_WORKSPACE": str(tmp_path)}
    command = [sys.executable, "-c", SITE_WITH_LITTLE_MEMORY]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.stdout.strip().splitlines()[-1] == "children: 0 1", done.stdout + done.stderr
