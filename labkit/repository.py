"""Addresses of the lab: `Repository` and `Documentation` below `[project.urls]` in pyproject.toml, and nowhere else.

README and the course site show them. While one is unset, links that need it are left out, and the text says "get this
repository". A fork sets its own.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any

from labkit.catalogue import root

PAGES = ("README.md", "docs/start.md")
"""Pages that say how to get the lab, between two comments."""
BRANCH = "main"
_FIRST = "workspace/phase1_data_parallel/01_process_group.ipynb"
_BLOCK = re.compile(r"(<!-- get: [^\n]*-->\n).*?(<!-- end -->)", re.DOTALL)
_GITHUB = re.compile(r"https://github\.com/([^/]+/[^/]+)")


def repository() -> str | None:
    """Return the address that `git clone` takes, without `.git`; None if it is unset, as in an installed package."""
    url: str | None = _project().get("urls", {}).get("Repository")
    return url.rstrip("/").removesuffix(".git") if url else None


def site() -> str | None:
    """Return the address of the course site's front page, without a slash at its end; None if it is unset."""
    url: str | None = _project().get("urls", {}).get("Documentation")
    return url.rstrip("/") if url else None


def _project() -> Mapping[str, Any]:
    settings = root() / "pyproject.toml"
    project: Mapping[str, Any] = tomllib.loads(settings.read_text())["project"] if settings.is_file() else {}
    return project


def with_way_to_get(page: str) -> str:
    """Return the page's text, with what its reader does first in the place that is marked for it."""
    return _BLOCK.sub(lambda found: f"{found[1]}\n{_way(repository(), site())}\n\n{found[2]}", page)


def _way(url: str | None, pages: str | None) -> str:
    version = f"version {_project()['version']}"
    read = f" [The course site]({pages}/) has all guides and notebooks, to read." if pages else ""
    if url is None:
        return f"Get this repository, {version}, and in its folder:{read}"
    on_github = _GITHUB.fullmatch(url)
    binder = f"https://mybinder.org/v2/gh/{on_github[1]}/{BRANCH}?urlpath=lab/tree/{_FIRST}" if on_github else ""
    without = f" Without installing: [Binder]({binder}) opens the first notebook in your browser." if binder else ""
    return f"    git clone {url}\n    cd {url.rpartition('/')[2]}\n\nThis is {version}.{read}{without} In the folder:"


def edit_address(path: str) -> str | None:
    """Return the page on which a file of the repository is edited; None where that is not known."""
    url = repository()
    return f"{url}/edit/{BRANCH}/{path}" if url and _GITHUB.fullmatch(url) else None
