"""The modules of the exercises: in a notebook the current ones, the learner's own or else the template.

`from labkit.exercises import ring_allreduce` gives that module everywhere: in the notebook and on every rank of its
cells it is the learner's own code. It is shipped to ranks with the job (`install`); each virtual rank has an instance
of its own. Programs get what `labkit.checks.working_modules` chooses, the learner's own where they are known to pass,
else the solutions: launchers ship them, and under `torchrun` or `python -m` they are chosen here.
"""

from __future__ import annotations

import functools
import importlib
import linecache
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, ModuleType
from typing import Any

import cloudpickle

from labkit import catalogue
from labkit.catalogue import Exercise


def place_with(place: Callable[[ModuleType], None]) -> None:
    """Use `place` to register each module by name before its text is run: for ranks that share a process."""
    global _place
    _place = place


def _into_sys_modules(module: ModuleType) -> None:
    sys.modules[module.__name__] = module


_place: Callable[[ModuleType], None] = _into_sys_modules


def load(exercise: Exercise, source: str, module: ModuleType | None = None) -> ModuleType:
    """Run a module's text and return the module; tracebacks show its lines under `exercise.filename`.

    module: the module to run it in again, as `importlib.reload` does; None: a new one.
    """
    linecache.cache[exercise.filename] = (len(source), None, source.splitlines(keepends=True), exercise.filename)
    module = module or ModuleType(f"labkit.exercises.{exercise.short_name}")
    module.__file__ = exercise.filename
    # dataclasses and pickle look a class's module up by name
    _place(module)
    # a rank may have another module of that name, so functions are pickled with their code
    cloudpickle.register_pickle_by_value(module)
    exec(_compiled(source, exercise.filename), module.__dict__)
    return module


class _ShippedModules(threading.local):
    """Modules shipped with this rank's job; virtual ranks are threads, so each has its own."""

    sources: Mapping[str, str] | None = None
    modules: dict[str, ModuleType]


_shipped = _ShippedModules()


def install(sources: Mapping[str, str]) -> None:
    """On a rank: make `from labkit.exercises import NAME` give these modules, in this thread."""
    _shipped.sources = dict(sources)
    _shipped.modules = {}


@contextmanager
def installed(sources: Mapping[str, str]) -> Iterator[None]:
    """Within it, in this thread: `from labkit.exercises import NAME` gives these modules, then what it gave before."""
    before = _shipped.__dict__.copy()
    install(sources)
    try:
        yield
    finally:
        _shipped.__dict__.clear()
        _shipped.__dict__.update(before)


def renew(sources: Mapping[str, str]) -> list[tuple[ModuleType, dict[str, Any]]]:
    """On a live rank: rerun, in place, those of these changed modules that are in use.

    Returns each of them with its previous contents. Exceptions raised by a module's text propagate.
    """
    _shipped.sources = {**(_shipped.sources or {}), **sources}
    renewed = []
    for name, source in sources.items():
        exercise = Exercise(name)
        # the module is not registered until its text has run to the end
        module = _shipped.modules.pop(exercise.short_name, None)
        if module is not None:
            before = dict(module.__dict__)
            _shipped.modules[exercise.short_name] = load(exercise, source, module)
            renewed.append((module, before))
    return renewed


def shipped_names() -> dict[str, str]:
    """On a rank: return the public names of the modules shipped with its job, each with its module's short name."""
    names = {}
    for full, source in (_shipped.sources or {}).items():
        exercise = Exercise(full)
        names.update(dict.fromkeys(catalogue.declared_names(source, exercise.filename), exercise.short_name))
    return names


def hand_on() -> Callable[[], None]:
    """Return a function that a thread started by this one must call first, to get the same modules."""
    mine = _shipped.__dict__.copy()
    return lambda: _shipped.__dict__.update(mine)


def __getattr__(name: str) -> ModuleType:
    if name.startswith("_"):
        raise AttributeError(name)
    if _shipped.sources is not None:
        return _loaded(name, _shipped.sources, _shipped.modules)
    try:
        exercise = catalogue.find(name)
    except catalogue.UnknownExercise as error:
        raise AttributeError(str(error)) from None
    if _is_in_notebook():
        return load(exercise, exercise.source()[0])
    # by its name: what knows which modules pass their checks is a layer above
    rule = importlib.import_module("labkit.checks.working_modules")
    sources = rule.modules_of_this_program(sys._getframe(1).f_code.co_filename)
    return _loaded(exercise.name, sources, _of_program)


_of_program: dict[str, ModuleType] = {}
"""Modules of a program that nothing was shipped to; its threads share them."""


def _loaded(name: str, sources: Mapping[str, str], modules: dict[str, ModuleType]) -> ModuleType:
    """The module of that full or short name; its text runs the first time."""
    if name not in modules:
        full = next((n for n in sources if name in (n, n.split("/")[1])), None)
        if full is None:
            had = ", ".join(sources) or "none"
            raise AttributeError(f"exercise {name!r} was not shipped with this job; it has: {had}")
        modules[name] = load(Exercise(full), sources[full])
    return modules[name]


def _is_in_notebook() -> bool:
    """Whether this process runs cells, in which a module that was just defined is the current one."""
    shell = sys.modules.get("IPython")
    return shell is not None and shell.get_ipython() is not None


@functools.lru_cache(maxsize=64)
def _compiled(source: str, filename: str) -> CodeType:
    """Compile a module's text, once for all ranks of a process, each of which runs it separately."""
    try:
        return compile(source, filename, "exec", dont_inherit=True)
    except ValueError as error:  # of null bytes before Python 3.11.4; of what cannot be encoded
        raise SyntaxError(str(error), (filename, 1, None, None)) from None
