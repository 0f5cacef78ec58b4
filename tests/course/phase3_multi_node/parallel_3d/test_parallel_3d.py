"""The solution of parallel_3d trains like one process, on any mesh, on virtual and local ranks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from waiting import BROKEN_SECONDS

from labkit import Job, catalogue, local, virtual
from labkit.models.gpt import GPTConfig
from labkit.models.gpt_layers import gpt_layers, share

EXERCISE = catalogue.find("parallel_3d")
MODULES = {one.name: one.source("solution")[0] for one in (*EXERCISE.builds_on, EXERCISE, catalogue.find("zero"))}
SIZES = {"layers": 4, "heads": 4, "width": 16, "vocab": 23, "context": 6}

# each rank trains with its part of the batch; returns its losses and its layers' whole parameters
TRAINED = """
from functools import partial
import torch, torch.distributed as dist
from labkit.exercises import parallel_3d, zero
from labkit.models.gpt import GPTConfig
from labkit.course.phase3_multi_node.parallel_3d.given import whole_layer

MAKE = {{
    "ddp": lambda parameters, group: torch.optim.SGD(parameters, lr=0.3, momentum=0.9),
    "optimizer": lambda parameters, group: zero.ZeroOptimizer(
        parameters, torch.optim.SGD, 1, group, lr=0.3, momentum=0.9
    ),
}}
dist.init_process_group({backend!r})
mesh = parallel_3d.build_mesh(*{mesh})
trainer = parallel_3d.Parallel3DTrainer(
    GPTConfig(**{sizes}), mesh, MAKE[{data_parallel!r}], {microbatches}, {schedule!r}, {chunks},
    data_parallel={data_parallel!r}, seed=5, dtype=torch.{dtype},
)
generator = torch.Generator().manual_seed(0)
losses = []
for _ in range(2):
    tokens = torch.randint(23, ({samples}, 7), generator=generator).chunk(mesh.sizes.dp)[mesh.coordinates().dp]
    loss = trainer.train_step(tokens[:, :-1], tokens[:, 1:])
    losses.append(None if loss is None else float(loss))
stages = [stage.index for stage in trainer.stages]
losses, stages, [[list(whole_layer(layer).parameters()) for layer in layers] for layers in trainer.layers]
"""


def one_process(samples: int, dtype: torch.dtype) -> tuple[list[float], list[list[Tensor]]]:
    layers = [plan.make() for plan in gpt_layers(GPTConfig(**SIZES), 5, dtype)]
    share(layers)
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    generator, losses = torch.Generator().manual_seed(0), []
    for _ in range(2):
        tokens = torch.randint(23, (samples, 7), generator=generator)
        loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [list(layer.parameters()) for layer in layers]


def equal(cluster: object, mesh: tuple[int, int, int], backend: str = "gloo", **how: object) -> None:
    options = {
        "schedule": "1f1b", "chunks": 1, "microbatches": 4, "samples": 12, "dtype": "float64", "data_parallel": "ddp",
        **how,
    }  # fmt: skip
    cell = TRAINED.format(mesh=mesh, sizes=SIZES, backend=backend, **options)
    run = cluster.run(Job(source=cell, modules=MODULES, timeout=BROKEN_SECONDS)).raise_if_failed()  # type: ignore[attr-defined]
    dtype = getattr(torch, str(options["dtype"]))
    expected, wanted = one_process(int(str(options["samples"])), dtype)
    near = {"atol": 1e-9, "rtol": 1e-7} if dtype is torch.float64 else {"atol": 2e-3, "rtol": 2e-3}
    seen: dict[int, list[list[Tensor]]] = {}
    for losses, stages, layers in run.values:
        seen |= dict(zip(stages, layers, strict=True))
        if losses[0] is not None:
            torch.testing.assert_close(losses, expected, **near)
    found = [layer for stage in sorted(seen) for layer in seen[stage]]
    torch.testing.assert_close([[p.detach() for p in layer] for layer in found],
                               [[p.detach() for p in layer] for layer in wanted], **near)  # fmt: skip


@pytest.mark.parametrize(
    ("mesh", "how"),
    [
        ((1, 1, 1), {}),
        ((3, 1, 1), {"backend": "nccl"}),
        ((1, 3, 1), {"microbatches": 5}),
        ((1, 1, 4), {}),
        ((2, 2, 2), {"dtype": "float32", "schedule": "gpipe", "backend": "nccl"}),
        ((2, 2, 1), {"schedule": "interleaved", "chunks": 2}),
        ((1, 6, 2), {"microbatches": 2}),
        ((3, 2, 1), {"data_parallel": "optimizer"}),
    ],
)
def test_the_solution_trains_like_one_process(mesh: tuple[int, int, int], how: dict[str, object]) -> None:
    equal(virtual(nproc_per_node=mesh[0] * mesh[1] * mesh[2]), mesh, **how)  # type: ignore[arg-type]


def test_local_ranks_compute_the_same() -> None:
    equal(local(nproc_per_node=4), (2, 2, 1))
