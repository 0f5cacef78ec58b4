"""Name resolution: finds `dist.all_reduce` under any alias that can be followed without running the module."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Sequence

_ROUNDS = 4
"""Maximum length of alias chains: `a = dist.send; b = a; c = b; d = c`."""
_MAX_TEXT = 500
_MAX_MEANINGS = 16
"""Maximum meanings of a name; one with more is ignored."""


def nodes(tree: ast.AST) -> list[ast.AST]:
    """Return all nodes of a tree except operators and contexts, unordered; faster than `ast.walk`."""
    result, waiting = [], [tree]
    while waiting:
        node = waiting.pop()
        result.append(node)
        for name in node._fields:
            if name not in ("ctx", "op", "ops"):
                value = getattr(node, name, None)
                if isinstance(value, list):
                    waiting += [item for item in value if isinstance(item, ast.AST)]
                elif isinstance(value, ast.AST):
                    waiting.append(value)
    return result


class Names:
    """The names of one module, regardless of scope: a name with two meanings may mean either.

    inside: all nodes of the module. defaults: parameters may also mean their default values.
    """

    def __init__(self, inside: Sequence[ast.AST], *, defaults: bool) -> None:
        self._meanings: dict[str, set[str]] = defaultdict(set)
        self._texts: dict[str, str] = {}
        self.starred: list[str] = []
        """Modules imported with `*`."""
        assigned: list[tuple[str, ast.expr]] = []
        for node in inside:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    whole = alias.name if alias.asname else alias.name.split(".")[0]
                    self._meanings[alias.asname or whole].add(whole)
            elif isinstance(node, ast.ImportFrom):
                module = "." * node.level + (node.module or "")
                for alias in node.names:
                    if alias.name == "*":
                        self.starred.append(module)
                    else:
                        self._meanings[alias.asname or alias.name].add(f"{module}.{alias.name}")
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    assigned += _pairs(target, node.value)
            elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
                assigned += _pairs(node.target, node.value)
            elif isinstance(node, ast.arguments) and defaults:
                positional = [*node.posonlyargs, *node.args]
                last = positional[len(positional) - len(node.defaults) :]
                given = [*zip(last, node.defaults, strict=True), *zip(node.kwonlyargs, node.kw_defaults, strict=True)]
                assigned += [(parameter.arg, value) for parameter, value in given if value is not None]
        for _ in range(_ROUNDS):
            before = sum(map(len, self._meanings.values())) + len(self._texts)
            for name, value in assigned:
                if len(self._meanings[name]) < _MAX_MEANINGS:
                    self._meanings[name] |= self.of(value) - {name}
                text = self.text(value)
                if text is not None:
                    self._texts[name] = text
            if before == sum(map(len, self._meanings.values())) + len(self._texts):
                break

    def of(self, node: ast.expr) -> set[str]:
        """Return full names that `node` may refer to: `{"torch.distributed.all_reduce"}`; empty when it is a value."""
        match node:
            case ast.Name(name):
                return set(self._meanings.get(name, ()))
            case ast.Attribute(value, attribute):
                return {f"{base}.{attribute}" for base in self.of(value)}
            case ast.Call(ast.Name("getattr"), [value, name, *_]):
                return self._member(value, name)
            case ast.Subscript(ast.Attribute(value, "__dict__") | ast.Call(ast.Name("vars"), [value]), name):
                return self._member(value, name)
            case ast.Subscript(ast.Attribute(ast.Name(), "modules") as table, name) if "sys.modules" in self.of(table):
                return {text} if (text := self.text(name)) else set()
            case ast.Subscript(ast.Call(ast.Name("globals" | "locals")), name):
                return set(self._meanings.get(self.text(name) or "", ()))
            case ast.Call(function, [name, *_]) if self.is_import(function):
                return {text} if (text := self.text(name)) else set()
        return set()

    def is_import(self, function: ast.expr) -> bool:
        """Return whether it is `__import__` or `importlib.import_module`."""
        named = isinstance(function, ast.Name) and function.id == "__import__"
        return named or bool(self.of(function) & {"importlib.import_module", "importlib.__import__"})

    def text(self, node: ast.expr) -> str | None:
        """Return the string value of `node` if the module spells it out: constants, joined or reversed."""
        result: str | None = None
        match node:
            case ast.Constant(str() as value):
                result = value
            case ast.Name(name):
                result = self._texts.get(name)
            case ast.BinOp(left, ast.Add(), right):
                result = _joined("", [self.text(left), self.text(right)])
            case ast.JoinedStr(values):
                result = _joined("", [self.text(v.value if isinstance(v, ast.FormattedValue) else v) for v in values])
            case ast.Subscript(value, ast.Slice(None, None, ast.UnaryOp(ast.USub(), ast.Constant(1)))):
                text = self.text(value)
                result = None if text is None else text[::-1]
            case ast.Call(ast.Attribute(separator, "join"), [ast.List(parts) | ast.Tuple(parts)]):
                between = self.text(separator)
                result = None if between is None else _joined(between, [self.text(part) for part in parts])
        return result if result is not None and len(result) <= _MAX_TEXT else None

    def _member(self, value: ast.expr, name: ast.expr) -> set[str]:
        text = self.text(name)
        return {f"{base}.{text}" for base in self.of(value)} if text else set()


def _joined(between: str, parts: list[str | None]) -> str | None:
    known = [part for part in parts if part is not None]
    return between.join(known) if len(known) == len(parts) else None


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[str, ast.expr]]:
    """Split `a, b = x, y` into `a = x` and `b = y`."""
    if isinstance(target, ast.Name):
        return [(target.id, value)]
    if (
        isinstance(target, ast.Tuple | ast.List)
        and isinstance(value, ast.Tuple | ast.List)
        and len(target.elts) == len(value.elts)
    ):
        return [pair for t, v in zip(target.elts, value.elts, strict=True) for pair in _pairs(t, v)]
    return []
