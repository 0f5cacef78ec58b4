"""Base of `ImageTrainer`: its arguments, batches for training and evaluation, and the files with metrics."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset

from labkit.course.phase4_production.image_classification.given.arguments import require_recipe
from labkit.course.phase4_production.image_classification.given.components import Progress
from labkit.course.phase4_production.image_classification.given.trainer_base import TrainerBase
from labkit.data import ImageSets, set_epoch


class Recipe:
    """Base of `ImageTrainer`. See there for the arguments."""

    sampler_type: Any
    prefetch_type: Any
    """Exercise 03's classes: a sampler and a loader."""

    def __init__(
        self,
        trainer: TrainerBase,
        images: ImageSets,
        batch_size: int,
        epochs: int,
        learning_rate: float,
        *,
        warmup_epochs: float = 0,
        base_batch_size: int = 256,
        workers: int = 0,
        seed: int = 0,
    ) -> None:
        require_recipe(batch_size, epochs, learning_rate, warmup_epochs, base_batch_size)
        self.trainer, self.images, self.batch_size, self.epochs = trainer, images, batch_size, epochs
        self.workers = workers
        ranks = trainer.ranks, trainer.rank
        self.sampler = self.sampler_type(len(images.training), *ranks, shuffle=True, seed=seed, drop_last=True)
        self.steps_per_epoch = -(-(len(images.training) // trainer.ranks) // batch_size)
        if not self.steps_per_epoch:
            raise ValueError(f"images must have a training image for each of {trainer.ranks} ranks, got too few")
        self.learning_rate = learning_rate
        self.peak_learning_rate = learning_rate * batch_size * trainer.ranks / base_batch_size
        """Learning rate after the warm-up, in proportion to the global batch (Goyal et al. 2017)."""
        self.warmup_steps = round(warmup_epochs * self.steps_per_epoch)
        self.total_steps = epochs * self.steps_per_epoch
        self.progress = Progress(self.sampler)
        trainer.extra["progress"] = self.progress

    # Its helpers ------------------------------------------------------------------------------------------------------

    def loader(self, dataset: Any, **options: Any) -> Any:
        """Return exercise 03's loader around torch's, whose start draws no random number of this process: a resumed
        training would draw another one."""
        options |= {"num_workers": self.workers, "generator": torch.Generator()}
        return self.prefetch_type(DataLoader(dataset, self.batch_size, **options), self.trainer.device)

    def training_batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this rank's remaining batches of the epoch; count their samples, and the time of waiting for them."""
        trainer, progress = self.trainer, self.progress
        set_epoch(self.images.training, epoch)
        trainer.model.train()
        batches = iter(self.loader(self.images.training, sampler=self.sampler))
        while True:
            began = trainer.now()
            with trainer.monitor.timed("input"):
                batch = next(batches, None)
            if batch is None:
                return
            trainer.totals.input_seconds = trainer.now() - began
            progress.taken += len(batch[1])  # for a checkpoint after this step
            yield batch

    def test_batches(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield this rank's share of the test images: images, labels, and which of them count, (batch,) bool.

        All ranks have equally many batches of equal size, since a sharded model computes on all ranks together. So some
        ranks have an image at the end that does not count.
        """
        trainer, test = self.trainer, self.images.test
        own = list(self.sampler_type(len(test), trainer.ranks, trainer.rank, shuffle=False))
        filled = [*own, 0][: -(-len(test) // trainer.ranks)]
        begin = 0
        for images, labels in self.loader(Subset(test, filled)):
            places = torch.arange(begin, begin + len(labels), device=labels.device)
            begin += len(labels)
            yield images, labels, places < len(own)

    @contextlib.contextmanager
    def testing(self) -> Iterator[None]:
        """Within the context, the model is in evaluation mode, without gradients, alike on all ranks; with the averaged
        weights, if there are any."""
        trainer = self.trainer
        trainer.make_alike()
        trainer.model.eval()
        averaged = contextlib.nullcontext() if trainer.average is None else trainer.average.applied()
        with torch.no_grad(), averaged:
            yield

    def begin(self, resume: bool) -> dict[str, Any]:
        """Load the latest checkpoint if `resume`; return an empty report."""
        if resume:
            self.trainer.load_checkpoint()
        return {}

    def save_if_due(self) -> None:
        """Save a checkpoint if its interval is over."""
        checkpointer = self.trainer.checkpointer
        if checkpointer is not None and checkpointer.should_checkpoint(self.trainer.steps):
            self.trainer.save_checkpoint()

    def end_epoch(self, sums: Tensor) -> dict[str, Any]:
        """Go on to the next epoch: save, as the best one or not; write `metrics.json`, and return its new entry.

        sums: (4,), over all test images: losses, top-1 hits, top-5 hits, and their number.
        """
        trainer, progress = self.trainer, self.progress
        loss, top1, top5 = (sums[:3] / sums[3]).tolist()
        best, progress.best = top1 > progress.best, max(top1, progress.best)
        progress.epoch, progress.taken = progress.epoch + 1, 0
        self.sampler.set_epoch(progress.epoch)
        if trainer.checkpointer is not None:
            trainer.save_checkpoint(is_best=best)
        figures = trainer.get_performance_metrics() if trainer.totals.steps else {}
        report = {"epoch": progress.epoch, "step": trainer.steps, "loss": loss, "top1": top1, "top5": top5}
        report |= {"strategy": trainer.strategy, **figures}
        if trainer.log_dir is not None and trainer.rank == 0:
            export(Path(trainer.log_dir), report, progress.best)
        return report


def export(folder: Path, report: dict[str, Any], best_top1: float) -> None:
    """Write `metrics.json` of a folder, whole or not at all; epochs before this one stay in it."""
    path = folder / "metrics.json"
    folder.mkdir(parents=True, exist_ok=True)
    before = json.loads(path.read_text())["epochs"] if path.exists() else []
    epochs = [*(line for line in before if line["epoch"] < report["epoch"]), report]
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({"epochs": epochs, "best_top1": best_top1}, indent=1) + "\n")
    os.replace(temporary, path)
