"""Right: an all-reduce for each gradient, checkpoints written behind training, one loop over all steps."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from labkit.clusters import Job
from labkit.clusters.local import local
from labkit.course.phase4_production.fault_tolerance import given

__all__ = ["ElasticTraining", "goodput", "young_daly_interval"]


def young_daly_interval(checkpoint_seconds: float, gpu_mtbf_seconds: float, num_gpus: int) -> given.Intervals:
    """Return the seconds of training between checkpoints with which a job makes the most progress.

    checkpoint_seconds: training stands still so long for each. gpu_mtbf_seconds: mean time between failures of one GPU,
    with its share of everything else; any failure stops all `num_gpus`. young: of first order (Young 1974, A First
    Order Approximation to the Optimum Checkpoint Interval). daly: of higher order (Daly 2006, A Higher Order Estimate
    of the Optimum Checkpoint Interval for Restart Dumps, equation 37), for checkpoints that are not short.
    """
    given.check_failures(checkpoint_seconds, gpu_mtbf_seconds, num_gpus)
    mtbf = gpu_mtbf_seconds / num_gpus
    young = math.sqrt(2 * checkpoint_seconds * mtbf)
    ratio = checkpoint_seconds / (2 * mtbf)
    daly = young * (1 + math.sqrt(ratio) / 3 + ratio / 9) - checkpoint_seconds if ratio < 1 else mtbf
    return given.Intervals(young, daly)


def goodput(
    interval_seconds: float, checkpoint_seconds: float, restart_seconds: float, gpu_mtbf_seconds: float, num_gpus: int
) -> float:
    """Return which share of the time, from 0 to 1, is progress that lasts: not saving, restarting, or lost work.

    interval_seconds: training between two checkpoints. restart_seconds: from a failure until training goes on, for
    detection, restart and loading; it may fail, too. Times between failures are exponential (Daly 2006, equation 20).
    """
    given.check_goodput(interval_seconds, checkpoint_seconds, restart_seconds, gpu_mtbf_seconds, num_gpus)
    mtbf = gpu_mtbf_seconds / num_gpus
    period = interval_seconds + checkpoint_seconds
    return interval_seconds * math.exp(-(restart_seconds + period) / mtbf) / (mtbf * -math.expm1(-period / mtbf))


class ElasticTraining:
    """Trains on all ranks so that a failure costs at most the steps since the last checkpoint, and changes no loss.

    checkpointer: exercise 20's, whose folder gets the journal of all attempts, too; or that folder, to launch only.
    hang_timeout: seconds after which a rank that others wait for counts as dead: longer than a step and a checkpoint.
    """

    def __init__(self, checkpointer: Any, hang_timeout: float = 600.0) -> None:
        self.journal = given.Journal(given.checkpoint_folder(checkpointer, hang_timeout) / "journal.jsonl")
        self.checkpointer, self.hang_timeout = checkpointer, hang_timeout

    def train_step(
        self, model: nn.Module, optimizer: Optimizer, criterion: Callable[..., Tensor], inputs: Tensor, targets: Tensor
    ) -> float:
        """Take one step with this rank's samples of the global batch; return the mean loss of all its samples.

        It is the step of one process with the whole batch; ranks may have different numbers of samples. Raises an error
        `hang_timeout` seconds after this rank began to wait for another one that does not come.
        """
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        gradients = given.gradients(model)
        totals = torch.tensor([loss.item() * len(targets), len(targets)], dtype=torch.float64)
        dist.all_reduce(totals, group=self.group)
        mean_loss, samples = (totals / totals[1]).tolist()[0], totals[1].item()
        for gradient in gradients:
            gradient.mul_(len(targets) / samples)
            dist.all_reduce(gradient, group=self.group)
        optimizer.step()
        return float(mean_loss)

    def stop_repeated_crash(self) -> None:
        """Raise `given.RepeatedCrash` on all ranks if the last two attempts failed at the same step."""
        step = torch.zeros((), dtype=torch.int64)
        if dist.get_rank() == 0:
            *_, before, last = (None, None, *self.journal.failures())
            if before and last and (before.last_step, before.world_size) == (last.last_step, last.world_size):
                step.fill_(last.last_step + 1)
        dist.broadcast(step, 0, group=self.group)
        if step:
            raise given.RepeatedCrash(f"attempts fail at step {step.item()}")

    def resume(self, components: dict[str, Any]) -> int:
        """Load the latest checkpoint, or begin with the weights of rank 0; return how many steps are done.

        Rank 0 warns if the global batch has changed: losses then differ from those of an uninterrupted training.
        """
        sampler, step = components["sampler"], 0
        found = self.checkpointer.load_latest_checkpoint(components)
        if found is None:
            given.start_equal(components["model"])
        else:
            step = int(found)
        if dist.get_rank() == 0:
            before, now = sampler.loaded_global_batch_size, sampler.global_batch_size
            if found is not None and before != now:
                warnings.warn(f"global batch of {before} samples until step {step}, then of {now}", stacklevel=2)
            self.journal.begin(dist.get_world_size(), step)
        return step

    def train_with_fault_tolerance(
        self, model: nn.Module, optimizer: Optimizer, criterion: Callable[..., Tensor], loader: Any, num_epochs: int
    ) -> dict[int, float]:
        """Train from the latest checkpoint until `num_epochs` epochs are complete; return the losses of this attempt.

        loader: a DataLoader whose `batch_sampler`, a `given.GlobalBatchSampler`, has this rank's part of each global
        batch. criterion: the mean over samples. Errors of a step are raised: the agent then restarts all ranks.
        Raises ValueError before any communication, `given.RepeatedCrash` before any step.
        """
        given.check_training(self.checkpointer, model, optimizer, criterion, loader, num_epochs)
        sampler, losses = loader.batch_sampler, {}
        components = {"model": model, "optimizer": optimizer, "sampler": sampler}
        self.group = dist.new_group(timeout=timedelta(seconds=self.hang_timeout))
        self.stop_repeated_crash()
        step = self.resume(components)
        while sampler.epoch < num_epochs:
            for inputs, targets in given.batches(loader):
                losses[step + 1] = self.train_step(model, optimizer, criterion, inputs, targets)
                step += 1
                sampler.advance()
                if dist.get_rank() == 0:
                    self.journal.record(step, sampler.epoch, losses[step])
                ends = sampler.epoch == num_epochs - 1 and sampler.position == sampler.samples_per_epoch
                if self.checkpointer.should_checkpoint(step) or ends:
                    self.checkpointer.save_async(step, components)
            if sampler.epoch == num_epochs - 1:
                break
            sampler.set_epoch(sampler.epoch + 1)
        self.checkpointer.wait()
        if dist.get_rank() == 0:
            self.journal.finish()
        return losses

    def launch_elastic_training(self, config: given.ElasticConfig) -> given.ElasticRun:
        """Run `config.program` on all ranks of `config.cluster` under torch's elastic agents, restarts included.

        Raises `RankFailed` with the last attempt's error when no restart is left, or too few nodes.
        """
        job = Job(
            nnodes=config.max_nodes,
            min_nnodes=config.min_nodes,
            nproc_per_node=config.nproc_per_node,
            max_restarts=config.max_restarts,
            environment=config.environment,
            hang_timeout=None,
            **config.program_text(),
        )
        run = (config.cluster or local()).run(job).raise_if_failed()
        return given.ElasticRun.of(run, self.journal)
