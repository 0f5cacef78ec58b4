"""Packages whose public names are imported at first use offer the same names to programs and to type checkers."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from importlib.util import resolve_name
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = sorted(
    ".".join(path.parent.relative_to(ROOT).parts)
    for path in [*ROOT.glob("labkit/**/__init__.py"), *ROOT.glob("autograder/**/__init__.py")]
    if "lazy_names(__name__" in path.read_text()
)


def names_for_type_checkers(package: str) -> dict[str, str]:
    """The public names that the package imports under TYPE_CHECKING, `from a import b as b`, with their modules."""
    file = importlib.import_module(package).__file__
    assert file is not None
    blocks = [node for node in ast.parse(Path(file).read_text()).body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names if alias.asname}


def test_the_packages_are_found() -> None:
    clusters = {f"labkit.clusters.{kind}" for kind in ("kubernetes", "local", "slurm", "virtual")}
    others = {"autograder.sandbox", "labkit", "labkit.calibrate", "labkit.clusters", "labkit.notebook", "labkit.plots"}
    assert {*PACKAGES} == clusters | others | {"labkit.trace"}


@pytest.mark.parametrize("package", PACKAGES)
def test_type_checkers_see_the_same_names(package: str) -> None:
    module = importlib.import_module(package)
    in_full = {name: resolve_name(where, package) for name, where in vars(module)["_PUBLIC"].items()}
    assert in_full == names_for_type_checkers(package)
    assert set(in_full) <= {*module.__all__} & {*dir(module)}
    for name in module.__all__:
        assert getattr(module, name) is not None


def test_a_name_that_there_is_not_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"^module 'labkit\.trace' has no attribute 'Trase'$"):
        importlib.import_module("labkit.trace").Trase  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'Jobb' from 'labkit'"):
        exec("from labkit import Jobb")


def test_importing_labkit_imports_neither_torch_nor_numpy() -> None:
    program = "import sys, labkit; print({'torch', 'numpy', 'matplotlib', 'IPython'} & {*sys.modules})"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "set()\n"
