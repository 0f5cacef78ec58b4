"""Stacks as faulthandler writes them: whose frames they are, and where."""

from __future__ import annotations

import faulthandler
import importlib.util
import tempfile
from pathlib import Path

from labkit.clusters.forkserver import stack_parser
from labkit.clusters.job import Job

PROGRAM = """\
def größe(act):
    act()


def 计算(act):
    größe(act)
"""


def test_files_and_functions_with_names_that_are_not_ascii_are_found_by_them(tmp_path: Path) -> None:
    """faulthandler escapes them; the lab and its Python may be in such a folder, too."""
    file = tmp_path / "Übung für alle 😀" / "schritt.py"
    file.parent.mkdir()
    file.write_text(PROGRAM)
    spec = importlib.util.spec_from_file_location("schritt", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with tempfile.TemporaryFile("w+") as dump:
        module.计算(lambda: faulthandler.dump_traceback(dump))
        dump.seek(0)
        (thread,) = stack_parser.threads(dump.read(), Job(source="1"))
    named = [(name, line, function) for name, line, function, _ in thread.frames]
    assert [each for each in named if each[0] == str(file)] == [(str(file), 6, "计算"), (str(file), 2, "größe")]
