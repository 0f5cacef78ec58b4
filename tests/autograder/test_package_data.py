"""The autograder installed as a package, `pip install ./autograder`, has the files that its modules read."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2] / "autograder"


def test_every_data_file_of_a_package_is_installed_with_it() -> None:
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    for package in setuptools["packages"]:
        folder = ROOT.joinpath(*package.split(".")[1:])
        if folder == ROOT:
            continue
        files = {
            file
            for file in folder.rglob("*")
            if file.is_file() and file.suffix not in (".py", ".pyc") and "__pycache__" not in file.parts
        }
        patterns = setuptools["package-data"].get(package, ())
        declared = {file for pattern in patterns for file in folder.glob(pattern) if file.suffix != ".py"}
        assert files == declared, package
