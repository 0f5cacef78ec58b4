"""Visible checks and hints of llm_13b. TODO(author): what the inputs make visible."""

from __future__ import annotations

import torch

from labkit.checks import Ranks, Submission, check, expect


@check(points=3, todo=1, title="every rank ends with the sum", look_at="TODO(author): where to look when it fails")
def values(submission: Submission, ranks: Ranks) -> None:
    run = ranks(3).call(submission.total, [torch.full((2,), 10.0**rank) for rank in range(3)])
    expect(run.values, "sum of 1, 10 and 100").equals([torch.full((2,), 111.0)] * 3)


HINTS = {
    1: [
        "TODO(author): a nudge",
        "TODO(author): the idea",
        "TODO(author): almost the line",
    ],
}
