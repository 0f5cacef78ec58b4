"""In a notebook the forkserver starts before the kernel imports torch, so that both import it side by side."""

from __future__ import annotations

import subprocess
import sys

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
