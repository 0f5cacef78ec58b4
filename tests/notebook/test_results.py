"""Compact display of the ranks' values."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from labkit.notebook.results import RankValues, summary
from labkit.transport import wire


def test_equal_values_fold_by_content_not_by_looks():
    ends_alike = torch.arange(100.0)
    other = ends_alike.clone()
    other[50:52] = ends_alike[50:52].flip(0)
    values = RankValues([ends_alike, ends_alike.clone(), other, float("nan"), float("nan"), None])
    assert repr(values) == (
        "[0-1] float32[100] from 0 to 99, mean 49.5\n[2] float32[100] from 0 to 99, mean 49.5\n[3-4] nan\n[5] None"
    )
    assert values[2] is other, "it is still the list of values"


def test_tensors_show_what_one_looks_for():
    assert summary(torch.tensor(2.5)) == "float32[] 2.5"
    assert summary(torch.full((2, 2), 1 / 3)) == "float32[2, 2] [[0.333333, 0.333333], [0.333333, 0.333333]]"
    assert summary(torch.zeros(0, 3)) == "float32[0, 3]"
    assert summary(torch.ones(9, dtype=torch.int64)) == "int64[9], all 1"
    assert summary(torch.arange(10).bfloat16()) == "bfloat16[10] from 0 to 9, mean 4.5"
    assert summary(torch.eye(3, dtype=torch.bool)).startswith("bool[3, 3] [True, False, False, False, …]")
    assert summary({"loss": torch.ones(20), "step": (1,)}) == "{'loss': float32[20], all 1, 'step': (1,)}"


def test_large_values_are_cut():
    assert len(summary(list(range(10**6)))) < 500
    assert summary("x" * 1000).endswith("… (1,002 characters)")


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_small_plain_values_look_as_python_writes_them(value):
    if len(repr(value)) < 300:
        assert summary(value) == repr(value)


def test_arrays_fields_and_numbers_that_are_none():
    odd = torch.arange(12.0)
    odd[3], odd[4] = float("nan"), float("inf")
    assert summary(odd) == "float32[12] from 0 to 11, mean 5.9, 1 nan, 1 inf"
    assert summary(torch.full((9,), float("nan"))) == "float32[9], 9 nan"
    assert summary(np.arange(10)) == "array int64[10] from 0 to 9, mean 4.5"
    assert summary(np.float32(0.5)) == "0.5"
    assert summary(wire.Fields("Metrics", {"loss": 0.25, "grad": torch.ones(20)})) == (
        "Metrics(loss=0.25, grad=float32[20], all 1)"
    )
    assert summary(torch.ones(9, dtype=torch.uint16)) == "uint16[9], all 1"
    assert summary(torch.linspace(0, 1, 9).to(torch.float8_e4m3fn)).startswith("float8_e4m3fn[9] from 0 to 1")
