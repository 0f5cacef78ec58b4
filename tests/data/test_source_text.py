"""The standard library's text: real modules, each in one split, and windows of it."""

from __future__ import annotations

import inspect
import json
import os
import random
import subprocess
import sys
import textwrap

import pytest
import torch

from labkit.data import VOCAB, Windows, source_text


def text(split: str) -> str:
    return bytes(source_text(split).tolist()).decode()  # type: ignore[arg-type]


def test_a_module_is_in_one_part_and_whole() -> None:
    train, test = text("train").split("\0"), text("test").split("\0")
    assert inspect.getsource(textwrap) in train + test
    assert inspect.getsource(random) in train + test
    assert not set(train) & set(test) - {""}
    assert len(train) > 5 * len(test) > 25


def test_there_is_enough_to_train_with_and_no_path_of_this_machine() -> None:
    tokens = source_text("train")
    assert tokens.dtype == torch.uint8 and len(tokens) > 2_000_000
    assert int(tokens.max()) < VOCAB
    assert sys.prefix not in text("train") or sys.prefix in ("/", "/usr", "/usr/local")


def test_another_process_has_the_same_text() -> None:
    program = "import labkit.data as d; t = d.source_text('test').long(); print([len(t), int(t.sum())])"
    environment = os.environ | {"PYTHONHASHSEED": "7"}
    seen = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
    tokens = source_text("test").long()
    assert json.loads(seen.stdout) == [len(tokens), int(tokens.sum())]


def test_windows_follow_each_other_and_targets_are_one_ahead() -> None:
    windows = Windows(torch.arange(11, dtype=torch.uint8), context=3)
    assert [(i.tolist(), t.tolist()) for i, t in windows] == [
        ([0, 1, 2], [1, 2, 3]),
        ([3, 4, 5], [4, 5, 6]),
        ([6, 7, 8], [7, 8, 9]),
    ]
    assert len(windows) == 3 and windows[0][0].dtype == torch.int64


@pytest.mark.parametrize(("length", "context"), [(4, 4), (0, 1), (9, 0)])
def test_windows_that_cannot_be_had_are_refused(length: int, context: int) -> None:
    with pytest.raises(ValueError, match="context"):
        Windows(torch.zeros(length, dtype=torch.uint8), context)
