"""Which tests a change reaches: those of which a file, or a file that it uses in turn, has changed.

What is chosen errs towards more: where nothing says who reads a file, all tests do.
"""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from sources import Sources


@dataclass
class Selection:
    """The tests that a change reaches, and why."""

    modules: dict[str, set[str] | None] = field(default_factory=dict)
    """Test modules and notebooks; of each the exercises whose tests run, or None: all of its tests."""
    reasons: dict[str, str] = field(default_factory=dict)
    """For each of these the changed file that reaches it, the first by name."""
    everything: str = ""
    """Why all tests run; empty where they need not."""

    def add(self, module: str, exercise: str | None, because: str) -> None:
        """Choose a module's tests: those of one exercise, or all."""
        chosen = self.modules.get(module, set())
        self.modules[module] = None if exercise is None or chosen is None else chosen | {exercise}
        self.reasons.setdefault(module, because)


class Reach:
    """What each test of a checkout uses, directly or in turn."""

    def __init__(
        self,
        sources: Sources,
        everything: Sequence[str],
        reads: Mapping[str, Sequence[str]],
        otherwise: Mapping[str, Sequence[str]],
    ) -> None:
        """everything: patterns of files on which all tests depend.

        reads: patterns of tests, and for each the patterns of files that they read, beyond what their text says.
        otherwise: patterns of files that no text names, and for each the patterns of their tests.
        """
        self._sources = sources
        self._everything = everything
        self._reads = reads
        self._otherwise = otherwise
        self._used: dict[str, set[str]] = {}
        self._tests = [path for path in sorted(sources.files) if is_test(path)]

    def selection(self, changed: Iterable[str]) -> Selection:
        """The tests that a change of these files reaches, those that are new or gone among them."""
        found = Selection()
        paths = sorted(changed)
        for path in paths:
            if matches(path, self._everything):
                found.everything = f"all tests depend on {path}"
                return found
            readers, concerned = self._tests_by_file.get(path, []), self._exercises_by_file.get(path, [])
            if not readers and not concerned:
                readers = self._nearest_tests(path)
            for test in readers:
                found.add(test, None, path)
            for test in self._tests if concerned else ():
                if self._sources.uses(test).all_exercises:
                    for name in concerned:
                        found.add(test, name, path)
            if not readers and not concerned:
                found.everything = f"nothing says which tests {path} reaches"
                return found
        return found

    @functools.cached_property
    def _tests_by_file(self) -> dict[str, list[str]]:
        return _inverted({test: self._reached(test) for test in self._tests})

    @functools.cached_property
    def _exercises_by_file(self) -> dict[str, list[str]]:
        return _inverted({name: self._reached(_exercise(name)) for name in self._sources.exercises})

    def _nearest_tests(self, path: str) -> list[str]:
        """The tests of a file that no text names."""
        if path.startswith(("tests/", "autograder/tests/")):
            for folder in map(str, PurePosixPath(path).parents[:-1]):
                if beside := [test for test in self._tests if str(PurePosixPath(test).parent) == folder]:
                    return beside
        patterns = next((tests for pattern, tests in self._otherwise.items() if fnmatch.fnmatch(path, pattern)), ())
        return [test for test in self._tests if matches(test, patterns)]

    def _reached(self, start: str) -> set[str]:
        """What one file or exercise uses, in turn, with itself."""
        seen, waiting = {start}, [start]
        mirrored = _subject(start) if start.startswith("tests/") else ()
        while waiting:
            one = waiting.pop()
            # a test of another package is no more than a file to this one
            used = self._used_by(one) if one == start or not is_test(one) else set()
            if _subject(one) == mirrored:  # tests mirror the packages: these call its functions
                used = used | {_module(name) for name in self._sources.uses(one).deferred}
            for found in used - seen:
                seen.add(found)
                waiting.append(found)
        return seen

    def _used_by(self, one: str) -> set[str]:
        if one not in self._used:
            self._used[one] = self._find_used(one)
        return self._used[one]

    def _find_used(self, one: str) -> set[str]:
        kind, _, name = one.partition(" ")
        if kind == "exercise" and name:
            return self._sources.files_of(name) | {_module(name)}
        if kind == "module" and name:
            return self._sources.exercises[name].modules & self._sources.files
        uses = self._sources.uses(one)
        used = uses.files | {_exercise(name) for name in uses.exercises} | {_module(name) for name in uses.modules}
        used |= self._sources.data_beside(one)
        if is_test(one):
            used |= self._sources.conftests(one)
            for pattern, files in self._reads.items():
                if fnmatch.fnmatch(one, pattern):
                    used |= {path for path in self._sources.files if matches(path, files)}
        return used


def _inverted(used: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for user, files in used.items():
        for path in files:
            found.setdefault(path, []).append(user)
    return found


def _subject(path: str) -> tuple[str, ...]:
    """What a file is about: the package or folder below the tree, below `course` the exercise."""
    parts = PurePosixPath(path).parts
    return parts[1:4] if parts[1:2] == ("course",) else parts[1:2]


def _exercise(name: str) -> str:
    """Node of an exercise with all its files."""
    return f"exercise {name}"


def _module(name: str) -> str:
    """Node of an exercise's module, as other code imports it."""
    return f"module {name}"


def is_test(path: str) -> bool:
    """Whether the file is a module of tests, or a notebook, which is one."""
    place = PurePosixPath(path)
    if place.suffix == ".ipynb":
        return path.startswith("notebooks/phase")
    return place.name.startswith("test_") and place.suffix == ".py" and place.parts[0] in ("tests", "autograder")


def matches(path: str, patterns: Iterable[str]) -> bool:
    """Whether one of the patterns fits; `*` fits any characters, slashes among them."""
    return any(fnmatch.fnmatch(path, pattern) for pattern in patterns)
