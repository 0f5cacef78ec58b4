"""Rules of arguments: which values follow them, and the words of the error for the others."""

from __future__ import annotations

import re
import traceback
from math import inf, nan
from typing import Any

import pytest
import torch
from torch import nn

from labkit.course.arguments import (
    Rule,
    function,
    instance_of,
    integer,
    list_of,
    multiple_of,
    number,
    one_of,
    optional,
    positive,
    require,
    shown,
    tensor,
    torch_module,
    torch_optimizer,
    trained_module,
)

LINEAR = nn.Linear(1, 1)
FROZEN = nn.Linear(1, 1).requires_grad_(False)
MATRIX = torch.ones(2, 3)

RULES: list[tuple[Rule, str, list[Any], list[Any]]] = [
    (integer(), "be an integer", [-3, 0], [True, 1.0, "1", None, torch.tensor(1)]),
    (integer(at_least=1), "be an integer from 1", [1, 1 << 70], [0, nan, inf]),
    (integer(at_least=0, below=4), "be an integer from 0 to 3", [0, 3], [-1, 4]),
    (number(), "be a number", [-1, 0.5], [True, "1", None, nan, inf, -inf, 1j, torch.tensor(1.0)]),
    (positive, "be a number above 0", [1, 1e-300], [0, 0.0, -1, inf, nan, False]),
    (number(above=0, infinite=True), "be a number above 0", [inf, 1], [0, -inf, nan]),
    (number(at_least=0, below=2), "be a number from 0 and below 2", [0, 1.9], [-0.1, 2]),
    (number(above=0, at_most=1), "be a number above 0 and at most 1", [0.1, 1], [0, 1.1]),
    (multiple_of(3), "be a multiple of 3", [0, 6], [4]),
    (multiple_of(3, "the ranks"), "be a multiple of 3, the ranks", [3], [2]),
    (optional(positive), "be a number above 0, or None", [None, 1], [0, "None"]),
    (one_of("gpipe", 4), "be one of gpipe, 4", ["gpipe", 4], ["4", None, [4]]),
    (one_of(torch.float16), "be one of torch.float16", [torch.float16], [torch.float32, "float16"]),
    (instance_of((str, bytes), "a text"), "be a text", ["", b""], [1, None]),
    (function(), "be a function", [len, nn.Linear], [1, "len"]),
    (function("x and y"), "be a function of x and y", [max], [None]),
    (list_of("sizes"), "be a list of sizes", [[1], (1, 2), range(3)], [[], (), "12", 3, {1}, None]),
    (list_of("three numbers", length=3), "be a list of three numbers", [(1, 2, 3)], [[1, 2], "abc"]),
    (torch_module, "be a torch.nn.Module", [LINEAR, FROZEN], [nn.Linear, None]),
    (trained_module, "be a torch.nn.Module with a parameter that is trained", [LINEAR], [FROZEN, nn.ReLU(), MATRIX]),
    (torch_optimizer, "be a torch.optim.Optimizer", [torch.optim.SGD([MATRIX])], [torch.optim.SGD, [MATRIX]]),
    (tensor(), "be a tensor", [MATRIX, torch.tensor(1)], [[1.0], MATRIX.to_sparse()]),
    (tensor(floating_point=True), "be a floating-point tensor", [MATRIX], [MATRIX.int(), MATRIX.to(torch.complex64)]),
    (tensor((2, "width")), "be a tensor of shape (2, width)", [MATRIX], [MATRIX.t(), MATRIX[0], MATRIX[None]]),
    (tensor((..., 3)), "be a tensor of shape (..., 3)", [MATRIX, MATRIX[0], MATRIX[None]], [MATRIX.t(), MATRIX[0, 0]]),
    (tensor((3,)), "be a tensor of shape (3,)", [MATRIX[0]], [MATRIX]),
    (tensor(()), "be a tensor of shape ()", [MATRIX[0, 0]], [MATRIX[0]]),
]


@pytest.mark.parametrize(("rule", "text", "good", "bad"), RULES, ids=[text for _, text, _, _ in RULES])
def test_a_rule_admits_the_values_that_its_text_says(rule: Rule, text: str, good: list[Any], bad: list[Any]) -> None:
    assert rule.text == text
    for value in good:
        require("x", value, rule)
    for value in bad:
        with pytest.raises(ValueError, match=f"^{re.escape(f'x must {text}, got {shown(value)}')}$"):
            require("x", value, rule)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a", "'a'"),
        (nn.Linear(1, 1), "a module of class Linear"),
        (MATRIX.half(), "a torch.float16 tensor of shape (2, 3)"),
        (MATRIX.to_sparse(), "a torch.float32 tensor of shape (2, 3) in layout torch.sparse_coo"),
        ((MATRIX, 1), "a tuple of a torch.float32 tensor of shape (2, 3), 1"),
        (list(range(1000)), str(list(range(1000)))[:117] + "..."),
    ],
)
def test_a_value_is_shown_by_what_tells_it_apart(value: Any, text: str) -> None:
    assert shown(value) == text


def test_the_learners_line_is_one_call_above_the_error() -> None:
    with pytest.raises(ValueError) as error:
        require("rank", 4, integer(at_least=0, below=4))
    lines = [(frame.name, frame.line) for frame in traceback.extract_tb(error.value.__traceback__)]
    assert lines[0][1] == 'require("rank", 4, integer(at_least=0, below=4))'
    assert [name for name, _ in lines[1:]] == ["require"]
