"""What CI relies on: the files that pin versions agree, and a failing stage makes CI fail."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from collections import Counter
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent


def lock() -> dict[str, str]:
    """Return versions by package name."""
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.!]+", line)] == [], "names and versions only"
    pins = {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}
    assert len(pins) == len(lines), "a package is pinned twice"
    return pins


def declared() -> list[Requirement]:
    """Return all requirements of pyproject.toml and autograder/pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    grader = tomllib.loads((ROOT / "autograder/pyproject.toml").read_text())
    texts = [
        *project["project"]["dependencies"],
        *(text for extra in project["project"]["optional-dependencies"].values() for text in extra),
        *(text for group in project["dependency-groups"].values() for text in group if isinstance(text, str)),
        *grader["project"]["dependencies"],
        *(text for extra in grader["project"]["optional-dependencies"].values() for text in extra),
    ]
    return [requirement for requirement in map(Requirement, texts) if requirement.name != "labkit"]


def test_lock_has_every_declared_package_at_an_admitted_version() -> None:
    pins = lock()
    for requirement in declared():
        assert pins.get(canonicalize_name(requirement.name), "0") in requirement.specifier, requirement


def test_lock_is_closed_and_has_no_more_than_is_asked_for() -> None:
    """Every dependency of a declared package is pinned, except GPU packages, and each pinned package is needed."""
    needed: set[tuple[str, str]] = set()
    of_set_up = map(Requirement, ("pip", "setuptools", "uv"))
    queue = [(requirement, "") for requirement in [*declared(), *of_set_up]]
    while queue:
        requirement, wanted_by_extra = queue.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": wanted_by_extra}):
            continue
        name = canonicalize_name(requirement.name)
        for extra in {"", *requirement.extras}:
            if (name, extra) not in needed and not re.match("nvidia|cuda|triton", name):
                needed.add((name, extra))
                queue += [(Requirement(text), extra) for text in metadata.requires(name) or []]
    assert {name for name, _ in needed} == set(lock())


@pytest.mark.parametrize("python", ["3.11.0", "3.12.0", "3.13.0", "3.14.0"])
def test_locked_versions_admit_python(python: str) -> None:
    """Debian 12 has 3.11.2, and some packages require 3.11.5 or later."""
    admitted = {name: metadata.metadata(name)["Requires-Python"] or "" for name in lock()}
    assert {name: wanted for name, wanted in admitted.items() if python not in SpecifierSet(wanted)} == {}


def test_conda_environment_follows_the_lock() -> None:
    dependencies = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    plain = [entry for entry in dependencies if isinstance(entry, str)]
    (nested,) = [entry["pip"] for entry in dependencies if isinstance(entry, dict)]
    assert nested == ["-r requirements.lock", "-e .[lab]", "-e ./autograder"], (
        "packages are pinned in the lock, nowhere else"
    )
    assert plain == ["python=3.11", f"pip={lock()['pip']}", "cxx-compiler"]


def test_installed_versions_are_the_lock_s() -> None:
    """The tests run with the versions that users will get."""
    different = {
        name: (metadata.version(name), version)
        for name, version in lock().items()
        if name != "torch" and metadata.version(name) != version
    }
    assert different == {}


@pytest.mark.parametrize(
    ("bare", "tests", "status", "last"),
    [
        (0, 0, 0, "== 7 passed in 1.00s =="),
        (1, 0, 1, "== 7 passed in 1.00s =="),
        (0, 1, 1, "== 1 failed, 6 passed in 1.00s =="),
    ],
)
def test_ci_fails_with_any_stage_and_closes_with_pytest_s_line(
    tmp_path: Path, bare: int, tests: int, status: int, last: str
) -> None:
    """The stages are stand-ins, and no system package is missing: this tests how CI handles their exit statuses."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", tmp_path / ".ci")
    closing = (
        f'[ "$*" = "test --merge --slowest" ] || exit 0; echo "{last}"; [ {tests} = 0 ] || echo "lab test: failed"'
    )
    scripts = {".ci/bare": f"exit {bare}", "lab": f"{closing}; exit {tests}"}
    for name, script in scripts.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run([tmp_path / ".ci/run"], env=environment, stdout=subprocess.PIPE, text=True)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (status, last)


def test_no_two_files_of_tests_have_one_name() -> None:
    # pytest imports them by name: the second of a name is an error once all the other tests have run
    files = [file for folder in ("tests", "autograder/tests") for file in (ROOT / folder).rglob("test_*.py")]
    twice = [name for name, times in Counter(file.name for file in files).items() if times > 1]
    assert twice == []
