"""Mistakes that look right at first sight: a visible check catches each, not only a hidden one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labkit import catalogue
from labkit.checks import Ranks, Submission, run_checks, visible_rubric

FILLS_FROM_THE_LEFT = """    ends, held = [], 0
    for n, cost in enumerate(costs):
        if held and held + cost > before[-1] / num_stages and len(ends) < num_stages - 1:
            ends.append(n)
            held = 0
        held += cost
    ends = [*ends, len(layers)]
"""

MISTAKES = {
    "trainer: buffers are not sent": (
        "start",
        "for tensor in (*self.model.parameters(), *self.model.buffers()):",
        "for tensor in self.model.parameters():",
    ),
    "trainer: what arrives in a contiguous copy is not copied back": (
        "start",
        "            tensor.detach().copy_(sent)\n",
        "",
    ),
    "tensor_parallel: a slice for scatter_to_group": (
        "apart",
        "scatter_to_group(x, self.group)",
        "x[..., part_of(self.whole_shape[1], self.group)]",
    ),
    "pipeline_parallel: stages are filled from the left": (
        "balanced",
        "    ends = best[len(layers)][1]\n",
        FILLS_FROM_THE_LEFT,
    ),
    "pipeline_parallel: a warm-up longer than there are microbatches": (
        "one_f_one_b",
        "    ahead = min(ahead, len(forwards))\n",
        "",
    ),
    "pipeline_parallel: the loss keeps its graph": ("values", "(result.detach())", "(result)"),
    "mixed_precision: a trained parameter without a gradient": (
        "masters",
        "None if parameter.grad is None else parameter.grad.float()",
        "parameter.grad.float()",
    ),
    "mixed_precision: an overflow concerns all ranks, whatever the group": (
        "skip",
        "scaler.unscale_(updated, group)",
        "scaler.unscale_(updated)",
    ),
    "activation_checkpointing: offloaded tensors stay on the host": ("offload", "to_device(*packed)", "packed[0]"),
    "process_group: an existing group is not compared with the config": (
        "setup",
        "elif (dist.get_rank(), dist.get_world_size()) != (config.rank, config.world_size):",
        "elif False:",
    ),
    "data_loader: 0 samples taken count as no answer": (
        "resume_elsewhere",
        "self._given if taken is None else taken",
        "taken or self._given",
    ),
    "data_loader: one batch more than prefetch_factor": (
        "reads_ahead",
        "threading.Semaphore(self.prefetch_factor)",
        "threading.Semaphore(self.prefetch_factor + 1)",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_visible_check_shows_it(mistake: str) -> None:
    check, right, wrong = MISTAKES[mistake]
    exercise = catalogue.find(mistake.partition(":")[0])
    solution = exercise.source("solution")[0]
    assert solution.count(right) == 1
    rubric = visible_rubric(exercise)
    rubric = replace(rubric, checks=[one for one in rubric.checks if one.name == check])
    report = run_checks(rubric, Submission(exercise, solution.replace(right, wrong)), Ranks())
    (result,) = report.results
    assert not result.passed and result.expected and not result.fault, report.text()
