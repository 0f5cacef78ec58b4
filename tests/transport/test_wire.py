"""What travels between processes, and what must not: the bytes here are untrusted."""

import collections
import contextlib
import dataclasses
import enum
import json
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labkit.transport import wire


@dataclasses.dataclass
class Metrics:
    loss: float
    grad: torch.Tensor


Point = collections.namedtuple("Point", "x y")


class Colour(enum.Enum):
    RED = 1


def travelled(value, **options):
    return wire.loads(wire.dumps(value, **options))


numbers = st.integers() | st.floats(allow_nan=False) | st.complex_numbers(allow_nan=False)
plain = st.recursive(
    st.none() | st.booleans() | numbers | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner, inner),
    max_leaves=20,
)


@given(plain)
def test_plain_data_arrives_as_it_was(value):
    found = travelled(value)
    assert found == value and repr(found) == repr(value)
    assert wire.what_stays(value) is None


@pytest.mark.parametrize("dtype", list(wire._DTYPES.values()), ids=str)
def test_tensors_of_every_type_arrive_bit_by_bit(dtype):
    raw = torch.randint(0, 2, (3, 5, 16), dtype=torch.uint8)
    tensor = raw.view(dtype) if dtype != torch.bool else raw.bool()
    found = travelled({"weights": tensor.transpose(0, 1), "none": torch.empty(0, 3, dtype=dtype)})
    assert torch.equal(
        found["weights"].contiguous().view(torch.uint8), tensor.transpose(0, 1).contiguous().view(torch.uint8)
    )
    assert (found["none"].dtype, found["none"].shape) == (dtype, (0, 3))


def test_what_learners_return_arrives():
    state = torch.nn.Linear(3, 2).state_dict()
    found = travelled(state)
    assert list(found) == ["weight", "bias"] and torch.equal(found["weight"], state["weight"])
    for value in (
        torch.Size([2, 3]),
        torch.float32,
        torch.device("cpu"),
        range(3, 9, 2),
        frozenset({1}),
        np.float32(0.5),
    ):
        assert travelled(value) == value and type(travelled(value)) is type(value)
    array = np.arange(12, dtype=np.uint16).reshape(3, 4).T
    found = travelled([array, np.array(7.0), float("nan"), np.array([np.nan])])
    assert np.array_equal(found[0], array) and found[0].dtype == array.dtype and found[0].flags.writeable
    assert found[1].shape == () and found[2] != found[2] and np.isnan(found[3]).all()
    assert travelled(collections.Counter("aab")) == {"a": 2, "b": 1}


def test_data_classes_arrive_as_their_fields():
    found = travelled(Metrics(0.25, torch.ones(2)))
    assert found.loss == 0.25 and torch.equal(found.grad, torch.ones(2))
    assert repr(travelled(Point(1, [2]))) == "Point(x=1, y=[2])"
    with pytest.raises(AttributeError):
        _ = found.nothing
    # pushing one to ranks gives a warning, because its type is lost
    stays = wire.what_stays([Point(1, 2)])
    assert stays is not None and stays.type == "Point"


@pytest.mark.parametrize(
    "value",
    [Colour.RED, print, torch.nn.Linear(1, 1), torch.eye(2).to_sparse(), torch.empty(2, device="meta"), np.str_("a")],
    ids=["enum", "function", "module", "sparse", "meta", "other"],
)
def test_what_cannot_travel_shows_its_repr_and_says_so(value):
    found = travelled([value])[0]
    assert isinstance(found, wire.Opaque) and repr(value)[:100] in repr(found) and "stayed on its rank" in repr(found)
    assert wire.what_stays([value]) == found


