"""Exercise 26 on a rank, for its checks: plans, short trainings of a small sibling, and the results of one process.

    planned(cases)                              on a rank: the results of `plan`, plain data
    trained(sizes, layout, ...)                 on a rank: build, train, save and load; results, plain data
    one_process(sizes, layout, ...)             losses and weights of the same steps without any parallelism

Ranks of a check share no folder. So checkpoints are kept in the ranks' memory, by a stand-in for exercise 20, and go
through the check to the ranks that load them.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.course.phase4_production.checkpointing.given.errors import CheckpointError
from labkit.course.phase4_production.llm_13b.given import (
    MasterAdamW,
    Report,
    TrainingPlan,
    held_out_loss,
    tokens_of_step,
    windows,
)
from labkit.hardware import Topology, topology
from labkit.models.gpt_layers import gpt_layers, share
from labkit.predict import Plan, Transformer

VOCAB = 256


def model_of(layers: int, width: int, heads: int, sequence: int, vocab: int = VOCAB) -> Transformer:
    """Return a causal GPT with tied embeddings."""
    return Transformer(f"gpt of {layers} layers", layers, width, heads, vocab, sequence, tied=True)


def cluster_of(preset: str, nnodes: int, **changes: Any) -> Topology:
    """Return that many nodes of a preset. changes: new values of its fields; "memory_gb": that of its GPUs."""
    made = replace(topology(preset), nnodes=nnodes)
    if "memory_gb" in changes:
        made = replace(made, gpu=replace(made.gpu, memory_gb=changes.pop("memory_gb")))
    if "storage" in changes:
        made = topology(preset, nnodes=nnodes, storage=changes.pop("storage"))
    return replace(made, **changes)


def planned(cases: Sequence[Sequence[Any]]) -> list[Any]:
    """On a rank: plan each of [model's sizes, preset, nnodes, changes, batch, tokens]; return plain data, or errors."""
    from labkit.exercises import llm_13b

    results: list[Any] = []
    for sizes, preset, nnodes, changes, batch, tokens in cases:
        try:
            plan = llm_13b.plan(model_of(*sizes), cluster_of(preset, nnodes, **changes), batch, tokens)
        except ValueError as error:
            results.append(f"ValueError: {error}")
        else:
            results.append({
                "layout": asdict(plan.layout), "steps": int(plan.steps), "forecast": asdict(plan.forecast),
                "layers": int(plan.model.layers), "learning_rate": float(plan.learning_rate),
            })  # fmt: skip
    return results


def forecasted(cases: Sequence[Sequence[Any]]) -> list[dict[str, float]]:
    """On a rank: forecast for each of [model's sizes, preset, nnodes, changes, layout, steps]."""
    from labkit.exercises import llm_13b
    from labkit.predict import predict

    forecasts = []
    for sizes, preset, nnodes, changes, layout, steps in cases:
        step = predict(model_of(*sizes), Plan(**layout), cluster_of(preset, nnodes, **changes))
        forecasts.append(asdict(llm_13b.forecast(step, steps)))
    return forecasts


# Training -------------------------------------------------------------------------------------------------------------


class MemoryStorage:
    """Names of folders, as `checkpoint_folders` lists them."""

    def __init__(self, folders: Sequence[str]) -> None:
        self.folders = folders

    def list(self, path: str) -> dict[str, int]:
        return dict.fromkeys(self.folders, 0)


class MemoryCheckpointer:
    """Exercise 20's `save_checkpoint` and `load_first`, in this rank's memory: `saved[folder]` has bytes."""

    saved: dict[str, Any]
    places: list[str]
    """Folders of the checkpointers that were created."""

    def __init__(self, checkpoint_dir: str, keep_last_n: int = 3, *, group: Any) -> None:
        self.group, self.storage = group, MemoryStorage([])
        self.storage.folders = list(self.saved)
        self.places.append(checkpoint_dir.replace("\\", "/").split("/")[-1])

    def save_checkpoint(self, step: int, components: Any, metrics: Any = None) -> str:
        states = {name: component.state_dict() for name, component in components.items()}
        buffer = io.BytesIO()
        torch.save(states, buffer)
        folder = f"step_{step:08}"
        self.saved[folder] = torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)
        self.storage.folders = list(self.saved)
        return folder

    save_async = save_checkpoint

    def wait(self) -> None:
        """Return at once: `save_async` has already written everything."""

    def load_first(self, components: Any, order: Callable[[Any], Sequence[str]]) -> int | None:
        names = list(order(self.storage))
        for folder in names:
            ours: list[Any] = [None] * dist.get_world_size(self.group)
            dist.all_gather_object(ours, len(self.saved.get(folder, ())), group=self.group)
            if 0 in ours:
                continue
            states = torch.load(io.BytesIO(bytes(self.saved[folder].numpy())), weights_only=False)
            for name, component in components.items():
                component.load_state_dict(states[name])
            return int(folder[5:])
        if names:
            raise CheckpointError(f"none of {', '.join(names)} can be loaded")
        return None

    def load_latest_checkpoint(self, components: Any) -> int | None:
        return self.load_first(components, lambda storage: sorted(storage.folders, reverse=True))


