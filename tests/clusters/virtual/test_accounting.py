"""Compute takes the time of a roofline, and overlaps with communication as far as the program allows."""

from __future__ import annotations

from dataclasses import replace
from textwrap import dedent
from typing import Any

import pytest

from labkit import Job, Run, virtual
from labkit.hardware import GPU, Link
from labkit.trace import Kind

# round figures: 1e12 operations per second, 1e12 bytes per second, a microsecond for each launch
ROUND = GPU(
    "round", 1.0, 1.0, 80.0, 1000.0, "made up for round numbers",
    matmul_efficiency=1.0, memory_efficiency=1.0, launch_seconds=1e-6,
)  # fmt: skip
LAUNCH = 1e-6
SLOW = Link("slow", gb_per_s=1.0, latency_seconds=1e-5, source="made up for round numbers")


def run(source: str, ranks: int = 1, how: Any = "threads", **options: Any) -> Run:
    head = """
        import torch, torch.nn as nn, torch.distributed as dist
        dist.init_process_group()
        rank, world_size = dist.get_rank(), dist.get_world_size()
    """
    # shapes determine the time, so no arithmetic is needed (test_fake_tensors.py compares that with real tensors)
    cluster = virtual(nproc_per_node=ranks, ranks=how, **{"gpu": ROUND, "intra_node": SLOW, "fake": True, **options})
    return cluster.run(Job(source=dedent(head) + dedent(source), filename="Cell In[1]")).raise_if_failed()


def computing(result: Run, rank: int = 0) -> float:
    return sum(e.end - e.start for e in result.trace.of(rank, Kind.COMPUTE))


def operators(result: Run, rank: int = 0) -> int:
    return sum(e.sequence for e in result.trace.of(rank, Kind.COMPUTE))


def test_a_chain_of_products_takes_its_flops_over_the_gpus_rate() -> None:
    result = run(
        """
        x, w = torch.empty(1000, 1000), torch.empty(1000, 1000)
        for _ in range(3):
            x = x @ w
        """
    )
    assert operators(result) == 3
    assert computing(result) == pytest.approx(3 * (LAUNCH + 2 * 1000**3 / 1e12))


@pytest.mark.parametrize("fake", [True, False])
def test_nodes_with_different_gpus_compute_at_their_own_rates_and_have_their_own_memory(fake: bool) -> None:
    half = replace(ROUND, name="half", bf16_tflops=0.5, fp32_tflops=0.5, memory_gb=0.03)
    result = run(
        """
        x = torch.empty(1000, 1000)
        y = x @ x
        dist.barrier()
        try:
            z = torch.empty(8, 1000, 1000)
        except torch.OutOfMemoryError as error:
            print(error)
        """,
        nnodes=3,
        gpu=[ROUND, half],
        fake=fake,
    )
    times = [2 * 1000**3 / rate + LAUNCH for rate in (1e12, 0.5e12, 1e12)]
    assert [computing(result, rank) for rank in range(3)] == pytest.approx(times)
    assert "half" in result.ranks[1].output and not result.ranks[0].output + result.ranks[2].output


def test_an_elementwise_operator_takes_the_bytes_that_it_moves() -> None:
    numel = 10**6
    rows = "torch.nn.functional.embedding(torch.zeros(8, dtype=torch.int64), x.view(-1, 10))"
    losses = "torch.nn.functional.nll_loss(x.view(1000, 1000), torch.zeros(1000, dtype=torch.int64))"
    moved = {
        "x + y": 3,
        "x.add_(y)": 3,
        "x.relu()": 2,
        "x.zero_()": 1,
        "x.copy_(y)": 2,
        "x.view(1000, 1000).t()[3:]": 0,
        "torch.empty_like(x)": 0,
        losses: 6000 / numel,  # 8 kB of indices, made; and moved twice: read, and with it one value per row
        rows: (2 * 80 + 16 + 16) / numel,  # read and written; indices, read; and made before, of zeros
    }  # fmt: skip
    for expression, tensors in moved.items():
        result = run(f"x, y = torch.empty({numel}), torch.empty({numel})\n{expression}")
        seconds = operators(result) * LAUNCH + 4 * numel * tensors / 1e12
        assert computing(result) == pytest.approx(seconds, rel=1e-3), expression


def test_adam_in_one_kernel_moves_28_bytes_a_parameter() -> None:
    """It reads the parameter, its gradient and two moments, and writes all of them except the gradient."""
    steps = """
        p = nn.Parameter(torch.empty(10**7))
        p.grad = torch.empty(10**7)
        optimizer = torch.optim.Adam([p], fused=True)
        for _ in range({}):
            optimizer.step()
    """
    one, two = (computing(run(steps.format(count))) for count in (1, 2))
    assert two - one == pytest.approx(28 * 10**7 / 1e12, rel=0.02)


def test_forward_and_backward_of_a_linear_layer_are_three_products() -> None:
    batch, width = 512, 1024
    result = run(
        f"""
        layer, x = nn.Linear({width}, {width}, bias=False), torch.empty({batch}, {width}, requires_grad=True)
        y = layer(x)
        start = torch.empty(1)
        y.backward(torch.empty_like(y))
        """
    )
    product = 2 * batch * width**2 / 1e12
    # the initial weights, drawn once: 4 MB written
    assert computing(result) == pytest.approx(3 * product + 4 * width**2 / 1e12, rel=0.02)


