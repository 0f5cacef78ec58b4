"""The program that `labkit launch` runs: the text of a file or a module, and how Python would run it."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import tokenize
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from labkit.clusters import Job, Script
from labkit.command_line.commands import CommandError, require_file


class ProgramSyntaxError(Exception):
    """The program does not parse; the message is Python's own."""


@dataclass(frozen=True)
class Program:
    """Source text for every rank."""

    source: str
    filename: str
    """Its name in tracebacks: the absolute path of its file; for a cell, the notebook and the cell's number."""
    script: Script
    first_line: int = 1
    """Line at which `source` begins; 2 below a magic's line."""


def require_syntax(job: Job) -> None:
    """Raise `ProgramSyntaxError` unless the source of `job` compiles."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the ranks will show them
            compile("\n" * (job.first_line - 1) + str(job.source), job.filename, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:  # ValueError: null bytes
        raise ProgramSyntaxError("".join(traceback.format_exception_only(error)).rstrip()) from None


def named(options: argparse.Namespace) -> Program:
    """Return the program that the options of `labkit launch` name, a file or a module; see `from_file`."""
    if options.module is not None:
        return from_module(options.module, options.arguments)
    return from_file(Path(options.file), options.arguments)


def require(options: argparse.Namespace) -> None:
    """Raise `CommandError` if the options name a file or a module that cannot be read."""
    if options.config is not None or (options.file or "").endswith(".ipynb"):
        require_file(Path(options.config or options.file))
    else:
        named(options)


def from_file(file: Path, arguments: Sequence[str]) -> Program:
    """Return the program in `file`. Raises `CommandError` if it cannot be read."""
    require_file(file)
    path = os.path.abspath(file)
    # Python resolves links for this, so that a script finds the modules beside it
    folder = os.path.dirname(os.path.realpath(file))
    return Program(_text(path), path, Script((str(file), *arguments), folder, path))


def from_module(name: str, arguments: Sequence[str]) -> Program:
    """Return the program that `python -m NAME` runs. Imports nothing. Raises `CommandError` if there is none."""
    spec = _find(name)
    if spec is not None and spec.submodule_search_locations is not None:
        name = f"{name}.__main__"
        spec = _find(name)
        if spec is None:
            raise CommandError(f"-m {name.removesuffix('.__main__')} is a package without __main__.py")
    if spec is None:
        raise CommandError(f"there is no module {name}: -m looks in this folder and among the installed packages")
    if not spec.origin or not spec.origin.endswith(".py"):
        raise CommandError(f"module {name} has no Python source: {spec.origin}")
    path = os.path.abspath(spec.origin)
    return Program(_text(path), path, Script((path, *arguments), os.getcwd(), path, name))


def _find(name: str) -> ModuleSpec | None:
    """Find a module without importing the packages that it is in."""
    places: list[str] | None = [os.getcwd(), *sys.path]
    spec: ModuleSpec | None = None
    for depth, part in enumerate(name.split(".")):
        if places is None or not part:
            return None
        # by its last part alone: the folders of a namespace package in a package are computed from the imported parent
        spec = PathFinder.find_spec(part, places) or (_find_installed(part) if depth == 0 else None)
        if spec is None:
            return None
        locations = spec.submodule_search_locations
        places = None if locations is None else list(locations)
    return spec


def _find_installed(package: str) -> ModuleSpec | None:
    """Find an outermost package that an editable installation brings."""
    return importlib.util.find_spec(package)


def _text(path: str) -> str:
    try:
        with tokenize.open(path) as file:  # in the encoding that the file declares
            return file.read()
    except SyntaxError as error:
        raise CommandError(f"{path}: {error}") from None
    except UnicodeDecodeError as error:
        raise CommandError(f"{path} is not text in UTF-8, and declares no other encoding: {error}") from None
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}") from None
