"""Pages of the reference: one for each package that notebooks and programs import, with all of its public names."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from labkit.site.docstrings import restructured

PACKAGES = {
    "labkit": "Jobs, clusters and traces: what `from labkit import ...` brings",
    "labkit.clusters": "Jobs and their results",
    "labkit.clusters.virtual": "Virtual ranks",
    "labkit.clusters.local": "Processes of this machine",
    "labkit.clusters.slurm": "Slurm",
    "labkit.clusters.kubernetes": "Kubernetes",
    "labkit.clusters.live": "Ranks that keep their state",
    "labkit.trace": "Events of a run",
    "labkit.plots": "Pictures",
    "labkit.notebook": "In notebooks",
    "labkit.predict": "Step time and memory without running",
    "labkit.hardware": "GPUs, links and clusters",
    "labkit.calibrate": "This machine's figures",
    "labkit.models": "Models to train",
    "labkit.data": "Data to train on",
    "labkit.questions": "Questions of notebooks",
    "labkit.checks": "Checks of exercises",
    "labkit.progress": "Points, and the course home",
    "labkit.dashboard": "The dashboard of a monitored job",
}
"""Packages whose names are documented, each with its subject."""


def public_names(package: str) -> list[str]:
    """Names that a package offers: its `__all__`."""
    return sorted(importlib.import_module(package).__all__, key=str.lower)


def pages() -> Iterator[tuple[str, str]]:
    """Each page's path on the site, and its text."""
    yield "reference/index.md", _index()
    for package, subject in PACKAGES.items():
        yield f"reference/{package}.rst", _page(package, subject)


def _index() -> str:
    lines = [
        "# Reference",
        "",
        "The public names of labkit, from their docstrings. What an exercise's module is given "
        "(`labkit.course`) is in the exercise's notebook.",
        "",
        "| package | |",
        "|---|---|",
        *(f"| [`{package}`]({package}.rst) | {subject} |" for package, subject in PACKAGES.items()),
        "",
        "```{toctree}",
        ":hidden:",
        "",
        *PACKAGES,
        "```",
    ]
    return "\n".join([*lines, ""])


def _page(package: str, subject: str) -> str:
    module = importlib.import_module(package)
    lines = [package, "=" * len(package), "", f"{subject.replace('`', '``')}.", "", f".. py:module:: {package}", ""]
    for name in public_names(package):
        lines += [*_entry(module, package, name), ""]
    return "\n".join(lines)


def _entry(module: ModuleType, package: str, name: str) -> list[str]:
    value = getattr(module, name)
    full = f"{package}.{name}"
    if (elsewhere := _documented_at(package, name, value)) is not None:
        return [f".. py:data:: {name}", "   :no-index-entry:", "", f"   The same as :py:obj:`{elsewhere}`."]
    if inspect.isclass(value):
        kind = "autoexception" if issubclass(value, Exception) else "autoclass"
        return [f".. {kind}:: {full}", "   :members:"]
    if inspect.isroutine(value):
        return [f".. autofunction:: {full}"]
    return [f".. py:data:: {name}", "", *(f"   {line}" for line in restructured(_comment(module, name)))]


def _documented_at(package: str, name: str, value: Any) -> str | None:
    """Full name in the first package that offers the same object, if that is not `package`."""
    for earlier in PACKAGES:
        if earlier == package:
            return None
        if name in public_names(earlier) and getattr(importlib.import_module(earlier), name) is value:
            return f"{earlier}.{name}"
    return None


def _comment(module: ModuleType, name: str) -> list[str]:
    """The string literal after a value, in the module that assigns it. Raises LookupError if there is none."""
    from sphinx.pycode import ModuleAnalyzer

    lines: list[str] | None = None
    place: str | None = module.__name__
    while place is not None and lines is None:
        lines = ModuleAnalyzer.for_module(place).find_attr_docs().get(("", name))
        place = _imported_from(place, name)
    if lines is None:
        raise LookupError(f"{module.__name__}.{name} is public and has no docstring: write one after its value")
    return lines


def _imported_from(module: str, name: str) -> str | None:
    tree = ast.parse(inspect.getsource(importlib.import_module(module)))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and any(one.name == name for one in node.names):
            return node.module
    return None
