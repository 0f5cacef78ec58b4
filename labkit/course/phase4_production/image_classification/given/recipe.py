"""Base of `ImageTrainer`: its arguments, batches for training and evaluation, and the files with metrics."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset

from labkit.course.phase4_production.image_classification.given.arguments import require_recipe
from labkit.course.phase4_production.image_classification.given.components import Progress
from labkit.course.phase4_production.image_classification.given.trainer_base import TrainerBase
from labkit.course.phase4_production.image_classification.given.weight_average import weigh_norm_statistics
from labkit.course.training_run.console import duration
from labkit.course.training_run.json_line_file import warn_of_lost_log
from labkit.course.training_run.run import TERMINATED, TrainingEnds, TrainingRun
from labkit.data import ImageFolder, ImageSets, set_epoch


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
        self.run: TrainingRun | None = None
        """Run of the command, which prints and heeds signals; None: the recipe is silent."""
        self._bad_images = 0
        self._target: float | None = None
        self._named: set[str] = set()
        """Files that cannot be read, and are named already."""
        self._met = 0.0
        """Such files that ranks have met, one of several ranks several times."""
        self._epoch_images, self._epoch_began, self._epoch_seconds = 0, 0.0, 0.0

    def watch(self, run: TrainingRun, bad_images: int = 0, target_accuracy: float | None = None) -> None:
        """Print lines to a run's console; end with `TrainingEnds` on SIGTERM, and for what follows.

        bad_images: files, on all ranks together, that may be skipped since they cannot be read. target_accuracy: top-1
        with which the training ends.
        """
        self.run, self._bad_images, self._target = run, bad_images, target_accuracy

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
        self._epoch_images, self._epoch_began = 0, time.perf_counter()
        batches = iter(self.loader(self.images.training, sampler=self.sampler))
        while True:
            began = trainer.now()
            with trainer.monitor.timed("input"):
                batch = next(batches, None)
            if batch is None:
                self._epoch_seconds = time.perf_counter() - self._epoch_began
                return
            weigh_norm_statistics(trainer.model, trainer.steps)
            self._epoch_images += len(batch[1])
            trainer.totals.input_seconds = trainer.now() - began
            progress.taken += len(batch[1])  # for a checkpoint after this step
            yield batch

    def test_batches(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield this rank's share of the test images: images, labels, and which of them count, (batch,) bool.

        All ranks have equally many batches of equal size, since a sharded model computes on all ranks together. So some
        ranks have an image at the end that does not count. An image that cannot be read does not count either.
        """
        trainer, test = self.trainer, self.images.test
        own = list(self.sampler_type(len(test), trainer.ranks, trainer.rank, shuffle=False))
        filled = [*own, 0][: -(-len(test) // trainer.ranks)]
        begin = 0
        for images, labels in self.loader(Subset(test, filled)):
            places = torch.arange(begin, begin + len(labels), device=labels.device)
            begin += len(labels)
            yield images, labels, (places < len(own)) & (labels >= 0)

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
        trainer, progress = self.trainer, self.progress
        step = trainer.load_checkpoint() if resume else 0
        if self.run is not None:
            if step:
                text = f"resumed from step {step}, in epoch {progress.epoch + 1} of {self.epochs}"
                if progress.epoch >= self.epochs:
                    text = f"resumed from step {step}: all {self.epochs} epochs are done"
                self.run.console.line("resume", text, step=step, epoch=progress.epoch)
            elif resume:
                self.run.console.line("begin", "begins at step 0: there is no checkpoint yet", step=0)
        progress.begin_attempt()
        return {}

    def save_if_due(self) -> None:
        """Save a checkpoint if its interval is over, or if the program is to end."""
        checkpointer, saved = self.trainer.checkpointer, False
        if checkpointer is not None and checkpointer.should_checkpoint(self.trainer.steps):
            self.trainer.save_checkpoint()
            self.trainer.monitor.flush()
            saved = True
        if self.run is not None:
            done = self.trainer.steps - self.progress.epoch * self.steps_per_epoch
            text = f"epoch {self.progress.epoch + 1}/{self.epochs}"
            self.run.console.progress(text, min(done, self.steps_per_epoch), self.steps_per_epoch)
            self._heed(self.run, saved)

    def _heed(self, run: TrainingRun, saved: bool) -> None:
        """End the training on all ranks if one has received SIGTERM, or if too many files cannot be read."""
        sets = [data for data in (self.images.training, self.images.test) if isinstance(data, ImageFolder)]
        if not run.heeds_signals and not sets:
            return
        number = sum(int(data.unreadable.sum()) for data in sets)
        terminated, met = run.sums([run.is_terminated, number])
        if met > self._met:
            self._met = met
            self._name(run, sets)
        if len(self._named) > self._bad_images:
            first = f"{len(self._named)} images cannot be read, more than --bad-images {self._bad_images}"
            raise TrainingEnds(f"{first}: replace them, or allow more", status=1)
        if terminated and self.progress.epoch < self.epochs:
            if not saved:
                self.trainer.save_checkpoint()
            text = f"SIGTERM: saved after step {self.trainer.steps}; --resume goes on from there"
            raise TrainingEnds(text, status=TERMINATED)

    def _name(self, run: TrainingRun, sets: Sequence[ImageFolder]) -> None:
        """Print the files that cannot be read, each once. All ranks call this."""
        own = [
            [str(data.files[index][0]), data.problem(index)]
            for data in sets
            for index in data.unreadable.nonzero().flatten().tolist()
        ]
        for path, problem in sorted({tuple(one) for of_rank in run.exchange(own) for one in of_rank}):
            if path not in self._named:
                self._named.add(path)
                run.console.line(
                    "bad image", f"skipped {path}: {problem} ({len(self._named)} of {self._bad_images} allowed)",
                    path=path, problem=problem,
                )  # fmt: skip

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
        trainer.monitor.log_evaluation(trainer.steps, loss=loss, top1=top1, top5=top5)
        if trainer.checkpointer is not None:
            trainer.monitor.flush()
        if self._target is not None:
            report["seconds_to_target"] = progress.seconds if top1 >= self._target else None
        if trainer.log_dir is not None and trainer.rank == 0:
            export(Path(trainer.log_dir), report, progress.best)
        if self.run is not None:
            self._say_epoch(self.run, report)
            self._heed(self.run, trainer.checkpointer is not None)
            if (seconds := report.get("seconds_to_target")) is not None:
                text = f"top-1 of {self._target:.2%} reached in {seconds:.1f} s, after epoch {progress.epoch}"
                raise TrainingEnds(text, report=report)
            if self._target is not None and progress.epoch == self.epochs:
                self.run.console.line("target missed", f"top-1 of {self._target:.2%} was not reached")
        return report

    def _say_epoch(self, run: TrainingRun, report: dict[str, Any]) -> None:
        """Print the line of an epoch. images/s: of all ranks, in training."""
        epoch = self.progress.epoch
        rate = self.trainer.ranks * self._epoch_images / max(self._epoch_seconds, 1e-9)
        # a resumed epoch has fewer images than the others
        share = self._epoch_images / (len(self.images.training) // self.trainer.ranks)
        left = (self.epochs - epoch) * (time.perf_counter() - self._epoch_began) / max(share, 1e-9)
        run.console.line(
            "epoch",
            f"epoch {epoch}/{self.epochs}  loss {report['loss']:.4f}  top-1 {report['top1']:.2%}  "
            f"{rate:,.0f} images/s  {duration(left)} left",
            **report, images_per_second=rate, seconds=self.progress.seconds, seconds_left=left,
        )  # fmt: skip


def export(folder: Path, report: dict[str, Any], best_top1: float) -> None:
    """Write `metrics.json` of a folder, whole or not at all; epochs before this one stay in it.

    If it cannot be written, print why.
    """
    path = folder / "metrics.json"
    temporary = path.with_suffix(".tmp")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        before = json.loads(path.read_text())["epochs"] if path.exists() else []
        epochs = [*(line for line in before if line["epoch"] < report["epoch"]), report]
        temporary.write_text(json.dumps({"epochs": epochs, "best_top1": best_top1}, indent=1) + "\n")
        os.replace(temporary, path)
    except OSError as error:
        warn_of_lost_log(path, error)
