"""What each file of the checkout uses, read from its text: imports, modules and files named in strings, exercises.

Nothing is imported or run. Where a text leaves it open, a use is assumed.
"""

from __future__ import annotations

import ast
import functools
import json
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

_FILE_NAME = re.compile(r"[\w.-]+\.[a-z]\w*")
_IMPORT = re.compile(r"^\s*(?:from|import) ((?:labkit|autograder)[\w.]*)(?: import (.*))?", re.MULTILINE)
_RUN_AS_MODULE = re.compile(r"-m ((?:labkit|autograder)[\w.]*)")
_THROUGH_ALL = {("catalogue", "all_exercises"), ("catalogue", "entries"), ("judging", "rubrics")}
"""Functions that go through all exercises: their module, and name."""
_RUN_AS_COMMAND = re.compile(r"(?:\blabkit|\./lab) ([a-z]+(?:-[a-z]+)*)")
_COMMANDS = ("labkit/cli.py", "autograder/commands.py")
"""Modules with a function `_NAME` for each command of `labkit`."""
_LONGEST_NAME = 200
"""Longer strings of the packages are texts for people, whose words are no names."""


@dataclass(frozen=True)
class Exercise:
    """One entry of the catalogue."""

    number: int
    phase: str
    short_name: str

    @property
    def notebook(self) -> str:
        return f"notebooks/{self.phase}/{self.number:02}_{self.short_name}.ipynb"

    @property
    def modules(self) -> set[str]:
        """The files that `from labkit.exercises import NAME` may load."""
        return {f"{folder}/{self.phase}/{self.short_name}.py" for folder in ("solutions", "templates")}

    def is_named_in(self, text: str) -> bool:
        """Whether a string means this exercise: a name that is a common word stands alone, or after its phase."""
        if self.short_name not in text:
            return False
        whole = f"{self.phase}/{self.short_name}" in text or f"{self.number:02}_{self.short_name}" in text
        return (
            whole or text == self.short_name or ("_" in self.short_name and self.short_name in re.findall(r"\w+", text))
        )

    def owns(self, path: str) -> bool:
        """Whether the file belongs to this exercise alone. Its tests do not: what else tests it does not use them."""
        if self.short_name not in path or PurePosixPath(path).name.startswith("test_"):
            return False
        parts = PurePosixPath(path).with_suffix("").parts
        return (
            path == self.notebook
            or (self.phase in parts and self.short_name in parts)
            or parts[:3] == ("docs", "live", self.short_name)
        )


@dataclass
class Uses:
    """What the text of one file refers to."""

    files: set[str] = field(default_factory=set)
    """Files that it imports or names."""
    modules: set[str] = field(default_factory=set)
    """Exercises whose module it imports."""
    deferred: set[str] = field(default_factory=set)
    """The same, where a function of the packages imports it: only who calls that function uses it."""
    exercises: set[str] = field(default_factory=set)
    """Exercises that a test names: it may use any file of theirs."""
    all_exercises: bool = False
    """Whether a test goes through the catalogue."""


