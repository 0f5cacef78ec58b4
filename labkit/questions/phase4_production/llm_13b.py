"""Questions of llm_13b. TODO(author): where the answers come from: a run, or a formula."""

from __future__ import annotations

import torch
import torch.distributed as dist

from labkit import Job, virtual
from labkit.questions import Number


def add_up() -> float:
    """Add up a one from each rank."""
    dist.init_process_group()
    one = torch.ones(1)
    dist.all_reduce(one)
    return one.item()


def total_of_four() -> float:
    """Return the sum on four virtual ranks."""
    return float(virtual(nproc_per_node=4).run(Job.calling(add_up)).raise_if_failed().values[0])


QUESTIONS = [
    Number(
        name="llm_13b_largest",
        text="**Predict**: TODO(author): what the next picture shows, asked before it is drawn.",
        answer=lambda totals: max(totals),
        solution="4",
        near={"1": "TODO(author): what is missed by who answers that."},
        why="TODO(author): how one finds it, and what the run shows: {answer:.0f}.",
        shown_by="the picture below",
    ),
    Number(
        name="llm_13b_total",
        text="**a** TODO(author): a question that a number decides.",
        answer=total_of_four,
        solution="2 * 2",
        near={"1": "TODO(author): what is missed by who answers that."},
        otherwise="TODO(author): what to think of.",
        why="TODO(author): how one finds it, and what the run shows: {answer:.0f}.",
    ),
]
