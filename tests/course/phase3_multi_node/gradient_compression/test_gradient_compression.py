"""The solution of gradient_compression: nothing is lost over several steps, and models train through torch's DDP."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from real_training import ACCURACY, DIGITS, MORE_RANKS, TEXT, alone, bigrams
from waiting import BROKEN_SECONDS

from labkit import Job, catalogue, local, virtual
from labkit.course.phase3_multi_node.gradient_compression.given import BucketRounds, Compressor, buckets, pack, unpack

EXERCISE = catalogue.find("gradient_compression")
DDP = catalogue.find("ddp")
MODULES = {EXERCISE.name: EXERCISE.source("solution")[0]}

CONSERVED = """
import torch, torch.distributed as dist
from labkit.exercises import gradient_compression as gc

dist.init_process_group()
compressor = gc.{compressor}
optimizer = gc.CommunicationOptimizer(compressor, bucket_size_mb={megabytes})
generator = torch.Generator().manual_seed(dist.get_rank())
shapes = {shapes}
given, arrived = [torch.zeros(s) for s in shapes], [torch.zeros(s) for s in shapes]
for step in range(3):
    gradients = [torch.randn(s, generator=generator) for s in shapes]
    for total, gradient in zip(given, gradients):
        total += gradient
    optimizer.all_reduce_compressed((str(number), gradient) for number, gradient in enumerate(gradients))
    for total, gradient in zip(arrived, gradients):
        total += gradient
for number, total in enumerate(given):
    total -= compressor.state[str(number)].get("residual", torch.zeros_like(total))
    dist.all_reduce(total)
[[total / dist.get_world_size() for total in given], arrived]
"""
COMPRESSORS = ["TopK(0.1)", "RandomK(0.1, seed=3)", "OneBit()", "Quantized(4, 16)", "PowerSGD(2)"]


@settings(max_examples=6)
@given(
    compressor=st.sampled_from(COMPRESSORS),
    world_size=st.integers(1, 4),
    shapes=st.lists(st.lists(st.integers(0, 7), max_size=4), min_size=1, max_size=4),
    megabytes=st.sampled_from([0.0001, 25.0]),
)
def test_what_arrives_and_what_is_kept_is_what_was_given(
    compressor: str, world_size: int, shapes: list[list[int]], megabytes: float
) -> None:
    cell = CONSERVED.format(compressor=compressor, shapes=shapes, megabytes=megabytes)
    run = (
        virtual(nproc_per_node=world_size)
        .run(Job(source=cell, modules=MODULES, timeout=BROKEN_SECONDS))
        .raise_if_failed()
    )
    for sent, arrived in run.values:
        for wanted, seen in zip(sent, arrived, strict=True):
            torch.testing.assert_close(seen, wanted, rtol=1e-4, atol=1e-5)


@given(bits=st.sampled_from([1, 2, 4, 8]), values=st.lists(st.integers(0, 255), max_size=40))
def test_packed_integers_come_back(bits: int, values: list[int]) -> None:
    integers = torch.tensor([value % 2**bits for value in values], dtype=torch.uint8)
    packed = pack(integers, bits)
    assert packed.nbytes == -(-len(values) * bits // 8)
    assert torch.equal(unpack(packed, bits, len(values)), integers)


TRAINED = """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from labkit.exercises import gradient_compression as gc

dist.init_process_group("gloo")
make, options = OPTIMIZER
optimizer = make(model.parameters(), **options)
parallel = {parallel}
parallel.register_comm_hook(None, gc.compression_hook(gc.{compressor}))
for step in range(STEPS):
    optimizer.zero_grad()
    loss_of(parallel, step, dist.get_rank(), dist.get_world_size()).backward()
    optimizer.step()
result(model)
"""


def trained(program: str, compressor: str, ranks: int, parallel: str = "DistributedDataParallel(model)") -> list[float]:
    """Return each rank's result. `parallel`: what wraps the model, an expression."""
    cell = program + TRAINED.format(compressor=compressor, parallel=parallel)
    built = {one.name: one.source("solution")[0] for one in (*DDP.builds_on, DDP)} if "ddp." in parallel else {}
    job = Job(source=cell, modules={**MODULES, **built}, timeout=BROKEN_SECONDS, trace=False)
    return [float(value) for value in local(nproc_per_node=ranks).run(job).raise_if_failed().values]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("compressor", "ranks"),
    [("PowerSGD(4)", 4), *(pytest.param("Quantized()", *each.values, marks=each.marks) for each in MORE_RANKS)],
    ids=str,
)
def test_digits_are_learned(compressor: str, ranks: int) -> None:
    results = trained(DIGITS, compressor, ranks)
    assert len(set(results)) == 1 and results[0] >= ACCURACY


@pytest.mark.slow
@pytest.mark.parametrize("compressor", ["PowerSGD(4)", "Quantized()"])
def test_digits_are_learned_through_the_ddp_of_exercise_11(compressor: str) -> None:
    """In several buckets: its hooks start every bucket before they wait for any."""
    wrapped = "__import__('labkit.exercises', fromlist=['ddp']).ddp.DistributedDataParallel(model, bucket_cap_mb=0.005)"
    results = trained(DIGITS, compressor, 2, wrapped)
    assert len(set(results)) == 1 and results[0] >= ACCURACY


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [4, *MORE_RANKS])
def test_a_language_model_loses_nothing_by_8_bits(ranks: int) -> None:
    """With 8 bits the loss is that of one process. Sparser messages come later than Adam's averages expect."""
    results = trained(TEXT, "Quantized()", ranks)
    assert len(set(results)) == 1
    assert abs(results[0] - alone(TEXT)) <= 0.01 * alone(TEXT)
    assert results[0] < bigrams()


class Expanded(Compressor):
    """Sends one element, whose stride is 0."""

    def compress(self, gradient: torch.Tensor, name: str) -> tuple[torch.Tensor, ...]:
        return (gradient.mean().expand(1, 1),)

    def decompress(self, message: tuple[torch.Tensor, ...], shape: torch.Size, name: str) -> torch.Tensor:
        return message[0].reshape(()).expand(shape)


def test_a_message_of_one_element_may_have_any_stride() -> None:
    gradient = torch.tensor([1.0, 3.0])
    rounds = BucketRounds(Expanded(), [("weight", gradient)])
    rounds.advance([rounds.message])
    assert gradient.tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    ("gradient", "shown"),
    [
        (torch.zeros(2, dtype=torch.int64), "torch.int64"),
        (torch.zeros(2).to_sparse(), "torch.float32"),
        ([1.0], "[1.0]"),
    ],
)
def test_only_dense_tensors_of_floating_point_numbers_are_gradients(gradient: Any, shown: str) -> None:
    with pytest.raises(
        ValueError, match=rf"^gradients\['weight'\] must be a floating-point tensor, got .*{re.escape(shown)}"
    ):
        list(buckets([("weight", gradient)], 25.0))