class Sources:
    """The files of a checkout, and what they use."""

    def __init__(self, root: Path, files: Iterable[str]) -> None:
        """files: paths relative to `root`."""
        self.root = root
        self.files = frozenset(files)
        self.exercises = _exercises(root)
        """By short name."""
        self._uses: dict[str, Uses] = {}
        self._lazy: dict[str, dict[str, str]] = {}
        self._modules = dict(self._named_modules())
        self._by_name: dict[str, set[str]] = {}
        for path in self.files:
            self._by_name.setdefault(PurePosixPath(path).name, set()).add(path)

    def uses(self, path: str) -> Uses:
        """What a Python file or a notebook refers to; nothing where it is another kind of file."""
        if path not in self._uses:
            read = {".py": _Python, ".ipynb": _Notebook}.get(PurePosixPath(path).suffix)
            self._uses[path] = read(self, path).uses if read and path in self.files else Uses()
        return self._uses[path]

    def text(self, path: str) -> str:
        return (self.root / path).read_text()

    def files_of(self, exercise: str) -> set[str]:
        """The files that belong to one exercise alone, by its short name."""
        return {path for path in self.files if self.exercises[exercise].owns(path)}

    def data_beside(self, path: str) -> set[str]:
        """Files other than Python in the folder of a package's module, or below where no module is nearer."""
        return self._data.get(str(PurePosixPath(path).parent), set()) if in_packages(path) else set()

    def conftests(self, path: str) -> set[str]:
        """The `conftest.py` files that pytest reads for a module of tests."""
        return {found for one in PurePosixPath(path).parents if (found := str(one / "conftest.py")) in self.files}

    def module(self, name: str) -> set[str]:
        """Files of a module and of the packages that it is in; of the longest part of the name that is one."""
        parts = name.split(".")
        names = (".".join(parts[: end + 1]) for end in range(len(parts)))
        return {self._modules[one] for one in names if one in self._modules}

    @functools.cached_property
    def commands(self) -> dict[str, set[str]]:
        """The files that run for each command of `labkit`, by its name."""
        found: dict[str, set[str]] = {}
        for path in (path for path in _COMMANDS if path in self.files):
            start = {
                path,
                *self.module("labkit.__main__"),
                *self.module("labkit.cli"),
                *self.module("labkit.command_line.commands"),
            }
            for node in ast.parse(self.text(path)).body:
                if isinstance(node, ast.FunctionDef) and node.name.startswith("_"):
                    reader = _Function(self, path, node)
                    found[node.name[1:].replace("_", "-")] = start | reader.uses.files
        return found

    def ending_in(self, path: str) -> set[str]:
        """Files whose path ends in this one."""
        return {one for one in self.named(PurePosixPath(path).name) if f"/{one}".endswith(f"/{path}")}

    def siblings(self, path: str) -> set[str]:
        """The modules of a package that imports them by computed names; none where these are its lazy names."""
        folder = PurePosixPath(path).parent
        if self.lazy_names(".".join(folder.parts)):
            return set()
        return {one for one in self.files if PurePosixPath(one).parent == folder and one.endswith(".py")}

    def named(self, name: str) -> set[str]:
        """Files with this name, without their folders."""
        return self._by_name.get(name, set())

    def lazy_names(self, package: str) -> dict[str, str]:
        """Names that a package looks up at their first use, and the modules that define them."""
        if package not in self._lazy:
            self._lazy[package] = {}
            path = self._modules.get(package, "")
            if path.endswith("__init__.py") and "= lazy_names(__name__" in (text := self.text(path)):
                for node in ast.parse(text).body:
                    if _is_for_type_checkers(node):
                        imports = [one for one in ast.walk(node) if isinstance(one, ast.ImportFrom)]
                        self._lazy[package] |= {name.name: one.module or "" for one in imports for name in one.names}
        return self._lazy[package]

    def _named_modules(self) -> Iterator[tuple[str, str]]:
        for path in sorted(self.files):
            place = PurePosixPath(path)
            if place.suffix != ".py":
                continue
            parts = place.with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path
            # pytest and the benchmarks put these folders on the path
            if parts[0] in ("tests", "benchmarks") or parts[:2] == ("autograder", "tests"):
                yield parts[-1], path

    @functools.cached_property
    def _data(self) -> dict[str, set[str]]:
        packages = {str(PurePosixPath(path).parent) for path in self.files if path.endswith(".py")}
        found: dict[str, set[str]] = {}
        for path in self.files:
            if not path.endswith(".py"):
                nearest = next((str(one) for one in PurePosixPath(path).parents if str(one) in packages), ".")
                found.setdefault(nearest, set()).add(path)
        return found


def in_packages(path: str) -> bool:
    """Whether the file is part of what the tests test, and no test itself."""
    return path.startswith(("labkit/", "autograder/")) and not path.startswith("autograder/tests/")


def _exercises(root: Path) -> dict[str, Exercise]:
    entries = tomllib.loads((root / "labkit/catalogue.toml").read_text())["exercise"]
    found = (Exercise(one["number"], *one["name"].split("/")) for one in entries)
    return {exercise.short_name: exercise for exercise in found}


class _Reader:
    """Collects the uses of one file."""

    def __init__(self, sources: Sources, path: str) -> None:
        self._sources = sources
        self._path = path
        self._is_test = not in_packages(path)
        self.uses = Uses()
        self._read()
        self.uses.files.discard(path)

    def _read(self) -> None:
        raise NotImplementedError

    def _add_import(self, module: str, names: Iterable[str], within_function: bool) -> None:
        """`from module import names`, or `import module` where there are none."""
        files, sources = self.uses.files, self._sources
        if module == "labkit.exercises":
            modules = self.uses.deferred if within_function and in_packages(self._path) else self.uses.modules
            modules |= set(names) & sources.exercises.keys()
        self.uses.all_exercises |= any((module.rpartition(".")[2], name) in _THROUGH_ALL for name in names)
        files |= sources.module(module)
        for name in names:
            whole = f"{module}.{name}"
            files |= sources.module(sources.lazy_names(module).get(name, whole))
            # a package itself: any of its names may be looked up
            files |= {path for lazy in sources.lazy_names(whole).values() for path in sources.module(lazy)}

    def _add_text(self, text: str) -> None:
        """What a string may name: a module, files, exercises; what a program in it imports."""
        sources, files = self._sources, self.uses.files
        if re.fullmatch(r"(labkit|autograder)(\.\w+)+(:\w+)?", text):
            files |= sources.module(text.partition(":")[0])
            files |= sources.module(f"{text}.__main__")  # of a package that is run
        if not self._is_test and text.endswith(".py"):  # a file beside it, which is run or read
            files |= {str(PurePosixPath(self._path).parent / text)} & sources.files
        if self._is_test or len(text) < _LONGEST_NAME:
            for name in _FILE_NAME.findall(text):
                # a test may mean any file of that name; of the packages' files, a module is imported
                files |= {path for path in sources.named(name) if self._is_test or not path.endswith(".py")}
        if self._is_test:
            self.uses.exercises |= {one for one, exercise in sources.exercises.items() if exercise.is_named_in(text)}
        for module, names in _IMPORT.findall(text):
            self._add_import(module, re.findall(r"\w+", names), within_function=True)
        for module in _RUN_AS_MODULE.findall(text):
            files |= sources.module(module)
        if self._is_test:
            for command in _RUN_AS_COMMAND.findall(text):
                files |= sources.commands.get(command, set())


