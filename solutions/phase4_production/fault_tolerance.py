"""Training that survives the death of its ranks: restarted by an elastic agent, continued from the last checkpoint.

An agent on each node starts the ranks (torchrun). When one dies, all of them end and start again, on as many nodes as
are left. What makes the losses go on as if nothing had happened is in the training loop: it resumes at the exact
sample, with the same global batches at any number of ranks. How often to save is a balance between the time of saving
and the work that a failure costs (Young 1974, Daly 2006).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

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
    # TODO 1. With C seconds for a checkpoint and M seconds between failures of the job, Young's interval is sqrt(2CM).
    # Daly's is sqrt(2CM) * (1 + sqrt(C / 2M) / 3 + (C / 2M) / 9) - C for C < 2M, and M for longer checkpoints.
    ### BEGIN SOLUTION
    mtbf = gpu_mtbf_seconds / num_gpus
    young = math.sqrt(2 * checkpoint_seconds * mtbf)
    ratio = checkpoint_seconds / (2 * mtbf)
    daly = young * (1 + math.sqrt(ratio) / 3 + ratio / 9) - checkpoint_seconds if ratio < 1 else mtbf
    return given.Intervals(young, daly)
    ### END SOLUTION


def goodput(
    interval_seconds: float, checkpoint_seconds: float, restart_seconds: float, gpu_mtbf_seconds: float, num_gpus: int
) -> float:
    """Return which share of the time, from 0 to 1, is progress that lasts: not saving, restarting, or lost work.

    interval_seconds: training between two checkpoints. restart_seconds: from a failure until training goes on, for
    detection, restart and loading; it may fail, too. Times between failures are exponential (Daly 2006, equation 20).
    """
    given.check_goodput(interval_seconds, checkpoint_seconds, restart_seconds, gpu_mtbf_seconds, num_gpus)
    # TODO 1, too. An interval and its checkpoint take T seconds without a failure. If each failure costs a restart of R
    # seconds, and both can fail again, the expected time is M * exp(R / M) * (exp(T / M) - 1). A job of a million GPUs
    # must not overflow: divide by exp((R + T) / M) first; `math.expm1(x)` is exp(x) - 1, also for a small x.
    ### BEGIN SOLUTION
    mtbf = gpu_mtbf_seconds / num_gpus
    period = interval_seconds + checkpoint_seconds
    return interval_seconds * math.exp(-(restart_seconds + period) / mtbf) / (mtbf * -math.expm1(-period / mtbf))
    ### END SOLUTION


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
        message = given.Message([*gradients, loss])
        # TODO 2. `message.flat` has all gradients, the loss, and a 1 at its end. Times this rank's number of samples,
        # summed in `self.group`, and divided by its last element, it is the mean over the global batch.
        ### BEGIN SOLUTION
        message.flat *= len(targets)
        dist.all_reduce(message.flat, group=self.group)
        message.flat /= message.flat[-1].clone()
        ### END SOLUTION
        *means, mean_loss = message.views()
        for gradient, mean in zip(gradients, means, strict=True):
            gradient.copy_(mean)
        optimizer.step()
        return float(mean_loss.item())

    def stop_repeated_crash(self) -> None:
        """Raise `given.RepeatedCrash` on all ranks if the last two attempts failed at the same step."""
        # TODO 3. `self.journal.failures()` are the attempts of this launch that failed, with `last_step` and
        # `world_size`. Only rank 0's file counts: it decides for all (`dist.broadcast_object_list`).
        ### BEGIN SOLUTION
        crash: list[int | None] = [None]
        if dist.get_rank() == 0:
            ends = [(attempt.last_step, attempt.world_size) for attempt in self.journal.failures()[-2:]]
            crash = [ends[0][0] + 1] if len(ends) == 2 and ends[0] == ends[1] else [None]
        dist.broadcast_object_list(crash, src=0, group=self.group)
        if crash[0] is not None:
            raise given.RepeatedCrash(f"step {crash[0]} has failed twice in a row: mend its error, then start again")
        ### END SOLUTION

    def resume(self, components: dict[str, Any]) -> int:
        """Load the latest checkpoint, or begin with the weights of rank 0; return how many steps are done.

        Rank 0 warns if the global batch has changed: losses then differ from those of an uninterrupted training.
        """
        sampler, step = components["sampler"], 0
        # TODO 3, too. `load_latest_checkpoint` returns None if there is none: then `given.start_equal(model)`.
        # `sampler.loaded_global_batch_size` is that of the checkpoint. Rank 0 calls `self.journal.begin`.
        ### BEGIN SOLUTION
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
        ### END SOLUTION
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
        # TODO 4. `self.group` has all ranks, and a time-out: so a rank that hangs becomes an error of the others. Then
        # stop or resume. Train each epoch from `sampler.epoch` on (`set_epoch`), each of its `given.batches(loader)`.
        # After a step: `sampler.advance()`, rank 0's `journal.record`, `save_checkpoint` if `should_checkpoint`. (With
        # `save_async` a failure also costs the steps since the copy.) The end is saved, too: `journal.finish()`.
        ### BEGIN SOLUTION
        self.group = dist.new_group(timeout=timedelta(seconds=self.hang_timeout))
        self.stop_repeated_crash()
        step = saved = self.resume(components)
        for epoch in range(sampler.epoch, num_epochs):
            sampler.set_epoch(epoch)
            for inputs, targets in given.batches(loader):
                step, loss = step + 1, self.train_step(model, optimizer, criterion, inputs, targets)
                losses[step] = loss
                sampler.advance()
                if dist.get_rank() == 0:
                    self.journal.record(step, epoch, loss)
                if self.checkpointer.should_checkpoint(step):
                    self.checkpointer.save_checkpoint(step, components)
                    saved = step
        if saved < step:
            self.checkpointer.save_checkpoint(step, components)
        if dist.get_rank() == 0:
            self.journal.finish()
        ### END SOLUTION
        return losses

    def launch_elastic_training(self, config: given.ElasticConfig) -> given.ElasticRun:
        """Run `config.program` on all ranks of `config.cluster` under torch's elastic agents, restarts included.

        Raises `RankFailed` with the last attempt's error when no restart is left, or too few nodes.
        """
        # TODO 5. The job's nodes, ranks on each node, restarts and environment are those of `config`; it runs on
        # `config.cluster` or `local()`. With `hang_timeout=None` the ranks find a hang themselves.
        ### BEGIN SOLUTION
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
        ### END SOLUTION
        return given.ElasticRun.of(run, self.journal)
