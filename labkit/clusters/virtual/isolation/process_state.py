"""State that torch and Python keep once per process: each rank has its own, exchanged when ranks take turns.

Only one rank runs at a time, so the process can have the state of that rank. State that no rank has changed is not
exchanged and costs nothing. What a package that ranks share sets for good, such as a warnings filter when it is
imported, applies to all ranks, since the package is imported once.
"""

from __future__ import annotations

import functools
import logging
import sys
import warnings
from collections.abc import Callable
from copy import copy
from typing import Any

import torch

from labkit.clusters.virtual.isolation.current import here
from labkit.clusters.virtual.isolation.packages import belongs_to_rank
from labkit.torch_versions.tensors import print_options, set_print_options

_NOBODY = -1


class _State:
    """One piece of state, and its values for the ranks that are not running."""

    def __init__(
        self, read: Callable[[], Any], write: Callable[[Any], object], fresh: Callable[[Any], Any] = lambda value: value
    ) -> None:
        """`fresh(initial)` is the value that a rank begins with."""
        self.read, self.write, self.fresh = read, write, fresh
        self.initial: Any = None
        """Value on ranks that have not changed it."""
        self.values: dict[int, Any] = {}

    def touch(self) -> None:
        """Keep a value for each rank from now on. Call it before the value changes."""
        if self not in _touched:
            self.initial = self.fresh(self.read())
            _touched.append(self)


_touched: list[_State] = []
"""State that differs between ranks, or may."""
_owner = _NOBODY
"""The rank whose values are in place."""
_followers: list[Callable[[int], object]] = []
"""Called with each rank that takes its turn."""
_replaceable: dict[int, tuple[list[str], Any, Any]] = {}
"""Search path, stdout and stderr of the ranks that are not running: attributes that any code may replace or change,
without a function that could be watched.
"""


def resume(rank: int) -> None:
    """Put the values of `rank` in place, which runs from now on. Called at each turn, so it takes few steps."""
    global _owner
    if rank != _owner:
        _replaceable[_owner] = before = sys.path, sys.stdout, sys.stderr
        own = _replaceable.get(rank)
        if own is None:
            initial = _replaceable.get(_NOBODY, before)
            own = [*initial[0]], initial[1], initial[2]
        sys.path, sys.stdout, sys.stderr = own
        for state in _touched:
            state.values[_owner] = state.read()
            state.write(state.values[rank] if rank in state.values else state.fresh(state.initial))
        for follow in _followers:
            follow(rank)
        _owner = rank


def separate() -> None:
    """Give each rank its own warnings filters, log levels, and modes of torch, beside search path and streams."""
    for state, owner, names in (
        (_State(sys.getrecursionlimit, sys.setrecursionlimit), sys, ["setrecursionlimit"]),
        (_State(torch.get_num_threads, _set_num_threads), torch, ["set_num_threads"]),
        (_State(torch.get_default_dtype, torch.set_default_dtype), torch, ["set_default_dtype"]),
        (
            _State(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
            torch,
            ["set_float32_matmul_precision"],
        ),
        (_State(torch.is_anomaly_enabled, torch.set_anomaly_enabled), torch, ["set_anomaly_enabled"]),
        (
            _State(torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
            torch,
            ["use_deterministic_algorithms", "set_deterministic_debug_mode"],
        ),
        (_State(print_options, set_print_options), torch, ["set_printoptions"]),
        (_warnings, warnings.catch_warnings, ["__enter__"]),
    ):
        for name in names:
            _watch(owner, name, lambda *_, state=state: state.touch())
    for name in ("simplefilter", "filterwarnings", "resetwarnings"):
        _watch_filters(name)
    for name in ("setLevel", "addHandler", "removeHandler"):
        _watch(logging.Logger, name, _touch_logger)


def exchange(read: Callable[[], Any], write: Callable[[Any], object], fresh: Callable[[Any], Any]) -> None:
    """Keep a value for each rank from now on. `fresh(present value)` is what other ranks begin with."""
    _State(read, write, fresh).touch()


def follow(function: Callable[[int], object]) -> None:
    """Call `function(rank)` whenever another rank takes its turn, in the rank's thread."""
    _followers.append(function)


def _watch(owner: Any, name: str, before: Callable[..., None]) -> None:
    """Call `before` with the arguments of `owner.name`, whenever a rank calls it."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def watched(*args: Any, **kwargs: Any) -> Any:
        if here.rank is not None:
            before(*args)
        return original(*args, **kwargs)

    setattr(owner, name, watched)


_really_set_num_threads = torch.set_num_threads


def _set_num_threads(number: int) -> None:
    if number != torch.get_num_threads():
        _really_set_num_threads(number)


class _Warnings:
    """The state of the module `warnings`; a copy has a list of its own."""

    def __init__(self, filters: list[Any], show: Any, message: Any) -> None:
        self.filters, self.show, self.message = filters, show, message

    def __copy__(self) -> _Warnings:
        return _Warnings(list(self.filters), self.show, self.message)


_of_warnings: Any = warnings


def _read_warnings() -> _Warnings:
    return _Warnings(_of_warnings.filters, _of_warnings.showwarning, _of_warnings._showwarnmsg_impl)


def _write_warnings(state: _Warnings) -> None:
    changed = state.filters != _of_warnings.filters
    _of_warnings.filters = state.filters
    _of_warnings.showwarning, _of_warnings._showwarnmsg_impl = state.show, state.message
    if changed:  # Python forgets then which warnings it has shown
        _of_warnings._filters_mutated()


_warnings = _State(_read_warnings, _write_warnings, fresh=copy)


def _watch_filters(name: str) -> None:
    original = getattr(warnings, name)

    @functools.wraps(original)
    def watched(*args: Any, **kwargs: Any) -> Any:
        if here.rank is None:
            return original(*args, **kwargs)
        _warnings.touch()
        before = list(_of_warnings.filters)
        result = original(*args, **kwargs)
        if not belongs_to_rank(sys._getframe(1).f_code.co_filename):
            new = [entry for entry in _of_warnings.filters if entry not in before]
            for state in (_warnings.initial, *_warnings.values.values()):
                state.filters[:0] = new
        return result

    setattr(warnings, name, watched)


_loggers: dict[logging.Logger, _State] = {}


def _touch_logger(logger: logging.Logger, *_: Any) -> None:
    """Keep a level and handlers for each rank if its own code changes them, or has `logging` change them."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename == logging.__file__:
        frame = frame.f_back
    if logger in _loggers or not belongs_to_rank(frame.f_code.co_filename):
        return

    def read() -> tuple[int, list[logging.Handler]]:
        return logger.level, list(logger.handlers)

    def write(state: tuple[int, list[logging.Handler]]) -> None:
        level, handlers = state
        logger.handlers[:] = handlers
        if level != logger.level:
            logger.level = level
            logger.manager._clear_cache()  # type: ignore[attr-defined]  # of which levels are enabled, as setLevel does

    _loggers[logger] = _State(read, write)
    _loggers[logger].touch()
