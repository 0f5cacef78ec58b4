"""Report of a training, and the whole model put together from the parts of all ranks."""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from labkit.clusters.device import max_memory_allocated
from labkit.course.phase3_multi_node.parallel_3d.given import whole_layer
from labkit.course.phase4_production.llm_13b.given.plans import TrainingPlan
from labkit.course.phase4_production.llm_13b.given.text import held_out_loss, windows
from labkit.course.training_run.console import duration
from labkit.course.training_run.run import TERMINATED, TrainingEnds, TrainingRun, current_run
from labkit.torch_versions.fake_tensors import FakeTensor

LINES = 50
"""Lines that a whole training prints, at most about twice as many."""


@dataclass
class Report:
    """A training on this rank."""

    first_step: int = 0
    """Steps that were done before, by an earlier attempt."""
    losses: dict[int, float] = field(default_factory=dict)
    """Mean loss of each step of this attempt, by its number from 0; empty on ranks without the last stage."""
    step_seconds: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    """Most memory that this rank has held."""
    model: Any = None
    """The whole model, on every rank, if held-out text was read."""
    held_out_loss: float | None = None
    monitor: Any = None
    """Exercise 22's monitor of this rank, or None."""
    _stages: ProcessGroup | None = None
    """Ranks with the stages of one pipeline: the last one has the loss."""
    _samples: int = 0
    """Samples of a step that count on this rank: those of a model's copy count on its first rank."""
    _checkpoint_every: int = 0
    """Steps between two checkpoints; 0: there are none."""
    began: float = field(default_factory=time.perf_counter)
    """Time at which the running step began, by `time.perf_counter`."""

    @classmethod
    def of(cls, plan: TrainingPlan, trainer: Any, monitor_type: Any) -> Report:
        """Return the report of a training that begins; with a monitor, if the plan has a destination of metrics."""
        if not plan.metrics:
            return cls()
        mesh = trainer.mesh
        place, samples = mesh.coordinates(), plan.layout.batch // mesh.sizes.dp
        ranks, device = (dist.get_rank(), dist.get_world_size()), torch.get_default_device()
        monitor = plan.metrics.monitor(monitor_type, *ranks, device=device)
        return cls(
            monitor=monitor,
            _stages=mesh.groups["pp"],
            _samples=samples if place.pp == place.tp == 0 else 0,
            _checkpoint_every=plan.checkpoint_every,
        )

    def begin_step(self) -> None:
        """Take the time before a step."""
        if not self.step_seconds and (run := current_run()) is not None and run.resumes:
            run.console.line("resume", f"resumed from step {self.first_step}", step=self.first_step)
        self.began = time.perf_counter()

    def end_step(self, step: int, loss: Tensor | None) -> None:
        """Note a step's time, and its loss, None on ranks that do not have it. Fake tensors have no value."""
        self.step_seconds.append(time.perf_counter() - self.began)
        if loss is not None and not isinstance(loss, FakeTensor):
            self.losses[step] = float(loss)
        self.peak_bytes = max_memory_allocated()
        if self.monitor is not None:
            self.monitor.log_step_metrics(step, self._loss_of_pipeline(loss), self._samples)
            if self._checkpoint_every and (step + 1) % self._checkpoint_every == 0:
                self.monitor.flush()
        if (run := current_run()) is not None:
            self._watched(run, step)

    def _watched(self, run: TrainingRun, step: int) -> None:
        """Print a line now and then; on SIGTERM, save and end. All ranks call this after each step."""
        plan = run.plan
        mine = self.losses.get(step)
        terminated, total, count = run.sums([run.is_terminated, mine or 0.0, mine is not None])
        done = step + 1
        run.console.progress("steps", done, plan.steps)
        if done % max(1, plan.steps // LINES) == 0 or done == plan.steps:
            recent = self.step_seconds[-max(1, plan.steps // LINES) :]
            seconds = sum(recent) / len(recent)
            rate, left = plan.layout.batch * plan.model.sequence / seconds, (plan.steps - done) * seconds
            loss = total / count if count else math.nan
            run.console.line(
                "step", f"step {done}/{plan.steps}  loss {loss:.4f}  {rate:,.0f} tokens/s  {duration(left)} left",
                step=done, loss=loss, tokens_per_second=rate, seconds_left=left,
            )  # fmt: skip
        if terminated and run.heeds_signals and run.save is not None:
            run.save(done)
            raise TrainingEnds(f"SIGTERM: saved after step {done}; --resume goes on from there", status=TERMINATED)

    def _loss_of_pipeline(self, loss: Tensor | None) -> Tensor:
        """Return the loss on the ranks of all stages: one all-reduce of a number."""
        value = torch.zeros(()) if loss is None else loss.detach().float()
        if dist.get_world_size(self._stages) > 1:
            value = value.clone()
            dist.all_reduce(value, group=self._stages)
        return value

    def finish(self, trainer: Any, held_out: int) -> Report:
        """Test the whole model on held-out text, each rank with a part of the windows. All ranks call this."""
        if held_out:
            self.model = whole_model(trainer)
            mine = windows(trainer.config.context, held_out)[dist.get_rank() :: dist.get_world_size()]
            sums = torch.zeros(2, dtype=torch.float64)
            if len(mine):
                sums += torch.tensor([held_out_loss(self.model, mine), 1.0]) * len(mine)
            dist.all_reduce(sums)
            self.held_out_loss = float(sums[0] / sums[1])
        if self.monitor is not None:
            if self.held_out_loss is not None:
                self.monitor.log_evaluation(self.first_step + len(self.step_seconds), held_out_loss=self.held_out_loss)
            self.monitor.close()
        return self


def whole_model(trainer: Any) -> nn.Sequential:
    """Return the model as one process has it, on every rank: embedding, blocks, head. All ranks call this."""
    whole = [[_plain(whole_layer(layer)) for layer in layers] for layers in trainer.layers]
    mine = [(stage.index, layers) for stage, layers in zip(trainer.stages, whole, strict=True)]
    everybody: list[Any] = [None] * trainer.mesh.sizes.pp
    dist.all_gather_object(everybody, mine, group=trainer.mesh.groups["pp"])
    stages = dict(stage for own in everybody for stage in own)
    return nn.Sequential(*[layer for index in sorted(stages) for layer in stages[index]])


def _plain(layer: Any) -> Any:
    """Return a whole layer without a wrapper, and with a copy of what it shares with others."""
    return copy.deepcopy(getattr(layer, "block", layer)).requires_grad_(False)
