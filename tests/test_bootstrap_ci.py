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
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from requirement_lists import listed, locked_versions

from requirements.update import FOLDER, LISTS, entries, members

ROOT = Path(__file__).resolve().parent.parent


def environment(system: str, machine: str, python: str) -> dict[str, str]:
    """Return what markers depend on."""
    platform = {"Linux": "linux", "Darwin": "darwin"}[system]
    return {
        **{"sys_platform": platform, "platform_system": system, "platform_machine": machine, "os_name": "posix"},
        **{"python_version": python.rpartition(".")[0], "python_full_version": python},
        **{"implementation_name": "cpython", "platform_python_implementation": "CPython"},
    }


PYTHONS = ["3.11.0", "3.12.0", "3.13.0", "3.14.0"]
ENVIRONMENTS = [
    *(environment("Linux", "x86_64", python) for python in PYTHONS),
    environment("Linux", "aarch64", "3.11.0"),
    environment("Darwin", "arm64", "3.13.0"),
]


def project(name: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / {"labkit": ".", "autograder": "autograder"}[name] / "pyproject.toml").read_text())


def requirements_of(name: str, extra: str) -> list[str]:
    """Return what a package requires, for one of its extras (empty: for none)."""
    if name in ("labkit", "autograder"):
        found = project(name)["project"]
        return list(found["optional-dependencies"][extra] if extra else found["dependencies"])
    try:
        return metadata.requires(name) or []
    except metadata.PackageNotFoundError:  # another platform's
        return []


def group(name: str) -> list[str]:
    """Return a dependency group of pyproject.toml, with those that it includes."""
    found = project("labkit")["dependency-groups"][name]
    nested = ([each] if isinstance(each, str) else group(each["include-group"]) for each in found)
    return [text for texts in nested for text in texts]


def declared(name: str) -> list[Requirement]:
    """Return the requirements of a list and of those that it begins with."""
    own = {"-e .": "labkit", "-e ./autograder": "autograder"}
    found = []
    for each in (LISTS[member] for member in members(name)):
        for text in each.requirements:
            folder, bracket, extras = text.partition("[")
            found.append(Requirement(own.get(folder, folder) + bracket + extras))
        found += map(Requirement, group(each.group) if each.group else ())
    return found


def needed(name: str, environment: dict[str, str]) -> list[Requirement]:
    """Return all that the requirements of a list ask for, one by one, without what only CUDA builds of torch do."""
    seen: set[tuple[str, str]] = set()
    found = []
    queue = [(requirement, "") for requirement in declared(name)]
    while queue:
        requirement, wanted_by_extra = queue.pop()
        package = canonicalize_name(requirement.name)
        if re.match("nvidia-(?!ml-py)|cuda|triton", package):
            continue
        if requirement.marker and not requirement.marker.evaluate({**environment, "extra": wanted_by_extra}):
            continue
        found.append(requirement)
        for extra in {"", *requirement.extras} - {each for known, each in seen if known == package}:
            seen.add((package, extra))
            queue += [(Requirement(text), extra) for text in requirements_of(package, extra)]
    return found


@pytest.mark.parametrize("name", LISTS)
def test_a_list_is_what_its_requirements_need(name: str) -> None:
    """On each platform, no package is missing, none is too many, and the version is one that all admit."""
    versions = locked_versions()
    for environment in ENVIRONMENTS:
        wanted = needed(name, environment)
        there = {
            canonicalize_name(each.name)
            for each in listed(name)
            if each.marker is None or each.marker.evaluate(environment)
        }
        assert {canonicalize_name(each.name) for each in wanted} - {"torch", "labkit", "autograder"} == there, (
            environment
        )
        for each in wanted:
            if each.name not in ("labkit", "autograder"):
                assert each.specifier.contains(versions[canonicalize_name(each.name)], prereleases=True), each


@pytest.mark.parametrize("name", LISTS)
def test_a_list_has_names_versions_and_hashes_and_nothing_else(name: str) -> None:
    """No address of an index, which would be the one of whoever wrote the list."""
    text = (FOLDER / f"{name}.txt").read_text()
    entry = r"[\w.-]+==[\w.!]+( ; [\w.'\"=!<> ()]+)?( \\\n    --hash=sha256:[0-9a-f]{64})+\n"
    begins_with = "".join(f"-r {other}.txt\n" for other in LISTS[name].begins_with)
    assert re.fullmatch(rf"# .*\n{re.escape(begins_with)}({entry})*", text)
    assert entries(text), "an empty list"


def installed_here() -> dict[str, str]:
    """Return the versions of the packages that this platform takes."""
    names = {"torch", "pip", "setuptools", "uv"}
    names |= {
        canonicalize_name(each.name) for each in listed("testing") if each.marker is None or each.marker.evaluate()
    }
    return {name: version for name, version in locked_versions().items() if name in names}


@pytest.mark.parametrize("python", PYTHONS)
def test_locked_versions_admit_python(python: str) -> None:
    """Debian 12 has 3.11.2, and some packages require 3.11.5 or later."""
    admitted = {name: metadata.metadata(name)["Requires-Python"] or "" for name in installed_here()}
    assert {name: wanted for name, wanted in admitted.items() if python not in SpecifierSet(wanted)} == {}


def test_conda_environment_follows_the_lists() -> None:
    dependencies = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    plain = [entry for entry in dependencies if isinstance(entry, str)]
    (nested,) = [entry["pip"] for entry in dependencies if isinstance(entry, dict)]
    assert nested == ["-r requirements/tools.txt", "-r requirements/hub.txt"], "packages are pinned there, nowhere else"
    assert plain == ["python=3.11", f"pip={locked_versions()['pip']}", "cxx-compiler"]


def test_installed_versions_are_the_lists() -> None:
    """The tests run with the versions that users will get."""
    different = {
        name: (metadata.version(name), version)
        for name, version in installed_here().items()
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
