"""The one setting of the lab's addresses, and what pages say with and without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit import repository
from labkit.catalogue import root

MARKED = "Before.\n\n<!-- get: by a command -->\nwhat was there\n<!-- end -->\n\n    ./lab start\n"


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pyproject.toml of its own."""
    file = tmp_path / "pyproject.toml"
    file.write_text('[project]\nname = "labkit"\nversion = "3.1"\n')
    monkeypatch.setattr(repository, "root", lambda: tmp_path)
    return file


def test_without_an_address_nothing_is_invented(settings: Path) -> None:
    assert (repository.repository(), repository.site(), repository.edit_address("README.md")) == (None, None, None)
    page = repository.with_way_to_get(MARKED)
    assert "Get this repository, version 3.1" in page and "what was there" not in page and "://" not in page
    assert repository.with_way_to_get(page) == page
    settings.unlink()
    assert repository.repository() is None


def test_one_address_serves_clone_edit_and_binder(settings: Path) -> None:
    urls = (
        'urls = { Repository = "https://github.com/someone/their-lab.git", Documentation = "https://lab.example/" }\n'
    )
    settings.write_text(settings.read_text() + urls)
    page = repository.with_way_to_get(MARKED)
    assert "    git clone https://github.com/someone/their-lab\n    cd their-lab\n" in page
    assert "https://mybinder.org/v2/gh/someone/their-lab/main?" in page and "(https://lab.example/)" in page
    assert repository.edit_address("docs/a.md") == "https://github.com/someone/their-lab/edit/main/docs/a.md"


def test_elsewhere_there_is_no_binder_and_no_edit_link(settings: Path) -> None:
    settings.write_text(settings.read_text() + 'urls = { Repository = "https://git.example/lab" }\n')
    page = repository.with_way_to_get(MARKED)
    assert "git clone https://git.example/lab\n" in page and "mybinder" not in page
    assert repository.edit_address("docs/a.md") is None


@pytest.mark.parametrize("path", repository.PAGES)
def test_pages_are_as_the_setting_says(path: str) -> None:
    page = (root() / path).read_text()
    assert "<!-- get:" in page and repository.with_way_to_get(page) == page, "run ./lab sync"
