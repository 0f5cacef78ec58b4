"""Given parts of expert parallelism: argument checks name the argument; ranks' experts are those of one process."""

from __future__ import annotations

import torch
from waiting import BROKEN_SECONDS

from labkit import Job, virtual
from labkit.course.phase3_multi_node.expert_parallel.given import Experts, Routing

# each case is wrong in one argument
WRONG = """
import torch, torch.distributed as dist
from labkit.course.phase3_multi_node.expert_parallel import given

dist.init_process_group()
x, foreign = torch.ones(3, 4), dist.new_group([0])
numbers = torch.zeros(3, 1, dtype=torch.int64)
routing = given.Routing(numbers, torch.ones(3, 1), numbers == 0, torch.zeros(()), 4)
journey = given.Journey(routing, numbers[:, 0], numbers[:, 0], [[3, 0], [0, 0]], [[1, 2], [2, 0]], None)
cases = {
    "width": lambda: given.check_router(0, 2, 1, None),
    "num_experts": lambda: given.check_router(4, 2.0, 1, None),
    "top_k": lambda: given.check_router(4, 2, 3, None),
    "capacity_factor": lambda: given.check_router(4, 2, 1, -1),
    "hidden": lambda: given.check_layer(0, 4, None),
    "num_experts must be a multiple of 2": lambda: given.check_layer(4, 5, None),
    "x": lambda: given.check_tokens(x, 5),
    "x must be a floating": lambda: given.check_tokens(x.int(), 4),
    "x must be a tensor of shape": lambda: given.check_dispatch(x[:2], routing, None),
    "routing": lambda: given.check_dispatch(x, numbers, None),
    "journey": lambda: given.check_combine([x, x], routing),
    "outputs": lambda: given.check_combine([x, x], journey),
    "outputs must be a list": lambda: given.check_combine(x, journey),
    "module": lambda: given.check_average(x, None, None),
}
if dist.get_rank():
    cases["group"] = lambda: given.check_layer(4, 4, foreign)
    cases["replicas"] = lambda: given.check_average(torch.nn.Linear(1, 1), foreign, None)
seen = []
for begins, call in cases.items():
    try:
        call()
        seen.append(f"{begins}: nothing raised")
    except ValueError as error:
        if not str(error).startswith(begins):
            seen.append(f"{begins}: {error}")
given.check_combine([x, x[:2]], journey), given.check_router(4, 2, 2, 1)
seen
"""


def test_errors_name_the_argument() -> None:
    assert virtual(nproc_per_node=2).run(Job(source=WRONG, timeout=BROKEN_SECONDS)).raise_if_failed().values == [[]] * 2


def test_with_one_seed_the_experts_of_ranks_are_those_of_one_process() -> None:
    def drawn(own: range) -> Experts:
        torch.manual_seed(3)
        return Experts(4, 6, 6, own)

    whole, parts = drawn(range(6)), [drawn(range(2 * rank, 2 * rank + 2)) for rank in range(3)]
    assert torch.equal(torch.cat([part.up for part in parts]), whole.up)
    assert torch.equal(torch.cat([part.down for part in parts]), whole.down)
    assert len(whole.up.unique()) > 100  # no expert is like another


def test_dropped_choices_are_counted_and_count_for_no_expert() -> None:
    experts, kept = torch.tensor([[0, 2], [2, 1]]), torch.tensor([[True, False], [True, True]])
    routing = Routing(experts, torch.ones(2, 2), kept, torch.zeros(()), 4)
    assert routing.counts.tolist() == [1, 1, 1, 0]
    assert int(routing.dropped) == 1
