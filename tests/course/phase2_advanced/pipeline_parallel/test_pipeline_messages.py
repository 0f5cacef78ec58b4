"""What arrives at the next stage: format, sizes, order; and what is reported when nothing did."""

from __future__ import annotations

import pytest

from labkit import Job, virtual
from labkit.clusters import RankFailed
from labkit.course.phase2_advanced.pipeline_parallel.given.messages import Message, slots_of_rank
from labkit.course.phase2_advanced.pipeline_parallel.given.schedules import Action

START = """
import torch, torch.distributed as dist
from types import SimpleNamespace
from labkit.course.phase2_advanced.pipeline_parallel.given.messages import PipelineMessages, slots_of_rank
from labkit.course.phase2_advanced.pipeline_parallel.given.schedules import Action, schedule_orders

dist.init_process_group()
rank, ranks = dist.get_rank(), dist.get_world_size()
stages = [SimpleNamespace(index=rank, count=ranks, module=torch.nn.Identity())]
order = [(op, k, 0) for op in ("forward", "backward") for k in range(3)]
slots = slots_of_rank(schedule_orders([order] * ranks), rank, ranks, 1)
messages = PipelineMessages(stages, 3, 5 if rank == 0 else 0)
"""
FORTH_AND_BACK = """
parts, arrived = torch.arange(10).view(5, 2).to(dtype).tensor_split(3), []
for slot in slots:
    result = None
    if slot.action is not None:
        k = slot.action.microbatch
        if slot.action.op == "backward":
            result = messages.receive_gradient(slot.action)
            result = parts[k] + 1 if rank == ranks - 1 and wants else result
        else:
            result = messages.receive_activation(slot.action) if rank else parts[k].requires_grad_(wants)
        arrived.append(result)
    messages.exchange(slot, result)
messages.wait_for_sends()
[tensor if tensor is None else (tensor.detach(), tensor.requires_grad) for tensor in arrived]
"""


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_microbatches_arrive_in_their_format_and_gradients_come_back(dtype: str) -> None:
    given = f"dtype, wants = torch.{dtype}, True\n"
    run = virtual(nproc_per_node=3).run(Job(source=START + given + FORTH_AND_BACK)).raise_if_failed()
    first, *others = run.values
    assert [tensor.shape for tensor, _ in first] == [(2, 2), (2, 2), (1, 2)] * 2
    for k in range(3):
        (activation, _), (gradient, _) = first[k], first[k + 3]
        assert gradient.equal(activation + 1), "as the last rank sent it"
        for other in others:
            (arrived, wants_gradient), (passed_on, _) = other[k], other[k + 3]
            assert wants_gradient and arrived.dtype == activation.dtype and arrived.equal(activation)
            assert passed_on.equal(gradient)


def test_an_activation_that_wants_no_gradient_gets_none() -> None:
    given = "dtype, wants = torch.int64, False\n"
    run = virtual(nproc_per_node=2).run(Job(source=START + given + FORTH_AND_BACK)).raise_if_failed()
    assert [value[3:] for value in run.values] == [[None] * 3] * 2
    assert run.trace.sends_to(1) == set()
    assert run.trace.bytes_sent(0) == 5 * 2 * 8 + 12 * 8, "the activations, and one announcement"


def test_a_missing_activation_is_reported_at_the_caller_s_line() -> None:
    source = START + "messages.receive_activation(slots[1].action or Action(0, 0, 'forward', 0))\n"
    with pytest.raises(RankFailed, match="no activation has arrived for Action") as failed:
        virtual(nproc_per_node=2).run(Job(source=source)).raise_if_failed()
    error = failed.value.run.ranks[0].error
    assert [text for *_, text in error.frames] == [source.splitlines()[-1]]


def test_slots_list_what_arrives_from_other_ranks() -> None:
    schedule = [Action(0, 0, "forward", 0), Action(1, 1, "forward", 0), Action(2, 1, "backward", 0)]
    schedule.append(Action(3, 0, "backward", 0))
    first, second = (slots_of_rank(schedule, rank, 2, 1) for rank in range(2))
    assert [slot.action for slot in first] == [schedule[0], None, None, schedule[3]]
    assert [slot.arriving for slot in first] == [[], [], [Message("backward", 0, 0)], []]
    assert [slot.arriving for slot in second] == [[Message("forward", 1, 0)], [], [], []]
    assert first[2].arriving[0].sender == 1 and second[0].arriving[0].sender == 0