def plan_of(sizes: Sequence[int], layout: dict[str, Any], steps: int, **options: Any) -> TrainingPlan:
    """Return a plan of a small sibling; layout: fields of `labkit.predict.Plan`."""
    layout = {"zero": 1, "precision": "fp32", **layout}
    return TrainingPlan(model_of(*sizes), Plan(**layout), steps, **{"warmup_steps": 2, **options})


def held_state(trainer: Any) -> int:
    """Return the bytes of optimizer state on this rank."""
    inner = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
    values = [value for state in inner.state.values() for value in state.values() if isinstance(value, Tensor)]
    return sum(value.untyped_storage().nbytes() for value in values)


def trained(
    sizes: Sequence[int], layout: dict[str, Any], steps: int, options: dict[str, Any], saved: Any = None,
    own_loop: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """On a rank: train; return losses, first step, loss on held-out text, whole weights, and checkpoints.

    saved: checkpoints, by folder, None: the plan has no folder. own_loop: `loop` below instead of `train`.
    """
    from labkit import exercises

    llm_13b: Any = exercises.llm_13b
    if saved is not None:
        options = {**options, "checkpoint_dir": "run"}
    memory: Any = type("Checkpointer", (MemoryCheckpointer,), {"saved": dict(saved or {}), "places": []})
    llm_13b.MeshCheckpointer.checkpointer_type = memory
    seen: dict[str, Any] = {"calls": 0, "rates": [], "batches": []}
    build = llm_13b.build

    def watched(plan: TrainingPlan) -> Any:
        trainer = seen["trainer"] = build(plan)
        seen["dtypes"] = sorted({str(one.dtype) for stage in trainer.stages for one in stage.module.parameters()})
        for block in (module for stage in trainer.stages for module in stage.module.modules()):
            if hasattr(block, "norm_attention"):
                block.register_forward_pre_hook(lambda *_: seen.__setitem__("calls", seen["calls"] + 1))
        step = trainer.train_step

        def train_step(batch: Tensor, target: Tensor) -> Any:
            seen["rates"].append([float(group["lr"]) for group in trainer.optimizer.param_groups])
            seen["batches"].append([batch.clone(), target.clone()])
            return step(batch, target)

        trainer.train_step = train_step
        return trainer

    llm_13b.build = watched
    results: dict[str, Any] = {}
    try:
        plan = plan_of(sizes, layout, steps, **options)
        report = loop(llm_13b, plan) if own_loop else llm_13b.train(plan)
        results = {
            "losses": {int(step): float(loss) for step, loss in report.losses.items()},
            "first_step": int(report.first_step), "held_out_loss": report.held_out_loss,
            "weights": [] if report.model is None else [one.detach().clone() for one in _unique(report.model)],
        }  # fmt: skip
    except CheckpointError:
        results = {"error": "CheckpointError"}
    finally:
        llm_13b.build = build
    results |= {name: seen[name] for name in ("calls", "rates", "batches", "dtypes")}
    results["state"] = held_state(seen["trainer"])
    return {**results, "saved": memory.saved, "places": memory.places}


def loop(llm_13b: Any, plan: TrainingPlan) -> Any:
    """Train by `build` and `MeshCheckpointer` alone, as `train` does."""
    trainer, report = llm_13b.build(plan), Report()
    place, size = trainer.mesh.coordinates().dp, trainer.mesh.sizes.dp
    checkpoints = llm_13b.MeshCheckpointer(plan.checkpoint_dir, trainer) if plan.checkpoint_dir else None
    report.first_step = checkpoints.load() if checkpoints else 0
    for step in range(report.first_step, plan.steps):
        for group in trainer.optimizer.param_groups:
            group["lr"] = plan.learning_rate_at(step)
        tokens = tokens_of_step(plan, step).chunk(size)[place]
        report.begin_step()
        report.end_step(step, trainer.train_step(tokens[:, :-1], tokens[:, 1:]))
        if checkpoints and plan.checkpoint_every:
            checkpoints.save(step + 1)
    return report.finish(trainer, plan.held_out)


def _unique(model: nn.Module) -> list[Tensor]:
    """Return the parameters of a whole model, embedding first; the head's matrix is the embedding's."""
    return [one for name, one in model.named_parameters() if not name.endswith("head.weight")]


def one_process(sizes: Sequence[int], layout: dict[str, Any], steps: int, **options: Any) -> dict[str, Any]:
    """Return losses of all steps, and the weights at the end, of one process with the whole batch."""
    plan = plan_of(sizes, layout, steps, **options)
    layers = [one.make() for one in gpt_layers(plan.config, plan.seed)]
    share(layers)
    model, losses = nn.Sequential(*layers), []
    optimizer = MasterAdamW(model.parameters())
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = plan.learning_rate_at(step)
        tokens = tokens_of_step(plan, step)
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return {"losses": losses, "weights": [one.detach() for one in _unique(model)]}


def loss_of(sizes: Sequence[int], weights: Sequence[Tensor], count: int) -> float:
    """Return the loss on held-out text of a model with these weights."""
    layers = [one.make() for one in gpt_layers(plan_of(sizes, {"batch": 1}, 1).config)]
    share(layers)
    model = nn.Sequential(*layers)
    with torch.no_grad():
        for parameter, weight in zip(_unique(model), weights, strict=True):
            parameter.copy_(weight)
    return held_out_loss(model, windows(sizes[3], count))


class TableModel(nn.Module):
    """Logits (batch, length, vocab) that depend on the last two tokens, and on how many the model sees."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.table = table
        self.longest = 0

    def forward(self, tokens: Tensor) -> Tensor:
        self.longest = max(self.longest, tokens.shape[1])
        before = F.pad(tokens, (1, 0))[:, :-1]
        return self.table[before, tokens] * (1 + tokens.shape[1] / 10)


def generated(table: Tensor, prompt: Tensor, count: int, context: int, seed: int) -> list[Any]:
    """On a rank: generate with a `TableModel`; return the tokens, and the most that it saw at once."""
    from labkit.exercises import llm_13b

    model = TableModel(table)
    tokens = llm_13b.generate(model, prompt, count, context, torch.Generator().manual_seed(seed))
    return [tokens.tolist(), model.longest]


def right_tokens(table: Tensor, prompt: Tensor, count: int, context: int, seed: int) -> list[int]:
    """Return the tokens that `generated` must return."""
    model, tokens, draw = TableModel(table), prompt.tolist(), torch.Generator().manual_seed(seed)
    for _ in range(count):
        logits = model(torch.tensor([tokens[-context:]]))[0, -1]
        tokens.append(int(torch.multinomial(logits.softmax(-1), 1, generator=draw)))
    return tokens
