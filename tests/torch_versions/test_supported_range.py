"""The supported range of torch versions is the same wherever it is stated."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from labkit.torch_versions import NEWEST, OLDEST

ROOT = Path(__file__).resolve().parents[2]
RANGE = "torch {}.{} to {}.{}".format(*OLDEST, *NEWEST)
VERSIONS = [(major, minor) for major in (1, 2, 3) for minor in range(31)]


def is_supported(version: tuple[int, int]) -> bool:
    return OLDEST <= version <= NEWEST


def test_requirements_allow_the_supported_versions() -> None:
    stated = 0
    for file in ("pyproject.toml", "autograder/pyproject.toml"):
        project = tomllib.loads((ROOT / file).read_text())["project"]
        groups = [project["dependencies"], *project.get("optional-dependencies", {}).values()]
        for requirement in (Requirement(text) for group in groups for text in group):
            if requirement.name == "torch":
                stated += 1
                for major, minor in VERSIONS:
                    allowed = requirement.specifier.contains(f"{major}.{minor}.0")
                    assert allowed == is_supported((major, minor)), f"{file}: {requirement}, {major}.{minor}"
    assert stated


def test_the_lock_has_a_supported_version() -> None:
    found = re.search(r"^torch==(\d+)\.(\d+)\.", (ROOT / "requirements/torch.txt").read_text(), re.MULTILINE)
    assert found is not None
    assert is_supported((int(found[1]), int(found[2])))


def test_the_script_takes_the_supported_versions_of_the_system() -> None:
    text = (ROOT / "lab").read_text()
    (pattern,) = re.findall(r"\$\{found\[0\]\} =~ (\S+) \]\]", text)
    assert RANGE in text
    for major, minor in VERSIONS:
        assert bool(re.match(pattern, f"{major}.{minor}.0+cpu")) == is_supported((major, minor)), (major, minor)


@pytest.mark.parametrize("path", ["README.md", "lab"])
def test_texts_state_the_supported_range(path: str) -> None:
    assert RANGE in (ROOT / path).read_text()


def test_no_page_states_another_range() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for stated in re.findall(r"torch \d+\.\d+ to \d+\.\d+", page.read_text()):
            assert stated == RANGE, page
