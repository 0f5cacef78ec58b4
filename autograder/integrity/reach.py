"""Uses beyond the exercise: of the grader, the interpreter, the system, or the library's own answer.

Everything is read from the syntax. Names assembled at run time are not resolved, but the assembly itself is reported.
Each rule gives an innocent reason for what it finds.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass

from autograder.integrity.names import Names, nodes


@dataclass(frozen=True)
class Rule:
    """One kind of finding."""

    title: str
    innocent: str
    """A possible innocent reason."""


RULES = {
    "grader": Rule(
        "uses a module of the grader or of labkit's inside",
        "Imports are offered by editors, and labkit's modules can be read by anybody; nothing of the grader is in the "
        "sandbox.",
    ),
    "inspection": Rule(
        "looks into the interpreter",
        "Also a way to debug: gc and inspect find leaks and print stacks. Such lines are forgotten easily.",
    ),
    "process": Rule(
        "starts, ends or signals processes, or opens connections",
        "Also a way to debug a hang, or a habit from scripts that launch their own ranks.",
    ),
    "surroundings": Rule(
        "reads its environment, or files of the system",
        "torchrun's own examples read RANK and WORLD_SIZE from the environment.",
    ),
    "computed": Rule(
        "uses a name that is put together when it runs, or code made of text",
        "A table of functions by name, as in getattr(torch, dtype_name), is good practice elsewhere.",
    ),
    "patched": Rule(
        "changes a module that others use too",
        "Also how a value is set that the library offers as a setting, or how a call is traced while debugging.",
    ),
    "pretending": Rule(
        "defines how its objects compare or convert",
        "Data classes and containers need this; only for tensors it is rare.",
    ),
    "private": Rule(
        "uses private parts of torch, or operators by their inner names",
        "Answers on the web do so where the public function came later, and a name with _ is easily overlooked.",
    ),
    "forbidden": Rule(
        "names what the exercise asks to do without",
        "It may be there to compare with, in code that is never called; the judge counts messages, not names.",
    ),
    "unread": Rule(
        "could not be read",
        "In most cases a slip in the syntax: the work of somebody who ran out of time.",
    ),
}


@dataclass(frozen=True)
class Reach:
    """One place in a module."""

    rule: str
    line: int
    what: str


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_INSPECTION = _set("gc inspect ctypes _ctypes cffi dis code codeop faulthandler tracemalloc traceback pdb bdb")
_IMPORTING = _set("importlib imp pkgutil runpy zipimport site sitecustomize pickle marshal builtins")
_PROCESS = _set("subprocess multiprocessing signal socket atexit pty resource psutil _posixsubprocess")
_PROCESS_CALLS = _set(
    "fork forkpty kill killpg _exit abort system popen execv execve execl execle execlp execvp execvpe spawnl spawnv "
    "posix_spawn setsid setpgid ptrace"
)
_SURROUNDINGS = _set("environ environb getenv getenvb putenv")
_SYS = _set("settrace setprofile _getframe _current_frames modules meta_path path_hooks path exit")
_INSIDE = _set(
    "__globals__ __builtins__ __subclasses__ __code__ __closure__ __mro__ f_back f_globals f_locals f_builtins "
    "tb_frame gi_frame cr_frame __loader__ __spec__ __reduce__ __reduce_ex__ __del__"
)
_COMPARING = _set(
    "__eq__ __ne__ __array__ __array_ufunc__ __array_function__ __torch_function__ __torch_dispatch__ __float__ "
    "__bool__ __index__ __reduce__ __reduce_ex__ __getattribute__ __instancecheck__ __class__ __del__"
)
_PLACES = ("/proc", "/sys/", "/etc/", "/root", "/home", "gradebook.db", ".ipynb", "../")
"""Beginnings of suspicious paths; not /tmp, which each rank has to itself."""
_SETTINGS = ("torch.backends.", "torch._dynamo.config.", "torch._inductor.config.", "os.environ")
_MAX = 50
"""Maximum places reported for one module."""


def reaches(tree: ast.Module, forbidden: Set[str] = frozenset()) -> list[Reach]:
    """Return suspicious uses in a module, by line; at most the first 50.

    forbidden: full names. `torch.distributed.all_reduce` means that function wherever in `torch.distributed` it is
    found; `*.allreduce` means an attribute of that name on anything.
    """
    inside = nodes(tree)
    names = Names(inside, defaults=True)
    findings: dict[Reach, None] = {}
    texts = {id(node.value) for node in inside if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)}
    for node in inside:
        if id(node) in texts:  # text for the reader, such as a docstring
            continue
        for rule, what in _at(node, names, forbidden):
            findings.setdefault(Reach(rule, getattr(node, "lineno", 0), what[:200]))
    return sorted(_widest(findings), key=lambda reach: (reach.line, reach.rule, reach.what))[:_MAX]


def _widest(findings: Iterable[Reach]) -> Iterator[Reach]:
    """Drop findings that another finding of the same line covers: `os.environ` beside `os.environ.get`."""
    beside: dict[tuple[str, int], list[Reach]] = defaultdict(list)
    for reach in findings:
        beside[reach.rule, reach.line].append(reach)
    for together in beside.values():
        for reach in together[:_MAX]:
            if not any(other.what.startswith(f"{reach.what}.") for other in together[:_MAX]):
                yield reach


def _at(node: ast.AST, names: Names, forbidden: Set[str]) -> Iterator[tuple[str, str]]:
    match node:
        case ast.Import(aliases):
            for alias in aliases:
                yield from _name(alias.name, forbidden)
        case ast.ImportFrom(module, aliases, level):
            for alias in aliases:
                whole = "." * level + (module or "")
                yield from _name(whole if alias.name == "*" else f"{whole}.{alias.name}", forbidden)
        case ast.Name(name, ast.Load()):
            yield from _names(node, names, forbidden)
            for module in names.starred:
                yield from _forbidden(f"{module}.{name}", forbidden)
            if name in ("__builtins__", "__loader__", "__spec__"):
                yield "inspection", name
        case ast.Attribute(_, attribute):
            yield from _names(node, names, forbidden)
            if attribute in _INSIDE:
                yield "inspection", f".{attribute}"
            if f"*.{attribute}" in forbidden:
                yield "forbidden", f".{attribute}"
        case ast.Subscript():
            yield from _names(node, names, forbidden)
        case ast.Call(function, arguments):
            yield from _names(node, names, forbidden)
            yield from _call(function, arguments, names, forbidden)
        case ast.Constant(str() as text):
            if any(text.startswith(place) for place in _PLACES) or "/proc/" in text or "gradebook" in text:
                yield "surroundings", repr(text)
        case ast.ClassDef(_, bases):
            for base in bases:
                if names.of(base) & {"torch.Tensor", "torch.nn.Parameter"}:
                    yield "pretending", f"class {node.name}({ast.unparse(base)[:80]})"
            for statement in node.body:
                if isinstance(statement, ast.FunctionDef) and statement.name in _COMPARING:
                    yield "pretending", f"{node.name}.{statement.name}"
    for target in _targets(node):
        yield from _written(target, names)


def _names(node: ast.expr, names: Names, forbidden: Set[str]) -> Iterator[tuple[str, str]]:
    for name in names.of(node):
        yield from _name(name, forbidden)


def _name(name: str, forbidden: Set[str]) -> Iterator[tuple[str, str]]:
    """Yield the findings for one full name."""
    first, *rest = name.split(".")
    if first in ("autograder", "nbgrader") or (first == "labkit" and _is_inside(rest)):
        yield "grader", name
    elif first in _INSPECTION or first in _IMPORTING or (first == "sys" and rest and rest[0] in _SYS):
        yield "inspection", name
    elif first in _PROCESS or (first in ("os", "posix") and rest and rest[0] in _PROCESS_CALLS):
        yield "process", name
    elif first in ("os", "posix") and rest and rest[0] in _SURROUNDINGS:
        yield "surroundings", name
    elif first == "torch" and rest and (rest[0] == "ops" or any(map(_is_private, rest))):
        yield "private", name
    yield from _forbidden(name, forbidden)


def _is_private(part: str) -> bool:
    return part.startswith("_") and not part.endswith("__")


def _is_inside(rest: list[str]) -> bool:
    """Return whether it is internal to labkit, rather than part of what exercises use."""
    if not rest:
        return False
    inner = rest[0] in ("checks", "trace", "notebook") or (rest[0] == "clusters" and len(rest) > 2)
    return inner or any(map(_is_private, rest))


def _forbidden(name: str, forbidden: Set[str]) -> Iterator[tuple[str, str]]:
    last = name.rsplit(".", 1)[-1]
    for entry in forbidden:
        package, _, function = entry.rpartition(".")
        if function == last and package != "*" and name.startswith(f"{package}."):
            yield "forbidden", name
            return


def _call(
    function: ast.expr, arguments: list[ast.expr], names: Names, forbidden: Set[str]
) -> Iterator[tuple[str, str]]:
    match function:
        case ast.Name("exec" | "eval" | "compile" as name):
            yield "computed", f"{name}()"
        case ast.Name("getattr" | "setattr" | "delattr" as name) if len(arguments) >= 2:
            text = names.text(arguments[1])
            owners = names.of(arguments[0])
            if text is None and owners:
                yield "computed", f"{name}({min(owners)}, …)"
            if text is not None and text in _INSIDE:
                yield "inspection", f".{text}"
            if text is not None and f"*.{text}" in forbidden:
                yield "forbidden", f".{text}"
            if name != "getattr" and owners:
                yield "patched", f"{min(owners)}.{text or '…'}"
        case ast.Name("globals" | "vars" | "locals" | "dir" as name) if name == "globals" or (
            arguments and names.of(arguments[0])
        ):
            yield "inspection", f"{name}()"
    if names.is_import(function):
        text = names.text(arguments[0]) if arguments else None
        if text is None:
            yield "computed", "__import__(…)"
        else:
            yield "inspection", f"__import__({text!r})"


def _targets(node: ast.AST) -> Iterator[ast.expr]:
    match node:
        case ast.Assign(targets) | ast.Delete(targets):
            for target in targets:
                yield from target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
        case ast.AugAssign(target) | ast.AnnAssign(target) | ast.For(target):
            yield target


def _written(target: ast.expr, names: Names) -> Iterator[tuple[str, str]]:
    """Detect writes to `torch.equal`, `torch.Tensor.__eq__`, `sys.modules[...]`, `torch.__dict__[...]`."""
    if isinstance(target, ast.Attribute):
        written = {f"{base}.{target.attr}" for base in names.of(target.value)}
    elif isinstance(target, ast.Subscript):
        written = names.of(target) | names.of(target.value)
    else:
        return
    for name in written:
        if not name.startswith(_SETTINGS) and (
            isinstance(target, ast.Attribute) or name.startswith(("sys.", "torch."))
        ):
            yield "patched", name
