"""Given parts of local SGD: argument checks name the argument, and messages hold all elements."""

from __future__ import annotations

import torch
from waiting import BROKEN_SECONDS

from labkit import Job, virtual
from labkit.course.phase3_multi_node.local_sgd.given import Message, gradients, widened

# each case is wrong in one argument
WRONG = """
import torch, torch.distributed as dist
from labkit.course.phase3_multi_node.local_sgd import given

dist.init_process_group()
foreign, weight = dist.new_group([0]), torch.nn.Parameter(torch.ones(2))
frozen = torch.optim.SGD([torch.nn.Parameter(torch.ones(2), requires_grad=False)], lr=1)
cases = {
    "optimizer must be a torch.optim.Optimizer": lambda: given.trained_parameters("optimizer", [weight]),
    "inner must have parameters that are trained": lambda: given.trained_parameters("inner", frozen),
    "period": lambda: given.check_period(0),
    "warmup_steps": lambda: given.check_period(1, -1),
    "weight": lambda: given.check_weight("weight", -1, None),
    "samples": lambda: given.check_weight("samples", float("nan"), None),
    "tensors": lambda: given.Message([torch.ones(2), torch.ones(2, dtype=torch.int32)]),
    "tensors must be": lambda: given.Message([]),
    "outer": lambda: given.check_outer(torch.optim.SGD([weight], lr=1)),
    "speeds[1]": lambda: given.check_speeds([1.0, 0.0], 3),
    "speeds must": lambda: given.check_speeds([], 3),
    "global_batch_size": lambda: given.check_speeds([1.0], -1),
    "samples must": lambda: given.check_measurement(1.5, 1.0),
    "seconds": lambda: given.check_measurement(1, -1.0),
}
if dist.get_rank():
    cases["group"] = lambda: given.check_weight("weight", 1, foreign)
    cases["group must"] = lambda: given.rank_and_size(foreign)
seen = []
for begins, call in cases.items():
    try:
        call()
        seen.append(f"{begins}: nothing raised")
    except ValueError as error:
        if not str(error).startswith(begins):
            seen.append(f"{begins}: {error}")
seen
"""


def test_errors_name_the_argument() -> None:
    assert virtual(nproc_per_node=2).run(Job(source=WRONG, timeout=BROKEN_SECONDS)).raise_if_failed().values == [[]] * 2


def test_a_message_has_all_elements_and_a_one() -> None:
    tensors = [torch.arange(6.0, dtype=torch.bfloat16).view(2, 3).mT, torch.tensor(7.0, dtype=torch.float64)]
    message = Message(tensors)
    assert torch.equal(message.flat, torch.tensor([0.0, 3, 1, 4, 2, 5, 7, 1], dtype=torch.float64))
    message.flat.add_(1)
    assert [view.tolist() for view in message.views()] == [[[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]], 8.0]
    assert Message([torch.ones(1, dtype=torch.bfloat16)]).flat.dtype == torch.float32


def test_missing_gradients_are_zeros() -> None:
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    parameters[1].grad = torch.ones(2)
    found = gradients(parameters)
    assert [one.tolist() for one in found] == [[0, 0], [1, 1]] and found[0] is parameters[0].grad


def test_copies_are_float32_or_wider() -> None:
    wider = {torch.bfloat16: torch.float32, torch.float32: torch.float32, torch.float64: torch.float64}
    for dtype, wide in wider.items():
        parameter = torch.nn.Parameter(torch.ones(2, dtype=dtype))
        copy = widened(parameter)
        copy.zero_()
        assert copy.dtype == wide and parameter.tolist() == [1, 1]
