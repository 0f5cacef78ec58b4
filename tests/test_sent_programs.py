"""Programs that tests and benchmarks send to ranks as text import names that exist: no type checker reads them."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MADE_UP = ("tests/runner/", "tests/clusters/virtual/test_installed_packages.py", "tests/test_lazy_names.py")
"""Files whose texts import packages that their tests make."""


def programs(file: Path) -> Iterator[ast.Module]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "import " in node.value:
            try:
                yield ast.parse(node.value)
            except SyntaxError:  # prose, or a part of a program
                continue


def missing(module: str, name: str) -> bool:
    try:
        if hasattr(importlib.import_module(module), name):
            return False
        return importlib.util.find_spec(f"{module}.{name}") is None
    except ModuleNotFoundError:
        return True


def test_texts_of_programs_import_names_that_exist() -> None:
    seen = 0
    wrong = []
    for folder in ("tests", "autograder", "benchmarks", "labkit"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            where = file.relative_to(ROOT).as_posix()
            if where.startswith(MADE_UP):
                continue
            for program in programs(file):
                for node in ast.walk(program):
                    if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith(
                        ("labkit.", "autograder.")
                    ):
                        continue
                    module = node.module or ""
                    # the learner's modules are written by the test
                    if module.startswith("labkit.exercises"):
                        continue
                    seen += len(node.names)
                    wrong += [f"{where}: {module}.{name.name}" for name in node.names if missing(module, name.name)]
    assert seen > 100 and wrong == []
