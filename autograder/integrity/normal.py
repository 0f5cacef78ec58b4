"""A normal form of a module's text, independent of names, order, layout and padding.

The form is one list of tokens for each function. Library names stay (`torch.distributed.isend`, `.numel`); the module's
own names do not. Variables that only carry a value are replaced by it; unused and unreachable code is dropped;
comparisons get one direction; commutative operands are sorted. The result need not be the same program: equal texts
stay equal, and so do most that were edited to look different.
"""

from __future__ import annotations

import ast
import builtins
import copy
from collections import Counter
from collections.abc import Sequence, Set

from autograder.integrity.names import Names, nodes

Token = tuple[str, int]
"""A token's text and its line in the module."""

_BUILTINS = frozenset(dir(builtins))
_MAX_DEPTH = 30
"""Maximum nesting depth of values that replace their variable."""
_ROUNDS = 3
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES = (*_FUNCTIONS, ast.ClassDef)
_JUMPS = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_PURE = {
    *("abs", "bool", "dict", "enumerate", "float", "id", "int", "isinstance", "len", "list", "max", "min", "range"),
    *("repr", "set", "sorted", "str", "sum", "tuple", "type", "zip"),
}
_COMMUTING = (ast.Add, ast.Mult, ast.BitAnd, ast.BitOr, ast.BitXor)
_TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Gt: ast.Lt, ast.GtE: ast.LtE}
_OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


def normalised(tree: ast.Module) -> list[list[Token]]:
    """Return the tokens of each used function of a module, and of its top level. `tree` is changed.

    Raises RecursionError where the text is nested more deeply than any that a person writes.
    """
    inside = nodes(tree)
    own = {node.name for node in inside if isinstance(node, _SCOPES)}
    made = {node.id for node in inside if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    made |= {node.arg for node in inside if isinstance(node, ast.arg)}
    emit = _Emitter(Names(inside, defaults=False), own, _own_fields(inside), _BUILTINS - made)
    _tidy_blocks(inside)
    _drop_unused_definitions(tree)
    units = []
    for function in [node for node in nodes(tree) if isinstance(node, _FUNCTIONS)]:
        _follow_values(function)
        units.append(emit.body(function))
    units.append(emit.body(tree))
    return [unit for unit in units if unit]


# Blocks ---------------------------------------------------------------------------------------------------------------


def _tidy_blocks(inside: Sequence[ast.AST]) -> None:
    for node in inside:
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list):
                setattr(node, field, _tidied(block))


def _tidied(block: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Return a block as plain statements: no docstrings, padding or unreachable code, equivalent forms unified."""
    out: list[ast.stmt] = []
    waiting = list(reversed(block))
    while waiting:
        statement = waiting.pop()
        match statement:
            case ast.Pass() | ast.Import() | ast.ImportFrom() | ast.Global() | ast.Nonlocal():
                continue
            case ast.Expr(ast.Constant()) | ast.Expr(ast.Call(ast.Name("print" | "breakpoint"))):
                continue
            case ast.Assert(ast.Constant(value)) if value:
                continue
            case ast.If(test, body, orelse) if isinstance(test, ast.Constant):
                waiting.extend(reversed(body if test.value else orelse))
                continue
            case ast.While(ast.Constant(value)) if not value:
                continue
            case ast.AnnAssign(target, _, value):
                if value is not None:
                    out.append(ast.copy_location(ast.Assign([target], value), statement))
                continue
            case ast.AugAssign(target, op, value):
                left = copy.deepcopy(target)
                left.ctx = ast.Load()
                summed = ast.copy_location(ast.BinOp(left, op, value), statement)
                out.append(ast.copy_location(ast.Assign([target], summed), statement))
                continue
            case ast.Assign([ast.Tuple(targets)], ast.Tuple(values)) if len(targets) == len(values):
                pairs = zip(targets, values, strict=True)
                waiting.extend(reversed([ast.copy_location(ast.Assign([t], v), statement) for t, v in pairs]))
                continue
            case ast.Assign([ast.Name(name)], ast.Name(other)) if name == other:
                continue
            case ast.If(test, body, orelse):
                while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) and orelse:
                    test, body, orelse = test.operand, orelse, body
                if body and orelse and isinstance(_last(body), _JUMPS):
                    waiting.extend(reversed(orelse))
                    orelse = []
                statement.test, statement.body, statement.orelse = test, body, orelse
        out.append(statement)
        if isinstance(statement, _JUMPS):
            break
    return out


def _last(body: Sequence[ast.stmt]) -> ast.stmt:
    return next((s for s in reversed(body) if not isinstance(s, ast.Pass)), body[-1])


def _drop_unused_definitions(tree: ast.Module) -> None:
    """Drop functions, classes and constants that the module never uses, unless they are in `__all__`."""
    reads = [(statement, _reads(statement)) for statement in tree.body]
    offered = any(_stores(statement) == "__all__" for statement in tree.body)
    for _ in range(_ROUNDS):
        used = Counter[str]()
        for _, names in reads:
            used.update(names)
        kept = [(s, names) for s, names in reads if _is_used(s, used, names, offered)]
        if len(kept) == len(reads):
            break
        reads = kept
    tree.body = [statement for statement, _ in reads if _stores(statement) != "__all__"]


def _reads(statement: ast.stmt) -> Counter[str]:
    """Return the names that a statement reads, and its strings, which may be names."""
    counts: Counter[str] = Counter()
    for node in nodes(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            counts[node.id] += 1
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            counts[node.value] += 1
    return counts


def _is_used(statement: ast.stmt, used: Counter[str], inside: Counter[str], offered: bool) -> bool:
    match statement:
        case ast.Assign([ast.Name(name)], value):
            return name == "__all__" or used[name] > inside[name] or not _is_pure(value)
        case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name) if offered:
            return used[name] > inside[name]
    return True


def _own_fields(inside: Sequence[ast.AST]) -> set[str]:
    """Return names of attributes that the module's own classes define."""
    fields = set()
    for node in inside:
        if isinstance(node, ast.ClassDef):
            fields |= {s.name for s in node.body if isinstance(s, _FUNCTIONS)}
            fields |= {name for s in node.body if isinstance(s, ast.Assign) and (name := _stores(s))}
            fields |= {
                s.target.id for s in node.body if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)
            }
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name):
            fields.add(node.attr)
    return fields


