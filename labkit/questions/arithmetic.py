"""Evaluate a line of arithmetic: a learner's number, as typed, and the numbers in a question's definition.

Only numbers, operators, a few functions and names that the notebook has set to numbers: a typing error calls nothing
and changes nothing.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

_LONGEST = 200
"""Maximum number of characters of a line."""
_LARGEST_EXPONENT = 1000
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs, "ceil": math.ceil, "exp": math.exp, "floor": math.floor, "log": math.log, "log10": math.log10,
    "log2": math.log2, "max": max, "min": min, "round": round, "sqrt": math.sqrt,
}  # fmt: skip
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.USub: operator.neg, ast.UAdd: operator.pos,
}  # fmt: skip
_TYPED_OTHERWISE = str.maketrans({"×": "*", "·": "*", "−": "-", "–": "-", "÷": "/"})  # noqa: RUF001  # typed or pasted

_WITH_A_UNIT = re.compile(r"[\d.,_]+\s*[^\W\d_][\w/]*")
"""A number with a unit, 125 kB, which is no line of arithmetic."""


class NotANumber(ValueError):
    """The line has no value; the message tells the learner who typed it why."""


def number(line: str, names: Mapping[str, Any] | None = None, unit: str = "") -> float:
    """Return the value of `line`: 2.35, 1_000, 1e6, 2 * 16 * 4, math.ceil(9 * talking / computing).

    names: values of names in the line; other than numbers they count as unknown.
    unit: the question's; it may follow the number. Raises `NotANumber`.
    """
    text = line.strip().translate(_TYPED_OTHERWISE)
    if unit and text.endswith(unit):
        text = text.removesuffix(unit).strip()
    if not text or len(text) > _LONGEST:
        raise NotANumber("type a number" if not text else f"that is too long for a number: {len(text)} characters")
    try:
        value = _value(ast.parse(text, mode="eval").body, names or {}, line.strip())
    except (SyntaxError, ValueError, TypeError, ZeroDivisionError, OverflowError, RecursionError) as error:
        if isinstance(error, NotANumber):
            raise
        raise NotANumber(f"that is not a number: {line.strip()}{_advice(text, error, unit)}") from None
    if not math.isfinite(value):
        raise NotANumber(f"that is not a number: {line.strip()}")
    return float(value)


def _advice(text: str, error: Exception, unit: str = "") -> str:
    if isinstance(error, ZeroDivisionError):
        return " divides by zero"
    if unit and _WITH_A_UNIT.fullmatch(text):
        return f". The answer is in {unit}: type the number alone"
    return ". For three and a half write 3.5, for a thousand 1000 or 1_000" if "," in text else ""


def _value(node: ast.expr, names: Mapping[str, Any], line: str) -> Any:
    match node:
        case ast.Constant(value=bool() | complex() | str() | bytes() | None):
            pass
        case ast.Constant(value=int() | float()):
            return node.value
        case ast.BinOp(op=ast.Pow()):
            base, exponent = _value(node.left, names, line), _value(node.right, names, line)
            if abs(exponent) > _LARGEST_EXPONENT or abs(base) > 10**_LARGEST_EXPONENT:
                raise OverflowError
            power = base**exponent
            if isinstance(power, Real):
                return power
        case ast.BinOp() if type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](_value(node.left, names, line), _value(node.right, names, line))
        case ast.BinOp(op=ast.BitXor()):
            raise NotANumber(f"that is not a number: {line}. Write ** for a power")
        case ast.UnaryOp() if type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](_value(node.operand, names, line))
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(value=ast.Name(id="math"), attr=name), keywords=[]):
            if name in _FUNCTIONS:
                return _FUNCTIONS[name](*(_value(argument, names, line) for argument in node.args))
            raise NotANumber(f"that is not a number: {line}. Known functions are {', '.join(sorted(_FUNCTIONS))}")
        case ast.Name(id=name):
            value = names.get(name)
            if isinstance(value, Real) and not isinstance(value, bool):
                return value
            raise NotANumber(f"that is not a number: {line}. No number is called {name}")
    raise NotANumber(f"that is not a number: {line}{_advice(line, ValueError())}")