class _Python(_Reader):
    """A module or a program."""

    def _read(self) -> None:
        # what labkit itself imports within functions are pictures, for those who draw
        if self._path == "labkit/__init__.py":
            self.uses.files |= self._sources.module("labkit.trace.views")
            return
        self._read_code(ast.parse(self._sources.text(self._path)))

    def _read_code(self, tree: ast.AST) -> None:
        package = PurePosixPath(self._path).parent.parts
        words: set[str] = set()
        for node, within_function in _code(tree):
            if within_function and self._path in _COMMANDS and isinstance(node, ast.Import | ast.ImportFrom):
                continue  # of one command only
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self._add_import(alias.name, (), within_function)
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    base = ".".join((*package[: len(package) - node.level + 1], *([base] if base else [])))
                self._add_import(base, [alias.name for alias in node.names], within_function)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                words.add(node.value)
                self._add_text(node.value)
            elif isinstance(node, ast.BinOp) and (path := _path_below(node)).endswith(".py"):
                self.uses.files |= self._sources.ending_in(path)
            elif isinstance(node, ast.JoinedStr) and ast.unparse(node).startswith("f'{__name__}."):
                self.uses.files |= self._sources.siblings(self._path)
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                self.uses.all_exercises |= (node.value.id, node.attr) in _THROUGH_ALL
        if self._is_test and "labkit" in words:  # a list of a command's words
            for command in words & self._sources.commands.keys():
                self.uses.files |= self._sources.commands[command]


class _Function(_Python):
    """One function of a module."""

    def __init__(self, sources: Sources, path: str, function: ast.FunctionDef) -> None:
        self._function = function
        super().__init__(sources, path)

    def _read(self) -> None:
        for statement in self._function.body:
            self._read_code(statement)


class _Notebook(_Reader):
    """A notebook, which nbval runs: its cells and magics."""

    def _read(self) -> None:
        for module in ("labkit.notebook", "labkit.checks", "labkit.plots"):
            self.uses.files |= self._sources.module(module)
        self.uses.files |= {"tests/nbval.cfg"} & self._sources.files
        for name, exercise in self._sources.exercises.items():
            if exercise.notebook == self._path:
                self.uses.exercises.add(name)
        for cell in json.loads(self._sources.text(self._path))["cells"]:
            if cell["cell_type"] == "code":
                for command in _RUN_AS_COMMAND.findall("".join(cell["source"])):
                    self.uses.files |= self._sources.commands.get(command, set())
                for module, names in _IMPORT.findall("".join(cell["source"])):
                    self._add_import(module, re.findall(r"\w+", names), within_function=False)


def _code(tree: ast.AST) -> Iterator[tuple[ast.AST, bool]]:
    """All nodes but docstrings and what only type checkers see, and whether each is within a function."""
    waiting = [(tree, False)]
    while waiting:
        node, within = waiting.pop()
        yield node, within
        within = within or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if _is_for_type_checkers(node):
            assert isinstance(node, ast.If)
            waiting.extend((child, within) for child in node.orelse)
            continue
        for child in ast.iter_child_nodes(node):
            if not (isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)):
                waiting.append((child, within))


def _path_below(node: ast.BinOp) -> str:
    """The end of a path that is put together with slashes, from constants; empty where it ends otherwise."""
    parts: list[str] = []
    one: ast.expr = node
    while isinstance(one, ast.BinOp) and isinstance(one.op, ast.Div) and isinstance(one.right, ast.Constant):
        parts.insert(0, str(one.right.value))
        one = one.left
    return "/".join(parts)


def _is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