# Values ---------------------------------------------------------------------------------------------------------------


def _stores(statement: ast.stmt) -> str:
    """Return the target name of a plain assignment; empty for any other statement."""
    match statement:
        case ast.Assign([ast.Name(name)]):
            return name
    return ""


def _is_pure(value: ast.expr) -> bool:
    """Return whether `value` has no side effects."""
    for node in nodes(value):
        if isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id in _PURE):
            return False
        if isinstance(node, ast.Await | ast.Yield | ast.YieldFrom | ast.NamedExpr):
            return False
    return True


def _depth(node: ast.AST) -> int:
    return 1 + max((_depth(child) for child in ast.iter_child_nodes(node)), default=0)


def _is_plain(value: ast.expr) -> bool:
    """Return whether it is a name, a constant or an attribute chain: short enough to replace its variable anywhere."""
    steps = 0
    while isinstance(value, ast.Attribute) and steps < 3:
        value, steps = value.value, steps + 1
    return isinstance(value, ast.Name | ast.Constant)


def _follow_values(function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    """Drop values that are never read; inline variables that only carry a value."""
    for _ in range(_ROUNDS):
        loads: Counter[str] = Counter()
        own_loads: Counter[str] = Counter()
        stores: Counter[str] = Counter(a.arg for a in nodes(function.args) if isinstance(a, ast.arg))
        for node in nodes(function):
            if isinstance(node, ast.Name):
                (loads if isinstance(node.ctx, ast.Load) else stores)[node.id] += 1
            elif isinstance(node, ast.Assign) and (name := _stores(node)) and _is_pure(node.value):
                # n = n + 1 reads n only for itself
                own_loads[name] += sum(isinstance(n, ast.Name) and n.id == name for n in nodes(node.value))
        unread = {name for name in stores if loads[name] <= own_loads[name]}
        carrying = {name for name in stores if stores[name] == 1 and loads[name] > 0}
        follower = _Follower(unread, carrying, loads)
        function.body = follower.block(function.body)
        if not follower.changed:
            break


class _Follower(ast.NodeTransformer):
    def __init__(self, unread: set[str], carrying: set[str], loads: Counter[str]) -> None:
        self._unread, self._carrying, self._loads = unread, carrying, loads
        self._values: dict[str, ast.expr] = {}
        self.changed = False

    def block(self, block: Sequence[ast.stmt]) -> list[ast.stmt]:
        out = []
        for statement in block:
            kept = self._statement(statement)
            self.changed |= kept is None
            if kept is not None:
                out.append(kept)
        return out

    def _statement(self, statement: ast.stmt) -> ast.stmt | None:
        if isinstance(statement, ast.Assign) and (name := _stores(statement)):
            if name in self._unread:
                if _is_pure(statement.value):
                    return None
                value: ast.expr = self.visit(statement.value)
                return ast.copy_location(ast.Expr(value), statement)
            value = self.visit(statement.value)
            if name in self._carrying and (self._loads[name] == 1 or _is_plain(value)) and _depth(value) <= _MAX_DEPTH:
                self._values[name] = value
                return None
            statement.value = value
            return statement
        if isinstance(statement, ast.Expr) and _is_pure(statement.value):
            return None
        for field, value in ast.iter_fields(statement):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                setattr(statement, field, self.block(value))
            elif isinstance(value, list):
                setattr(statement, field, [self.visit(v) if isinstance(v, ast.AST) else v for v in value])
            elif isinstance(value, ast.AST):
                setattr(statement, field, self.visit(value))
        match statement:
            case ast.If(test, [], []) | ast.While(test, [], []) | ast.For(_, test, [], []) if _is_pure(test):
                return None
        return statement

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.ExceptHandler:
        node.body = self.block(node.body)
        return node

    def visit_match_case(self, node: ast.match_case) -> ast.match_case:
        node.body = self.block(node.body)
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._values.get(node.id, node) if isinstance(node.ctx, ast.Load) else node


# Tokens ---------------------------------------------------------------------------------------------------------------


class _Emitter:
    """Converts a tree to tokens."""

    def __init__(self, names: Names, own: set[str], fields: set[str], known: Set[str]) -> None:
        self._names, self._own, self._fields, self._known = names, own, fields, known

    def body(self, node: ast.AST) -> list[Token]:
        """Return all statements of a function or module; nested functions are separate."""
        out: list[Token] = []
        for statement in getattr(node, "body", ()):
            out += self._of(statement)
        return out

    def _of(self, node: ast.AST) -> list[Token]:
        line = getattr(node, "lineno", 0)
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                return []
            case ast.ClassDef(_, bases, _, body):
                return [("class", line), *self._all(bases), *self._all(body)]
            case ast.Name() | ast.Attribute():
                return self._named(node, line)
            case ast.Constant(value):
                return [(_constant(value), line)]
            case ast.JoinedStr():
                return [("text", line)]
            case ast.BinOp(left, op, right):
                sides = [self._of(left), self._of(right)]
                if isinstance(op, _COMMUTING):
                    sides.sort(key=_words)
                return [(type(op).__name__, line), *sides[0], *sides[1]]
            case ast.BoolOp(op, values):
                parts = sorted((self._of(value) for value in values), key=_words)
                return [(type(op).__name__, line), *(token for part in parts for token in part)]
            case ast.UnaryOp(ast.Not(), ast.Compare(left, [op], [right])) if type(op) in _OPPOSITE:
                return self._compare(left, _OPPOSITE[type(op)], right, line)
            case ast.Compare(left, [op], [right]):
                return self._compare(left, type(op), right, line)
            case ast.Call(function, arguments, keywords):
                named = sorted(keywords, key=lambda k: k.arg or "")
                keyword_tokens = [t for k in named for t in [(f"{k.arg}=", line), *self._of(k.value)]]
                return [("call", line), *self._of(function), *self._all(arguments), *keyword_tokens, ("end", line)]
            case ast.arg() | ast.arguments() | ast.expr_context():
                return []
            case ast.Assign(targets, value):
                return [("=", line), *self._all(targets), *self._of(value)]
            case ast.For(target, over, body, orelse) | ast.AsyncFor(target, over, body, orelse):
                return [("for", line), *self._of(target), *self._of(over), *self._all([*body, *orelse]), ("end", line)]
            case ast.Raise(error):
                # the message is ignored
                return [
                    ("raise", line),
                    *(self._of(error.func if isinstance(error, ast.Call) else error) if error else []),
                ]
        children = [token for child in ast.iter_child_nodes(node) for token in self._of(child)]
        closing = [("end", line)] if isinstance(node, ast.If | ast.While | ast.With | ast.Try) else []
        return [(type(node).__name__, line), *children, *closing]

    def _all(self, nodes: Sequence[ast.AST]) -> list[Token]:
        return [token for node in nodes for token in self._of(node)]

    def _named(self, node: ast.Name | ast.Attribute, line: int) -> list[Token]:
        meanings = self._names.of(node)
        if len(meanings) == 1:
            return [(next(iter(meanings)), line)]
        if isinstance(node, ast.Attribute):
            return [("." if node.attr in self._fields else f".{node.attr}", line), *self._of(node.value)]
        if node.id in self._own:
            return [("own", line)]
        return [(node.id if node.id in self._known else "name", line)]

    def _compare(self, left: ast.expr, op: type[ast.cmpop], right: ast.expr, line: int) -> list[Token]:
        sides = [self._of(left), self._of(right)]
        if op in _TURNED:
            op, sides = _TURNED[op], sides[::-1]
        elif op in (ast.Eq, ast.NotEq):
            sides.sort(key=_words)
        return [(op.__name__, line), *sides[0], *sides[1]]


def _words(tokens: list[Token]) -> list[str]:
    return [word for word, _ in tokens]


def _constant(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return repr(value)
    if isinstance(value, int):
        return str(value) if abs(value) <= 2 else "number"
    return "number" if isinstance(value, float | complex) else "text"
