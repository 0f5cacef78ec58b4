"""Questions of collectives. Rounds and messages are counted in runs on virtual ranks."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from labkit.clusters import Job, Run
from labkit.clusters.virtual import virtual
from labkit.questions import Line, Number
from labkit.trace.rounds import rounds


def add_up(all_reduce: Callable[[torch.Tensor], object]) -> None:
    """Call an all-reduce on a small tensor."""
    dist.init_process_group()
    all_reduce(torch.ones(16))


def on_machines(ranks: int, all_reduce: Callable[[torch.Tensor], object]) -> Run:
    """Run an all-reduce on virtual machines with one GPU each."""
    return virtual(nnodes=ranks, nproc_per_node=1).run(Job.calling(add_up, all_reduce)).raise_if_failed()


def rounds_through_rank_0(N: int) -> float:
    """Count the rounds of the naive all-reduce."""
    from labkit.exercises import collectives

    return rounds(on_machines(N, collectives.all_reduce_naive).trace)


def few_ranks(draw: random.Random) -> Iterator[dict[str, Any]]:
    """Draw three numbers of ranks."""
    return ({"N": ranks} for ranks in draw.sample(range(3, 12), 3))


def messages_of_16() -> float:
    """Count the messages of recursive doubling on 16 ranks."""
    from labkit.exercises import collectives

    trace = on_machines(16, collectives.all_reduce_recursive_doubling).trace
    return sum(trace.messages_sent(rank) for rank in range(16))


QUESTIONS = [
    Line(
        name="naive_rounds",
        text="**Before you go on**: how many rounds does it take on `N` ranks? Type a line of Python in `N`, and "
        "compare with the numbers above.",
        answer=rounds_through_rank_0,
        solution="2 * (N - 1)",
        cases=few_ranks,
        near={
            "N - 1": "so many messages bring the tensors to rank 0. The sum has to get back, too.",
            "2 * N": "rank 0 sends nothing to itself.",
            "N": "rank 0 sends nothing to itself, and the sum has to get back.",
        },
        otherwise="How many messages go through rank 0, in both directions?",
        why="N − 1 messages come in at rank 0, one after the other, and N − 1 go out. It was counted just now, in "
        "runs of `all_reduce_naive`.",
    ),
    Number(
        name="shared_doubling",
        text="**Predict**: on 32 machines with one GPU and one card each, recursive doubling takes 8.3 ms for 2 MB. "
        "How long does it take on four machines, in each of which eight GPUs share one card?",
        answer=lambda shared: 1e3 * shared["recursive doubling"][-1],
        solution="2 * (8 * 2.048 / 1.25)",
        unit="ms",
        tolerance=0.25,
        near={
            "8.3": "it was that long on 32 machines. How many messages want to leave a machine in one round?",
            "8 * 8.3": "not all five rounds leave the machine: in three of them the partner is in the same one.",
        },
        otherwise="In two of five rounds the partner is in another machine. How many messages share a card then?",
        why="Three of the five rounds stay inside a machine, on NVLink, and cost next to nothing. In each of the "
        "other two eight messages of 2 MB leave by one card: 2 × 8 × 1.6 ms. In the run it was {answer:.1f} ms.",
        shown_by="the picture below",
    ),
    Number(
        name="tree_rounds",
        text="**a** In how many rounds does a tree all-reduce add up a tensor over 1,000 ranks?",
        answer=lambda: 2 * (1000 - 1).bit_length(),
        solution="2 * ceil(log2(1000))",
        near={
            "10": "those are the levels on the way up. The sum has to come down again.",
            "9": "nine levels make 512 ranks, and those are only the levels on the way up.",
            "2 * log2(1000)": "levels are whole: how many are needed for all 1,000?",
            "2 * 9": "nine levels are enough for 512 ranks only.",
            "2 * 999": "that is what it takes through one rank. In a tree, messages of one level travel at the same "
            "time.",
        },
        otherwise="How many levels has the tree, and how often is each of them passed?",
        why="2¹⁰ is 1,024, so ten levels reach 1,000 ranks: ten rounds up and ten down. Through rank 0 it would be "
        "1,998.",
    ),
    Number(
        name="doubling_messages",
        text="**b** How many messages are sent in all when 16 ranks all-reduce by recursive doubling?",
        answer=messages_of_16,
        solution="16 * 4",
        near={
            "4": "that is the number of rounds. Who sends in each of them?",
            "16 * 4 / 2": "the two of a pair exchange: both send.",
            "2 * 15": "so many does a tree send. Here nobody looks on.",
            "16 * 15": "nobody sends to all others: a rank has another partner in each round.",
        },
        otherwise="How many rounds are there, and how many ranks send in each?",
        why="Four rounds, in each of which every rank sends one message. In a run on 16 virtual ranks your code sent "
        "{answer:.0f}. A tree sends 30, in eight rounds: fewer messages, but more rounds.",
    ),
    Number(
        name="small_tensor",
        text="**c** On another network a message has a latency of 5 µs and then passes at 25 GB/s. Up to how many "
        "bytes is a tensor small there?",
        answer=lambda: 5e-6 * 25e9,
        solution="5e-6 * 25e9",
        unit="bytes",
        near={
            "125": "in which unit is that? 1 GB/s is 1,000 bytes in a microsecond.",
            "5e-6 / 25e9": "how many bytes pass in 5 µs?",
            "31250": "that is the size for 25 µs and 1.25 GB/s, the network of this notebook.",
        },
        otherwise="How many bytes pass while the latency does?",
        why="In 5 µs 25 GB/s carry 125 kB: up to there the latency is the larger part. A faster network with the same "
        "latency makes more tensors small.",
    ),
]
