"""Questions of ring_allreduce. Bytes and messages are those of the notebook's runs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from labkit.clusters import Job
from labkit.clusters.virtual import virtual
from labkit.questions import Line, Number


def add_up(all_reduce: Callable[[torch.Tensor], object], nbytes: int) -> None:
    """Call an all-reduce on a tensor of so many bytes."""
    dist.init_process_group()
    all_reduce(torch.ones(nbytes // 4))


def sent_by_rank_0(N: int, n: int) -> float:
    """Return the bytes that rank 0 sends in a naive all-reduce of n bytes on N ranks."""
    from labkit.exercises import collectives

    cluster = virtual(nnodes=N, nproc_per_node=1)
    run = cluster.run(Job.calling(add_up, collectives.all_reduce_naive, n)).raise_if_failed()
    return float(run.trace.bytes_sent(rank=0))


def few_ranks(draw: random.Random) -> Iterator[dict[str, Any]]:
    """Draw three numbers of ranks, each with a number of bytes."""
    return ({"N": ranks, "n": 400 * draw.randint(1, 100)} for ranks in draw.sample(range(3, 12), 3))


def crossing_messages(mine64: Any) -> float:
    """Return how many messages of a round go from one machine to another, in part 6's run on 64 ranks."""
    sends = [(event.rank, event.peer) for event in mine64.trace.of() if event.kind == "send"]
    return float(sum(a // 8 != b // 8 for a, b in sends) / (2 * 63))


QUESTIONS = [
    Line(
        name="naive_bytes",
        text="**Before you go on**: how many bytes does rank 0 send when `N` ranks add up `n` bytes? The next cell "
        "prints what the trace counted.",
        answer=sent_by_rank_0,
        solution="(N - 1) * n",
        cases=few_ranks,
        near={
            "N * n": "rank 0 sends nothing to itself.",
            "n": "it sends the sum to every other rank.",
            "2 * (N - 1) * n": "half of that is what it receives.",
        },
        otherwise="To how many ranks does it send the sum?",
        why="The sum goes to each of the N − 1 other ranks, all through one port. It was counted just now, in runs of "
        "your `all_reduce_naive`.",
    ),
    Number(
        name="busiest",
        text="**Predict**: how much does the busiest rank send when 256 ranks add up a tensor around a ring, as in the "
        "picture above? Give it in tensors: 1 is as many bytes as the tensor has.",
        answer=lambda sizes: 2 * (max(sizes) - 1) / max(sizes),
        solution="2 * 255 / 256",
        tolerance=0.02,
        near={
            "255": "that is the server. In a ring a message is one chunk, a 256th of the tensor.",
            "2 * 255": "so many messages does it send. How large is each?",
            "1": "once around makes each chunk whole, on one rank only; it has to get to all of them.",
        },
        otherwise="How many messages does a rank send, and which part of the tensor is each?",
        why="2 × 255 messages with a 256th of the tensor each: {answer:.2f}, and never more than 2, whatever the "
        "number of ranks.",
        shown_by="the picture below",
    ),
    Number(
        name="ring_bandwidth",
        text="**Predict**: what bus bandwidth does your ring reach with 16 MB on 64 GPUs, eight machines? The network "
        "between them carries 25 GB/s.",
        answer=lambda bus_bandwidth, large: bus_bandwidth(8, 16e6, large[-1]),
        solution="250 / (10 + 10)",
        unit="GB/s",
        tolerance=0.25,
        near={
            "300": "seven of eight links are that fast, but each round waits for the slowest.",
            "25": "that would be without any latency: 126 rounds, each of which begins with one.",
            "25 / 8": "eight GPUs share a machine, but only one link of the ring leaves it in each direction.",
        },
        otherwise="A round carries 250 kB, which takes 10 µs at 25 GB/s. How long does it take until data flows, and "
        "until it is added up?",
        why="In the run it was {answer:.1f} GB/s. A round's 250 kB take 10 µs at 25 GB/s, and as long again goes by "
        "with latency and with adding up.",
        shown_by="the picture below",
    ),
    Number(
        name="ring_bytes",
        text="**a** How many bytes does one rank send when 1,000 ranks add up 100 MB around a ring?",
        answer=lambda: 2 * 999 / 1000 * 100e6,
        solution="2 * 999 * 100_000",
        unit="bytes",
        near={
            "2 * 100e6": "nearly: it takes N − 1 rounds, not N, to go around.",
            "999 * 100_000": "that is half of the way: each chunk is whole, on one rank.",
            "999 * 100e6": "that is what the server sends. In a ring a message has a 1,000th of the tensor.",
            "100_000": "that is one message.",
            "199.8": "in bytes, not in MB.",
        },
        otherwise="In how many rounds, and how much in each?",
        why="2 × 999 rounds with a 1,000th of the tensor each, 100 kB.",
    ),
    Number(
        name="ring_rounds",
        text="**b** In how many rounds, each with one message from every rank, is it done on 64 ranks?",
        answer=lambda mine64: mine64.trace.messages_sent(rank=0),
        solution="2 * 63",
        near={
            "63": "then each chunk is whole, on one rank.",
            "64": "a chunk that has passed all other ranks has taken one round less, and then it is whole on one rank "
            "only.",
            "2 * 64": "a chunk needs one round less to pass all other ranks.",
            "2 * 6": "that is a tree. A chunk goes around the ring one rank at a time.",
        },
        otherwise="How many rounds until each chunk is whole, and how many until all have it?",
        why="63 rounds until each chunk is whole on one rank, and 63 until all have it. In part 6 rank 0 sent "
        "{answer:.0f} messages.",
    ),
    Number(
        name="crossing",
        text="**c** Of the 64 messages of one round on eight machines with eight GPUs each, how many go from one "
        "machine to another?",
        answer=crossing_messages,
        solution="8",
        near={
            "64": "rank 0 sends to rank 1, which is in the same machine.",
            "56": "so many stay in their machine.",
            "7": "it is a ring: the last machine sends to the first one.",
            "1": "that is for each machine.",
        },
        otherwise="Which rank of a machine has its right neighbour in another one?",
        why="Only the last rank of each machine has its right neighbour in another one: {answer:.0f} in each round of "
        "part 6. The other 56 wait for them.",
    ),
    Number(
        name="ring_seconds",
        text="**d** 51 machines, each behind a card of 10 GB/s with a latency of 20 µs, add up 51 MB around a ring. "
        "How long does that take at least?",
        answer=lambda: 1e3 * (2 * 50 / 51 * 51e6 / 10e9 + 2 * 50 * 20e-6),
        solution="2 * 50 * (1 / 10 + 0.02)",
        unit="ms",
        near={
            "2 * 50 / 10": "those are the bytes. Each round has a latency, too.",
            "2 * 50 * 0.02": "those are the latencies. How long do the bytes take?",
            "50 * (1 / 10 + 0.02)": "then each chunk is whole, on one rank.",
            "2 * 51 * (1 / 10 + 0.02)": "a chunk needs one round less to pass all other ranks.",
            "2 * 50 / 10 + 0.02": "there is a latency in each round.",
            "0.012": "in which unit is that?",
        },
        otherwise="How many rounds are there, and how long do latency and bytes of one round take?",
        why="2 × 50 rounds, each with 1 MB that takes 100 µs, and 20 µs of latency: {answer:.0f} ms.",
    ),
]
