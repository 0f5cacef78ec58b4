"""Right: an affine hash of each word, Python's lists in place of tensors, one all-gather of pieces, votes by a dict."""

from __future__ import annotations

from itertools import pairwise
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
    # place, then sum: odd, since an even one pushes bits out of int64, and irregular. int64 overflows silently.
    place = torch.arange(words.numel(), device=words.device)
    odd = (place * place * 0x2545F4914F6CDD1D + place * 0x1B873593CC9E2D51) * 2 + 1
    return (words * odd + odd).sum() + words.numel()


def outliers(values: list[float], factor: float) -> list[int]:
    """Return the ranks with too high a value: above `factor` times the median, and 5 robust deviations above it.

    The robust deviation is 1.4826 times the median absolute deviation. The median of an even number of values is the
    lower one in the middle: of two ranks the slower one is found.
    """
    middle = (len(values) - 1) // 2
    usual = sorted(values)[middle]
    limit = usual + 5 * 1.4826 * sorted(abs(value - usual) for value in values)[middle]
    return [rank for rank, value in enumerate(values) if value > factor * usual and value > limit]


class DistributedTrainingMonitor(given.Monitor):
    """Watches training on the ranks of a group, and raises alarms that name rank and cause, the same on all ranks.

    `given.Monitor` has the constructor, `DistributedTrainingMonitor(rank, world_size, interval=10, ...)`, and keeps the
    arguments. `with monitor.timed("input"):`, or "communication", times a part of a step; the rest is compute.
    `history` has the summaries of all ranks of the last 4 intervals.
    """

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
        communication = sum(seconds for part, seconds in step.parts if part == "communication")
        wait = sum(seconds for part, seconds in step.parts if part == "input")
        return step.seconds - communication - wait, communication, wait

    def summarize(self) -> Summary:
        """Write the steps of this interval to the sinks, and return this rank's summary of them. Sends nothing."""
        steps = self.recorder.take()
        parts = [self.split(step) for step in steps]
        verdicts = {step.number: self.judge_loss(step.loss) for step in steps}
        self.recorder.write(steps, parts)
        # This belongs to TODO 2, too. Times of a typical step: medians, which one long step does not move. Throughput:
        # all samples over all seconds. Memory: the least, since it varies, and a leak lifts even the least.
        compute, communication, wait = (median(column) for column in zip(*parts, strict=True))
        throughput = sum(step.samples for step in steps) / sum(step.seconds for step in steps)
        memory = min(step.memory_bytes for step in steps)
        bad = given.first_steps(verdicts)
        return Summary(steps[-1].number, compute, communication, wait, throughput, memory, *bad, self.link_seconds)

    def measure_communication_time(self, nbytes: int) -> float:
        """Return the seconds until `nbytes` from the rank `stride` before this one are here; 0 if there is no other.

        All ranks call it together, best after a collective: it includes waiting for that rank.
        """
        given.check_nbytes(nbytes)
        if self.world_size == 1:
            return 0.0
        # This belongs to TODO 2, too. `given.pass_around(source, destination, nbytes, ...)`, both ranks of the group,
        # between two readings of `given.now(self.device)`.
        source, destination = ((self.rank + way) % self.world_size for way in (-self.stride, self.stride))
        began = given.now(self.device)
        sending = given.pass_around(source, destination, nbytes, self.device, self.group)
        seconds = given.now(self.device) - began
        sending.wait()
        return seconds

    def measure_scaling_efficiency(self, samples_per_second: float) -> float:
        """Return the ranks' samples per second in the last interval over those of as many single ranks."""
        given.check_baseline(samples_per_second, self.history)
        return sum(own.samples_per_second for own in self.history[-1]) / (self.world_size * samples_per_second)

    def check_gradient_sync(self, model: nn.Module) -> list[Alarm]:
        """Compare parameters and gradients, to the bit: one all-gather of 8 bytes for each. All ranks call it.

        Returns an alarm for each tensor and rank that differs from more than half of the ranks; without such a
        majority, for all ranks. A missing gradient is not one of zeros. Buffers are not compared.
        """
        tensors = given.named_tensors(model)
        # This belongs to TODO 1, too. `given.gather_rows(row, self.group)` is a tensor [ranks, tensors].
        own = [int(fingerprint(one)) if one is not None else 7 for one in tensors.values()]
        pieces = [torch.empty(len(own), dtype=torch.int64) for _ in range(self.world_size)]
        torch.distributed.all_gather(pieces, torch.tensor(own), group=self.group)
        alarms = []
        for place, name in enumerate(tensors):
            votes: dict[int, list[int]] = {}
            for rank, piece in enumerate(pieces):
                votes.setdefault(int(piece[place]), []).append(rank)
            wrong = [ranks for ranks in votes.values() if 2 * len(ranks) <= self.world_size]
            alarms += [
                Alarm("desynchronized", rank, self.recorder.last_step, name) for ranks in wrong for rank in ranks
            ]
        return self.recorder.report(alarms)

    def detect_stragglers(self) -> list[Alarm]:
        """Return who is slow in the last 3 intervals: "slow compute", "slow input", "slow link". Sends nothing.

        A rank whose own time, compute and input, is an outlier by a factor of 1.15: the cause is the part that exceeds
        its median by more seconds. A link is an outlier by a factor of 1.5. Its rank is at the end of two probes.
        """
        if len(self.history) < 3:
            return []
        compute, wait, probe = map(self.recent, ("compute_seconds", "input_seconds", "link_seconds"))
        # This belongs to TODO 3, too. Who is slow waits for nobody, all others wait in communication: leave that out.
        # A probe is slow if the link at either end is. Rank r is at the end of two: its own, and that of which rank?
        found = []
        for rank in outliers([sum(own) for own in zip(compute, wait, strict=True)], 1.15):
            excess = [part[rank] - torch.tensor(part).median().item() for part in (compute, wait)]
            found.append((rank, "slow compute" if excess[0] >= excess[1] else "slow input"))
        links = [min(probe[rank], probe[(rank + self.stride) % self.world_size]) for rank in range(self.world_size)]
        found += [(rank, "slow link") for rank in outliers(links, 1.5)]
        return [Alarm(cause, rank, self.recorder.last_step) for rank, cause in found]

    def detect_leaks(self) -> list[Alarm]:
        """Return the ranks whose memory rose by more than 3 % from each of the last 4 intervals to the next."""
        found = []
        for rank in range(self.world_size):
            memory = [summaries[rank].memory_bytes for summaries in self.history]
            if len(memory) == 4 and min(b / max(a, 1.0) for a, b in pairwise(memory)) > 1.03:
                found.append(Alarm("memory leak", rank, self.recorder.last_step))
        return found

    def judge_loss(self, loss: float) -> str:
        """Return "loss not finite", "loss spike" or "", and remember a finite loss.

        A spike is 8 robust deviations above the median of the last 20 losses, of 10 at least. The deviation is not less
        than 5 % of the median, since losses may be all alike.
        """
        # This belongs to TODO 4, too.
        if loss - loss != 0:
            return "loss not finite"
        before = torch.tensor(list(self.losses), dtype=torch.float64)
        self.losses.append(loss)
        if len(before) < 10:
            return ""
        usual = before.quantile(0.5)
        deviation = torch.maximum(1.4826 * (before - usual).abs().quantile(0.5), 0.05 * usual.abs())
        return "loss spike" if loss > usual + 8 * deviation else ""