def test_attention_and_convolution_have_flops() -> None:
    result = run("q = torch.empty(2, 8, 256, 64)\nnn.functional.scaled_dot_product_attention(q, q, q)")
    assert computing(result) == pytest.approx(LAUNCH + 4 * 2 * 8 * 256**2 * 64 / 1e12, rel=0.02)
    result = run("q = torch.empty(2, 8, 256, 64)\nnn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)")
    assert computing(result) == pytest.approx(LAUNCH + 4 * 2 * 8 * (256 * 257 / 2) * 64 / 1e12, rel=0.02), "half of it"
    result = run("nn.functional.conv2d(torch.empty(8, 16, 34, 34), torch.empty(32, 16, 3, 3))")
    assert computing(result) == pytest.approx(LAUNCH + 2 * 8 * 32 * 32**2 * 16 * 9 / 1e12, rel=0.02)


def test_attention_runs_at_the_rate_of_its_own_kernel() -> None:
    """FlashAttention-2 on A100, causal, heads of 128: 190 TFLOP/s forward; backward has 2.5 times the FLOPs at 0.8 of
    the rate."""
    forward = """
        q = torch.empty(4, 16, 4096, 128, dtype=torch.bfloat16, requires_grad=True)
        y = nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    """
    flops = 4 * 4 * 16 * 4096**2 * 128 / 2
    one = computing(run(forward, gpu="a100-80gb"))
    assert flops / one == pytest.approx(190e12, rel=0.04)
    both = computing(run(forward + "    y.backward(torch.empty_like(y))", gpu="a100-80gb"))
    assert (both - one) / one == pytest.approx(2.5 / 0.8, rel=0.1), "and the sum of three gradients"


def test_low_precision_is_faster_on_tensor_cores() -> None:
    product = "x = torch.empty(4096, 4096, dtype=torch.{})\nx @ x"
    seconds = {d: computing(run(product.format(d), gpu="a100-80gb")) for d in ("bfloat16", "float32")}
    assert seconds["float32"] / seconds["bfloat16"] == pytest.approx(312 / 19.5, rel=0.05)


def test_what_collectives_and_messages_do_with_data_is_no_computing() -> None:
    result = run(
        """
        x = torch.empty(1000)
        dist.all_reduce(x)
        dist.all_gather([torch.empty(1000) for _ in range(2)], x)
        dist.send(x, 1) if rank == 0 else dist.recv(x, 0)
        """,
        ranks=2,
    )
    assert operators(result) == operators(result, 1) == 0


def test_computing_hides_communication_that_nobody_waits_for() -> None:
    # a product takes 2 ms; 1 MB between two ranks takes 2 (10 us + 0.5 ms)
    source = """
        x, w, data = torch.empty(1000, 1000), torch.empty(1000, 1000), torch.empty(250_000)
        work = dist.all_reduce(data, async_op=True)
        {before}
        x @ w
        {after}
    """
    apart = run(source.format(before="work.wait()", after=""), ranks=2).trace.seconds
    beside = run(source.format(before="", after="work.wait()"), ranks=2).trace.seconds
    product = LAUNCH + 2e-3
    assert beside == pytest.approx(product)
    assert apart - beside > 1e-3


def test_ddp_overlaps_its_buckets_with_the_backward_pass() -> None:
    # each of 8 layers: 4 MB of gradients in its own bucket
    layers, width, batch = 8, 1024, 4096
    source = f"""
        layers = nn.Sequential(*[nn.Linear({width}, {width}, bias=False) for _ in range({layers})])
        model = nn.parallel.DistributedDataParallel(layers, bucket_cap_mb=3)
        x = torch.empty({batch}, {width})
        model(x).sum().backward()    # the first pass puts buckets in order
        dist.barrier()
        model(x).sum().backward()
    """
    trace = run(source, ranks=2).trace
    collectives = [e for e in trace.of(0, Kind.COLLECTIVE)]
    barrier = max(e.end for e in collectives if e.operation == "barrier")
    reductions = [e for e in collectives if e.operation == "all_reduce" and e.start >= barrier]
    assert len(reductions) == layers
    product = 2 * batch * width**2 / 1e12
    transfer = max(e.end - e.start for e in reductions[:1])
    assert transfer < product, "else there would be nothing to hide behind"
    # forward, backward (one product less: the input needs no gradient), and the exposed last bucket
    end = max(e.end for e in trace.of(0))
    assert end - barrier == pytest.approx((3 * layers - 1) * product + transfer, rel=0.02)


def test_without_account_computing_takes_no_time() -> None:
    source = "x = torch.empty(1000, 1000)\nx @ x"
    result = run(source, account=False)
    assert not result.trace.of(kind=Kind.COMPUTE) and not result.trace.memory


TRAINING = """
    torch.manual_seed(rank)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        loss = model(torch.randn(32, 64)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_threads_and_processes_give_one_trace_each_time() -> None:
    traces = [run(TRAINING, ranks=3, fake=False, how=how).trace for how in ("threads", "threads", "processes")]
    first = traces[0]
    assert first.of(kind=Kind.COMPUTE) and first.memory
    for other in traces[1:]:
        assert other.events == first.events
        assert other.memory == first.memory


def test_sparse_tensors_are_counted_by_their_parts() -> None:
    source = """
import torch, torch.distributed as dist
dist.init_process_group()
embedding = torch.nn.Embedding(100, 8, sparse=True)
optimizer = torch.optim.SparseAdam(embedding.parameters())
embedding(torch.tensor([1, 2, 5])).pow(2).sum().backward()
optimizer.step()
mine = torch.sparse_coo_tensor([[0, dist.get_rank() + 1]], [1.0, 2.0], (5,))
dist.all_reduce(mine)
(mine.to_dense().tolist(), (torch.eye(4).to_sparse_csr() @ torch.ones(4, 2)).sum().item())
"""
    run = virtual(nproc_per_node=2).run(Job(source=source)).raise_if_failed()
    assert run.values == [([2.0, 2.0, 2.0, 0.0, 0.0], 8.0)] * 2
