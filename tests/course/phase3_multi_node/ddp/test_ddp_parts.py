"""The given parts of exercise 11: what ranks agree on, the graph's parameters, the bucket."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from waiting import BROKEN_SECONDS

from labkit import Job, virtual
from labkit.course.arguments import positive, require
from labkit.course.phase3_multi_node.ddp.given.arguments import require_path
from labkit.course.phase3_multi_node.ddp.given.backward_pass import EndOfBackward, parameters_in_graph, weak
from labkit.course.phase3_multi_node.ddp.given.bucket import Bucket

AGREE = """
import torch, torch.distributed as dist
from torch import nn
from labkit.course.phase3_multi_node.ddp.given import agreement

dist.init_process_group()
rank = dist.get_rank()
tensors = [
    torch.full((3,), rank, dtype=torch.int8), torch.full((2, 3), rank + 0.5).t(), torch.tensor(rank, dtype=torch.int64),
    torch.full((2,), rank == 0), torch.full((2,), complex(rank, 1)), torch.zeros(0),
    torch.full((), rank + 0.25).bfloat16(), torch.full((3, 2), rank + 0.75)[:1, 0],
]
agreement.broadcast_together(tensors)
alike = [torch.full((2, 3), rank + 0.5).t(), torch.tensor(rank + 0.25)]
agreement.broadcast_together(alike)
tensors += alike
parameters = [nn.Parameter(torch.zeros(1)) for _ in range(3)]
order = agreement.as_on_first_rank(parameters[::-1] if rank == 0 else parameters, parameters)
flags = agreement.true_on_some_rank([False, rank == 1, True], torch.device("cpu"))


def fails():
    raise FileNotFoundError("nothing there")


try:
    agreement.done_by_first_rank(fails)
except FileNotFoundError as error:
    raised = str(error)
found = agreement.done_by_first_rank(lambda: {"rank": rank})
places = [next(i for i, q in enumerate(parameters) if q is p) for p in order]
[[t.flatten()[-1].item() for t in tensors if t.numel()], places, flags, raised, found]
"""


def test_ranks_agree() -> None:
    run = virtual(nproc_per_node=3).run(Job(source=AGREE, timeout=BROKEN_SECONDS)).raise_if_failed()
    first = [0, 0.5, 0, True, 1j, 0.25, 0.75, 0.5, 0.25]
    assert run.values == [[first, [2, 1, 0], [False, True, True], "nothing there", {"rank": 0}]] * 3
    # one broadcast for tensors of six dtypes
    assert run.trace.collectives(0)[0].nbytes == 3 + 24 + 8 + 2 + 16 + 2 + 4
    assert run.trace.collectives(0)[1].nbytes == 24 + 4


@dataclass
class Outputs:
    one: Tensor
    more: dict[str, Any]


def test_the_graph_s_parameters_are_found_in_nested_outputs() -> None:
    used = [nn.Parameter(torch.ones(1)) for _ in range(3)]
    unused = nn.Parameter(torch.ones(1))
    outputs = Outputs(used[0] * 2, {"a": [used[1].exp(), (used[2], "text", None)]})
    assert parameters_in_graph(outputs) == set(used)
    assert parameters_in_graph([(unused * 2).detach(), 3]) == set()


def test_the_end_of_a_pass_comes_once_and_after_all_hooks() -> None:
    calls: list[str] = []
    end = EndOfBackward(lambda: calls.append("end"))
    weights = [nn.Parameter(torch.ones(1)) for _ in range(2)]
    for weight in weights:
        weight.register_post_accumulate_grad_hook(lambda _: (calls.append("hook"), end.ask())[0])
    for _ in range(2):
        sum(weights).sum().backward()  # type: ignore[union-attr]
    assert calls == ["hook", "hook", "end"] * 2


def test_a_hook_does_not_keep_its_owner_alive() -> None:
    class Owner:
        def called(self, parameter: nn.Parameter) -> None:
            calls.append(parameter)

    calls: list[nn.Parameter] = []
    owner = Owner()
    hook, parameter = weak(owner.called), nn.Parameter(torch.ones(1))
    hook(parameter)
    del owner
    gc.collect()
    hook(parameter)
    assert len(calls) == 1


def test_a_bucket_has_its_parameters_gradients_in_one_buffer() -> None:
    parameters = [nn.Parameter(torch.zeros(2, 3)), nn.Parameter(torch.zeros(4))]
    bucket = Bucket(1, parameters, is_last=True)
    bucket.view(parameters[1]).fill_(2)
    assert bucket.buffer().tolist() == [0.0] * 6 + [2.0] * 4
    assert [gradient.shape for gradient in bucket.gradients()] == [(2, 3), (4,)]
    assert bucket.view(parameters[0]) is bucket.gradients()[0]
    bucket.pending = torch.futures.Future()
    bucket.pending.set_result([torch.arange(10.0)])
    bucket.wait()
    assert bucket.view(parameters[1]).tolist() == [6.0, 7.0, 8.0, 9.0]
    bucket.missing.clear()
    bucket.start_over()
    assert bucket.missing == set(parameters)
    assert (bucket.index(), bucket.is_last(), bucket.pending) == (1, True, None)


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), True, "25", None])
def test_sizes_must_be_above_0(value: object) -> None:
    with pytest.raises(ValueError, match="bucket_cap_mb"):
        require("bucket_cap_mb", value, positive)


@pytest.mark.parametrize("path", ["", "folder/", 3, None])
def test_a_path_must_name_a_file(path: object) -> None:
    with pytest.raises(ValueError, match="path"):
        require_path(path)
