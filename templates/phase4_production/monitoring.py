"""Monitoring: which rank is slow and why, which parameter is no longer equal, whether memory leaks or a loss breaks.

A monitor must not cost what it watches over: it never waits for the GPU within a step, and ranks exchange the figures
of `interval` steps at once. Ranks are compared with their median and its spread, the median absolute deviation
(Hampel 1974), which a few bad values cannot move.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from math import isfinite
from statistics import median

import torch
from torch import Tensor, nn

from labkit.course.phase4_production.monitoring import given
from labkit.course.phase4_production.monitoring.given import Alarm, Step, Summary

__all__ = ["DistributedTrainingMonitor", "fingerprint", "outliers"]


def fingerprint(tensor: Tensor) -> Tensor:
    """Return a hash of the tensor's bits and their order: an int64 scalar on its device, which nobody waits for.

    One changed bit always changes it; in elements of up to 32 bits, more go unnoticed with a chance of at most 2**-32.
    """
    words = given.words(tensor)
    # TODO 1. The sum of the words stays the same if two elements change places. So multiply each by a weight of its
    # place, then sum: odd, since an even one pushes bits out of int64, and irregular. int64 overflows silently.
    # YOUR CODE HERE
    raise NotImplementedError()


class DistributedTrainingMonitor(given.Monitor):
    """Watches training on the ranks of a group, and raises alarms that name rank and cause, the same on all ranks.

    `given.Monitor` has the constructor, `DistributedTrainingMonitor(rank, world_size, interval=10, ...)`, and keeps the
    arguments. `with monitor.timed("input"):`, or "communication", times a part of a step; the rest is compute.
    `history` has the summaries of all ranks of the last 4 intervals.
    """

    def check_gradient_sync(self, model: nn.Module) -> list[Alarm]:
        """Compare parameters and gradients, to the bit: one all-gather of 8 bytes for each. All ranks call it.

        Returns an alarm for each tensor and rank that differs from more than half of the ranks; without such a
        majority, for all ranks. A missing gradient is not one of zeros. Buffers are not compared.
        """
        tensors = given.named_tensors(model)
        # This belongs to TODO 1, too. `given.gather_rows(row, self.group)` is a tensor [ranks, tensors].
        # YOUR CODE HERE
        raise NotImplementedError()
        return self.recorder.report(alarms)

    def detect_leaks(self) -> list[Alarm]:
        """Return the ranks whose memory rose by more than 3 % from each of the last 4 intervals to the next."""
        # TODO 2. The summary has the least memory of an interval.
        # YOUR CODE HERE
        raise NotImplementedError()

    def judge_loss(self, loss: float) -> str:
        """Return "loss not finite", "loss spike" or "", and remember a finite loss.

        A spike is 8 robust deviations above the median of the last 20 losses, of 10 at least. The deviation is not less
        than 5 % of the median, since losses may be all alike.
        """
        # This belongs to TODO 2, too.
        # YOUR CODE HERE
        raise NotImplementedError()

    def log_step_metrics(
        self, step: int, loss: float | Tensor, samples: int = 0, memory_bytes: int | None = None
    ) -> list[Alarm]:
        """End a step with this rank's loss, samples and memory; the next step begins. All ranks call it equally often.

        After each `interval` steps ranks exchange their summaries, and it returns the alarms that have begun.
        """
        given.check_step(step, loss, samples, memory_bytes)
        self.recorder.end_step(step, loss, samples, memory_bytes)
        if len(self.recorder.steps) < self.interval:
            return []
        self.history.append(given.gather_summaries(self.summarize(), self.device, self.group))
        self.link_seconds = self.measure_communication_time(self.probe_nbytes)
        alarms = self.detect_stragglers() + self.detect_leaks() + given.loss_alarms(self.history[-1])
        return self.recorder.begin_step(alarms)  # the monitor's own time belongs to no step

    def split(self, step: Step) -> tuple[float, float, float]:
        """Return the step's seconds of compute, communication and input."""
        # TODO 3. `step.seconds` is all of it, `step.parts` are the timed parts with their seconds, several of a kind.
        # YOUR CODE HERE
        raise NotImplementedError()

    def summarize(self) -> Summary:
        """Write the steps of this interval to the sinks, and return this rank's summary of them. Sends nothing."""
        steps = self.recorder.take()
        parts = [self.split(step) for step in steps]
        verdicts = {step.number: self.judge_loss(step.loss) for step in steps}
        self.recorder.write(steps, parts)
        # This belongs to TODO 3, too. Times of a typical step: medians, which one long step does not move. Throughput:
        # all samples over all seconds. Memory: the least, since it varies, and a leak lifts even the least.
        # YOUR CODE HERE
        raise NotImplementedError()
        bad = given.first_steps(verdicts)
        return Summary(steps[-1].number, compute, communication, wait, throughput, memory, *bad, self.link_seconds)

    def measure_communication_time(self, nbytes: int) -> float:
        """Return the seconds until `nbytes` from the rank `stride` before this one are here; 0 if there is no other.

        All ranks call it together, best after a collective: it includes waiting for that rank.
        """
        given.check_nbytes(nbytes)
        if self.world_size == 1:
            return 0.0
        # This belongs to TODO 3, too. `given.pass_around(source, destination, ...)`, timed by `given.now`.
        # YOUR CODE HERE
        raise NotImplementedError()

    def measure_scaling_efficiency(self, samples_per_second: float) -> float:
        """Return the ranks' samples per second in the last interval over those of as many single ranks."""
        given.check_baseline(samples_per_second, self.history)
        return sum(own.samples_per_second for own in self.history[-1]) / (self.world_size * samples_per_second)

    def detect_stragglers(self) -> list[Alarm]:
        """Return who is slow in the last 3 intervals: "slow compute", "slow input", "slow link". Sends nothing.

        A rank whose own time, compute and input, is an outlier by a factor of 1.15: the cause is the part that exceeds
        its median by more seconds. A link is an outlier by a factor of 1.5. Its rank is at the end of two probes.
        """
        if len(self.history) < 3:
            return []
        compute, wait, probe = map(self.recent, ("compute_seconds", "input_seconds", "link_seconds"))
        # TODO 4. Who is slow waits for nobody, all others wait in communication: leave that out.
        # A probe is slow if the link at either end is. Rank r is at the end of two: its own, and that of which rank?
        # YOUR CODE HERE
        raise NotImplementedError()
        return [Alarm(cause, rank, self.recorder.last_step) for rank, cause in found]


def outliers(values: list[float], factor: float) -> list[int]:
    """Return the ranks with too high a value: above `factor` times the median, and 5 robust deviations above it.

    The robust deviation is 1.4826 times the median absolute deviation. The median of an even number of values is the
    lower one in the middle: of two ranks the slower one is found.
    """
    # This belongs to TODO 4, too. `torch.median` is the lower one.
    # YOUR CODE HERE
    raise NotImplementedError()
