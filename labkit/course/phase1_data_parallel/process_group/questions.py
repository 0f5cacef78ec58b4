"""Questions of process_group. The answers come from runs on virtual ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist

from labkit.clusters import Job
from labkit.clusters.virtual import virtual
from labkit.questions import Number


def mean_of_samples() -> float:
    """Return the mean over all samples of three ranks."""
    losses = [torch.full((32,), 2.0), torch.full((32,), 3.0), torch.full((4,), 8.0)]
    return torch.cat(losses).mean().item()


def rank_in_place() -> float:
    """Return the RANK of local rank 5 on machine 2 of four machines with eight GPUs each."""
    where = Job(source="import os; [os.environ['GROUP_RANK'], os.environ['LOCAL_RANK']]")
    return float(virtual(nnodes=4, nproc_per_node=8).run(where).values.index(["2", "5"]))


def comes_late() -> None:
    """Come to a barrier after a second, on rank 2 after three."""
    import time

    dist.init_process_group()
    time.sleep(3 if dist.get_rank() == 2 else 1)
    dist.barrier()


def seconds_in_barriers() -> float:
    """Return the seconds that four ranks spend in a barrier, together."""
    waits = virtual(nproc_per_node=4).run(Job.calling(comes_late)).trace.collectives()
    return round(sum(event.end - event.start for event in waits), 2)


QUESTIONS = [
    Number(
        name="ten_calls",
        text="**Predict**: on 256 GPUs one call with ten metrics takes 90 µs. How long do ten calls take, with one "
        "metric each?",
        answer=lambda one_by_one: one_by_one[-1],
        solution="10 * 90",
        unit="µs",
        tolerance=0.2,
        near={
            "90": "fewer bytes make a call no shorter: 88 bytes are nothing to this network.",
            "9": "that would be one of them, if bytes were what takes the time.",
        },
        otherwise="What takes the time of a call: its 88 bytes, or the call itself?",
        why="Ten times a call's latency, whatever it carries: {answer:.0f} µs in the run.",
        shown_by="the picture below",
    ),
    Number(
        name="mean_loss",
        text="**a** Three ranks have the mean losses 2, 3 and 8, over 32, 32 and 4 samples. What is the mean loss of "
        "all samples?",
        answer=mean_of_samples,
        solution="(2 * 32 + 3 * 32 + 8 * 4) / (32 + 32 + 4)",
        tolerance=0.005,
        near={
            "13 / 3": "that is the mean of the three means. Four samples do not count as much as 32: what does "
            "`weight` do in your function?",
            "13": "that is the sum of the means. Which of the ranks have many samples?",
        },
        otherwise="How many samples are there, and what is the sum of their losses?",
        why="Each rank's mean counts by its samples: 192 in all, over 68 samples. The plain mean of 2, 3 and 8 would "
        "be 4.3, since it takes four samples for as many as 32.",
    ),
    Number(
        name="rank_on_machine",
        text="**b** Four machines have eight GPUs each. Which RANK has the process with LOCAL_RANK 5 on machine 2, "
        "counted from 0?",
        answer=rank_in_place,
        solution="2 * 8 + 5",
        near={
            "1 * 8 + 5": "that is on machine 1: machines are counted from 0, too.",
            "3 * 8 + 5": "that is on machine 3: machine 2 has two machines before it.",
            "2 * 8 + 4": "LOCAL_RANK is counted from 0 as well.",
            "5": "that is its number on its own machine. How many ranks are on the machines before it?",
        },
        otherwise="How many ranks are on the machines before it?",
        why="Two machines with eight ranks each come before it, and five ranks of its own machine. 32 virtual ranks "
        "were asked for their places just now: it is rank {answer:.0f}.",
    ),
    Number(
        name="lost_seconds",
        text="**c** Rank 2 comes to a barrier after 3 seconds, all others after 1. How many seconds of their time do "
        "the four ranks lose there, together?",
        answer=seconds_in_barriers,
        solution="3 * (3 - 1)",
        unit="s",
        near={
            "3 - 1": "that is what one rank loses. How many wait?",
            "4 * (3 - 1)": "rank 2 is the last one to come, so it does not wait.",
            "3 * 3": "the others came after a second; until then they had work to do.",
        },
        otherwise="Who waits, and how long does each of them?",
        why="Three ranks wait for two seconds each. On four virtual ranks the barriers took {answer:g} s together, "
        "just now. One slow rank costs the time of all the others: the more ranks, the more it costs.",
    ),
]
