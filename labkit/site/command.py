"""`labkit docs`: write the course site, static files that open without a server or a network."""

from __future__ import annotations

import importlib.util
import shutil
import time
from pathlib import Path

from labkit import repository
from labkit.catalogue import root
from labkit.command_line.commands import CommandError

REQUIRED = ("furo", "myst_nb", "nbgrader", "sphinx", "sphinx_copybutton", "sphinx_design")
"""Modules that the build imports."""


def main(output: Path, work: Path | None = None, *, fresh: bool = False) -> int:
    """Build the site into the folder `output`; return 0, or 1 if Sphinx warned. Raises `CommandError`.

    work: folder for staged pages and Sphinx's cache; `.labkit/site` of the course if None.
    fresh: read all pages again, not only those that changed.
    """
    if missing := [name for name in REQUIRED if importlib.util.find_spec(name) is None]:
        raise CommandError(f"the site needs {', '.join(missing)}: ./lab docs installs what is missing")
    if not (root() / "docs" / "index.md").is_file():
        raise CommandError(f"the site is made from a course, and {root()} is none: run ./lab docs in its folder")
    if output.exists() and not output.is_dir():
        raise CommandError(f"{output} is a file: name a folder with --to")
    if output.is_dir() and any(output.iterdir()) and not (output / "searchindex.js").is_file():
        raise CommandError(f"{output} has files that are not of a site: name another folder with --to")
    from labkit.site.staging import stage

    began = time.monotonic()
    work = work or root() / ".labkit" / "site"
    status = _render(stage(work / "source"), work / "html", fresh)
    if status == 0:
        shutil.rmtree(output, ignore_errors=True)
        shutil.copytree(work / "html", output, ignore=shutil.ignore_patterns(".buildinfo*"))
        pages = len(list(output.rglob("*.html")))
        print(f"{pages} pages in {time.monotonic() - began:.0f} s: open {output / 'index.html'}")
        if repository.repository() is None:
            print("no address of the repository is set (Repository in [project.urls] of pyproject.toml): no edit links")
    return status


def _render(sources: Path, output: Path, fresh: bool) -> int:
    # imported here: labkit is installed without Sphinx, too
    from sphinx.cmd.build import build_main

    doctrees = sources.with_name("doctrees")
    # all pages are written, since each shows the whole navigation; only those that changed are read
    options = ["-q", "-a", "-W", "--keep-going", "-b", "html", "-d", str(doctrees), "-c", str(Path(__file__).parent)]
    return int(build_main([*options, *(["-E"] if fresh else []), str(sources), str(output)]))
