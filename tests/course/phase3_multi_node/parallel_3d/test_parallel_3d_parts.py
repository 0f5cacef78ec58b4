"""Given parts of 3D parallelism: bad arguments name themselves, layers are made alike, and embedding and head share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from waiting import BROKEN_SECONDS

from labkit import Job, catalogue, virtual
from labkit.course.phase3_multi_node.parallel_3d.given import Coordinates, check_rank, check_trainer
from labkit.models.gpt import GPTConfig
from labkit.models.gpt_layers import gpt_layers, share

SMALL = {"layers": 2, "heads": 4, "width": 8, "vocab": 10, "context": 3}


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("config", {"heads": 2}),
        ("config", {"vocab": 3}),
        ("config", {"layers": 1}),
        ("microbatches", {"microbatches": 0}),
        ("chunks", {"chunks": 2}),
        ("name", {"schedule": "zigzag"}),
        ("data_parallel", {"data_parallel": "zero"}),
    ],
)
def test_a_trainer_that_does_not_fit_is_refused(name: str, changed: dict[str, Any]) -> None:
    sizes: dict[str, Any] = {**SMALL, **{key: value for key, value in changed.items() if key in SMALL}}
    more = {"microbatches": 2, "schedule": "1f1b", "chunks": 1, "data_parallel": "ddp", **changed}
    options = {key: value for key, value in more.items() if key not in SMALL}
    with pytest.raises(ValueError, match=f"^{name} must"):
        check_trainer(GPTConfig(**sizes), Coordinates(1, 4, 4), **options)


def test_a_rank_or_axis_that_is_not_in_the_mesh_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^rank must"):
        check_rank(8, "tp", Coordinates(2, 2, 2))
    with pytest.raises(ValueError, match=r"^axis must"):
        check_rank(0, "ep", Coordinates(2, 2, 2))


def test_layers_are_made_alike_and_share_the_ends() -> None:
    config = GPTConfig(**SMALL)  # type: ignore[arg-type]  # no bool among them
    state = torch.get_rng_state()
    first, again = ([plan.make() for plan in gpt_layers(config, 3)] for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert sum(p.numel() for layer in first for p in layer.parameters()) == config.parameters
    for one, other in zip(first, again, strict=True):
        torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=0, atol=0)
    embedding, head = (dict(layer.named_parameters()) for layer in (first[0], first[-1]))
    assert torch.equal(embedding["token_embedding.weight"], head["head.weight"])
    assert len(share(first[1:])) == 1 and len(share(first[1:-1])) == 0
    (shared,) = share(first)
    assert shared is first[0].token_embedding.weight and shared is first[-1].head.weight  # type: ignore[union-attr]


# a pass of two microbatches in `no_sync()`, whose last backward averages, while the caller finishes
DEFERRED = """
import torch, torch.distributed as dist
from labkit.exercises import ddp

dist.init_process_group()
model = torch.nn.Linear(2, 1, bias=False)
wrapped = ddp.DistributedDataParallel(model, gradient_as_bucket_view={view})
seen = []
for _ in range(3):
    model.weight.grad = None
    with wrapped.no_sync():
        outputs = [wrapped(torch.full((1, 2), float(10 * number + dist.get_rank()))) for number in range(2)]
        outputs[0].sum().backward()
        wrapped.synchronize_next_backward()
        outputs[1].sum().backward()
    wrapped.finish_gradient_synchronization()
    seen.append(model.weight.grad.flatten().tolist())
seen
"""


@pytest.mark.parametrize("view", [False, True])
def test_the_last_backward_of_a_pipeline_averages_all_microbatches(view: bool) -> None:
    exercise = catalogue.find("ddp")
    modules = {one.name: one.source("solution")[0] for one in (*exercise.builds_on, exercise)}
    run = virtual(nproc_per_node=3).run(Job(source=DEFERRED.format(view=view), modules=modules, timeout=BROKEN_SECONDS))
    # each rank adds its number twice, and 10
    assert run.raise_if_failed().values == [[[12.0, 12.0]] * 3] * 3
