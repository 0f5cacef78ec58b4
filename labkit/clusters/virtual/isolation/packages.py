"""Which installed packages each rank loads for itself, like the learner's modules.

A library that trains keeps what it knows of its process, such as the rank, in globals, singletons and caches. Each rank
therefore runs the package's modules for itself; only the search for files and the compilation are shared. Common to all
ranks are packages that this process had imported before the ranks began (torch, numpy), those with compiled modules,
which a process loads once, and those that know nothing of ranks and that the learner does not import: what they keep is
the same on every rank, and loading them again costs time.
"""

from __future__ import annotations

import os
import re
import sys
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path

from labkit.clusters.program import is_learners
from labkit.clusters.virtual.isolation.current import here
from labkit.imported_modules import ImportedModules

_KNOWS_RANKS = re.compile(
    rb"torch\.distributed|from torch import .*\bdistributed\b|\b(?:LOCAL_RANK|WORLD_SIZE)\b|[\"']RANK[\"']"
    rb"|local_rank|global_rank|rank_zero"
)
_imported = ImportedModules()
_imported_before = {name.partition(".")[0] for name in _imported.new()}
"""Packages that this process had imported before the ranks began."""
_each_ranks_own: dict[str, bool] = {}
"""Whether each rank loads a package for itself, as decided at its first import on any rank."""
_folders: tuple[str, ...] = ()
"""Files and folders of the packages of which each rank has its own."""
_compiled: set[str] = set()
"""Packages that ranks share because of their compiled modules."""


def begin() -> None:
    """From now on ranks import. Packages imported so far stay common to all of them."""
    _imported_before.update(name.partition(".")[0] for name in _imported.new())


def is_each_ranks_own(name: str, by_learner: bool) -> bool:
    """Whether each rank loads the installed package of module `name` for itself. `by_learner`: the learner's code
    imports it; counts if this is the first import of the package.
    """
    package = name.partition(".")[0]
    if package not in _each_ranks_own:
        _each_ranks_own[package] = _decide(package, by_learner)
    return _each_ranks_own[package]


def belongs_to_rank(filename: str) -> bool:
    """Whether each rank runs this file's code for itself: the learner's, or that of such a package."""
    return is_learners(filename) or filename.startswith(_folders)


def warn_if_shared(spec: ModuleSpec) -> None:
    """Print a warning if a module that is being imported knows of ranks, but they share its package since it has
    compiled modules.
    """
    package = spec.name.partition(".")[0]
    if package not in _compiled or not isinstance(spec.loader, SourceFileLoader) or here.rank is None:
        return
    if _KNOWS_RANKS.search(Path(spec.loader.path).read_bytes()):
        _compiled.discard(package)  # once is enough
        print(
            f"labkit: {package} has compiled modules, which a process loads once: ranks share the package and"
            " whatever it remembers. With --ranks processes each rank has its own.",
            file=sys.stderr,
        )


def _decide(package: str, by_learner: bool) -> bool:
    global _folders
    if package in _imported_before or package in sys.stdlib_module_names:
        return False
    spec = PathFinder.find_spec(package)
    if spec is None or not isinstance(spec.loader, SourceFileLoader):
        return False
    if spec.submodule_search_locations is None:
        own: tuple[str, ...] = (spec.loader.path,)
        files = [Path(spec.loader.path)]
    else:
        own = tuple(f"{folder}{os.sep}" for folder in spec.submodule_search_locations)
        files = [file for folder in own for file in Path(folder).rglob("*")]
    if any(file.name.endswith(tuple(EXTENSION_SUFFIXES)) for file in files):
        _compiled.add(package)
        return False
    sources = (file for file in files if file.suffix == ".py")
    if not by_learner and not any(_KNOWS_RANKS.search(file.read_bytes()) for file in sources):
        return False
    _folders += own
    return True
