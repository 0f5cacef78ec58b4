"""Compressed gradients: predictions beside exercise 13's compressors on virtual ranks, and their operators, counted."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from test_beside_virtual import beside

from labkit import exercises
from labkit.course.phase3_multi_node.gradient_compression import given
from labkit.hardware import topology
from labkit.predict import Plan, Prediction, model, predict
from labkit.predict.costs.compressing import COMPRESSORS
from labkit.predict.describe.traffic import Traffic, Watch
from labkit.predict.plan import Compression

SLOW = beside.NETWORKS["10 Gb/s, 32 ranks"]


@cache
def exchanged(compression: Compression) -> tuple[float, Prediction]:
    """Seconds on virtual ranks, and the prediction."""
    run, made = beside.exchanged(compression, SLOW)
    return run, made


@pytest.mark.parametrize(
    ("compression", "within"), [("none", 0.01), ("1-bit", 0.02), ("8-bit", 0.02), ("top-k", 0.02), ("powersgd", 0.2)]
)
def test_an_exchange_takes_as_long_as_on_virtual_ranks(compression: Compression, within: float) -> None:
    """PowerSGD's two factors are predicted for a layer of four square matrices, of which this is one."""
    run, made = exchanged(compression)
    predicted = made.seconds("gradients") + made.seconds("compression")
    print(f"{compression}: {run * 1e3:.2f} ms on virtual ranks, predicted {predicted * 1e3:.2f}")
    assert predicted == pytest.approx(run, rel=within)


def test_one_bit_loses_to_plain_gradients_among_32_ranks() -> None:
    (slow, whole), (slower, signs) = (exchanged(kind) for kind in ("none", "1-bit"))
    assert slower > 1.4 * slow
    assert signs.seconds("gradients") + signs.seconds("compression") > 1.4 * whole.seconds("gradients")
    # a rank receives 31/32 of 32 bits for each value; of floats 2 x 31/32 x 32 bits, by all cards of a node
    assert signs.seconds("gradients") == pytest.approx(whole.seconds("gradients") / 2, rel=0.25)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("compression", ["1-bit", "8-bit", "top-k", "powersgd"])
def test_passes_are_those_of_the_exercise_operator_by_operator(compression: Compression, dtype: torch.dtype) -> None:
    side, of, made = 1024, COMPRESSORS[compression], {}
    name, *arguments = beside.COMPRESSORS[compression]
    with exercises.installed(beside.MODULES):
        from labkit.exercises import gradient_compression
    for ranks in (1, 3):
        compressor = getattr(gradient_compression, name)(*arguments)
        for _ in range(2):  # from the second step on there is a residual
            traffic, gradient = Traffic(), torch.randn(side, side).to(dtype)
            with Watch(traffic):
                rounds = given.BucketRounds(compressor, [("weight", gradient)])
                sent = 0
                while not rounds.done:
                    sent += rounds.message.nbytes
                    rounds.advance([rounds.message] * (1 if compressor.summable else ranks))
        factors = sum(one.m * one.k + one.k * one.n + one.m * one.n for one in traffic.products) * dtype.itemsize
        made[ranks] = (traffic.moved + factors) / side**2, traffic.kernels
    decode = (made[3][0] - made[1][0]) / 2
    assert of.decode.of(dtype.itemsize) == pytest.approx(decode, rel=0.03)
    assert of.encode.of(dtype.itemsize) == pytest.approx(made[1][0] - decode, rel=0.03)
    kernels = (made[3][1] - made[1][1]) / 2
    assert of.decode_kernels == kernels and of.encode_kernels == pytest.approx(made[1][1] - kernels, abs=2)
    if compression != "powersgd":
        assert of.message.of(dtype.itemsize) == pytest.approx(sent / side**2, rel=0.01)


def test_gathered_messages_grow_with_the_ranks_and_summed_ones_do_not() -> None:
    def seconds(ranks: int, compression: Compression) -> float:
        plan = Plan(batch=ranks, data=ranks, compression=compression, overlap=False)
        made = predict(model("gpt-1.3b"), plan, topology("dgx-a100", nnodes=ranks // 8))
        assert made.seconds("compression") > 0
        return made.seconds("gradients")

    assert seconds(256, "1-bit") == pytest.approx(8 * seconds(32, "1-bit"), rel=0.1)
    assert seconds(256, "powersgd") < 2 * seconds(32, "powersgd")


def test_the_residual_is_memory() -> None:
    cluster = topology("dgx-a100")
    plain, signs = (predict(model("gpt-1.3b"), Plan(8, 1, 8, compression=kind), cluster) for kind in ("none", "1-bit"))
    assert signs.memory.total - plain.memory.total == pytest.approx(2 * signs.memory.parameter_count)
    assert "residual" in signs.explain()