def test_what_is_too_large_stays_and_the_rest_comes():
    large, small = torch.zeros(1000, 1000), torch.ones(2)
    found = travelled([small, large, "text", small], max_bytes=1 << 20)
    assert torch.equal(found[0], small) and found[2] == "text" and torch.equal(found[3], small)
    assert (
        repr(found[1])
        == "<float32 stayed on its rank: float32[1000, 1000], 3.815 MiB; no more than 1 MiB come back from a rank>"
    )
    many = travelled({"few": [1], "many": [0] * (wire.MAX_ITEMS + 1)})
    assert many["few"] == [1] and "list of 1,000,001 items" in repr(many["many"])
    # a list that holds itself twice on each level would be endless otherwise
    value: list[object] = []
    for _ in range(60):
        value = [value, value]
    assert isinstance(travelled(value), list)


def encoded(tree: object, data: bytes = b"") -> bytes:
    text = json.dumps(tree).encode()
    return struct.pack("<I", len(text)) + text + data


@pytest.mark.parametrize(
    "tree",
    [
        {"tensor": ["torch.float32", [2], 0, 4]},
        {"tensor": ["torch.float32", [-1, -1], 0, 4]},
        {"array": ["object", [1], 0, 8]},
        {"array": ["float64", [2**40, 2**40], 0, 8]},
        {"array": ["float64", [1.0], 0, 8]},
        {"scalar": ["float64", [1], -8, 8]},
        {"array": [["float64"], [1], 0, 8]},
        {"dtype": "torch.nn"},
        {"device": "no such"},
        {"range": [0, 1, 0]},
        {"complex": ["a", 1]},
        {"Size": ["a"]},
        {"set": [{"list": []}]},
        {"fields": ["a", {"list": []}]},
        {"fields": ["a", {"dict": [[1, 2]]}]},
        {"fields": "a"},
        {"module": "os"},
        {"list": 7},
        [1],
    ],
    ids=str,
)
def test_what_nobody_sends_is_refused(tree):
    with pytest.raises(wire.WireError):
        wire.loads(encoded(tree, b"\0" * 8))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_refused(data):
    for sent in (data, struct.pack("<I", len(data)) + data):
        with contextlib.suppress(wire.WireError):
            wire.loads(sent)


def test_fields_answer_to_their_own_names_only():
    found = wire.loads(encoded({"fields": ["a", {"dict": [["__class__", 1], ["fields", 2], ["__len__", 3]]}]}))
    assert type(found) is wire.Fields and dict(found.fields)["__class__"] == 1
    with pytest.raises(TypeError):
        len(found)


def framed(tree: str, buffers: bytes = b"") -> bytes:
    return struct.pack("<I", len(tree)) + tree.encode() + buffers


COLLIDING = [[k * (2**61 - 1), None] for k in range(30_000)]


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        framed('{"list": [' * 5000 + "]}" * 5000),
        framed("[" * 100_000 + "]" * 100_000),
        framed('{"list": [' + "[]," * 4_000_000 + "[]]}"),
        framed('{"list": [' + "0," * 2_000_000 + "0]}"),
        framed(json.dumps({"dict": COLLIDING})),
        framed(json.dumps({"set": [k for k, _ in COLLIDING]})),
        framed('{"complex": [' + "9" * 100_000 + ", 0]}"),
        framed('{"tensor": ["torch.float32", [1' + "0" * 30 + "], 0, 4]}", bytes(4)),
        framed('{"tensor": ["torch.float32", [-1, -1], 0, 4]}', bytes(4)),
        framed('{"str": [0, 4]}', b"\xff\xfe\xff\xff"),
        framed('{"str": [0, 1' + "0" * 12 + "]}", b"abc"),
        framed('{"bytes": [-4, 4]}', bytes(8)),
        framed('{"range": [0, 1]}') + b"x",
    ],
    ids=range(14),
)
def test_what_is_made_to_take_time_or_memory_is_refused_at_once(data):
    with contextlib.suppress(wire.WireError):
        found = wire.loads(data)
        assert isinstance(found, range)


def test_long_texts_travel_and_do_not_count_as_items():
    text = "a, [b], {c}\ud800" * 1_000_000
    assert travelled([text, {"x" * 2000: 1}]) == [text, {"x" * 2000: 1}]
