"""Hidden rubric of llm_13b: 3 points. TODO(author): what it judges beyond the values."""

from __future__ import annotations

import torch

from labkit.checks import Draw, Ranks, Submission, check, expect


@check(points=2, todo=1, title="every rank ends with the sum", look_at="TODO(author): where to look when it fails")
def values(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    n = draw.choice([2, 3, 5])
    inputs = draw.tensors(n, 4)
    run = ranks(n).call(submission.total, inputs)
    expect(run.values, "sum").close_to([torch.stack(inputs).sum(0)] * n)


@check(points=1, todo=1, title="one collective", look_at="TODO(author): where to look when it fails")
def traffic(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    inputs = draw.tensors(2, 4)
    run = ranks(2).call(submission.total, inputs)
    expect(run.values, "sum", easier=["values"]).close_to([torch.stack(inputs).sum(0)] * 2)
    expect(len(run.trace.collectives(0)), "collectives").equals(1)
