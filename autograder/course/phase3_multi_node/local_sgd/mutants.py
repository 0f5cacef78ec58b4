"""Mutants of local_sgd: what is wrong in each, what it earns, and the checks that it loses."""

from __future__ import annotations

from autograder.mutants import Mutant

MUTANTS = {
    "does_nothing": Mutant(
        0,
        loses={
            "means",
            "one_message",
            "split",
            "speeds",
            "balanced_time",
            "local_steps",
            "rounds",
            "one_process",
            "unequal",
            "groups",
            "outer_steps",
            "outer_rounds",
            "arguments",
            "real_processes",
        },
    ).edited("""
        No rank ever communicates, and all keep their equal share of a batch.

        - dist.all_reduce(message.flat, group=group)
        + pass

        - shares = [int(global_batch_size * speed / sum(speeds)) for speed in speeds]
        - for _ in range(global_batch_size - sum(shares)):
        -     ends = [(share + 1) / speed for share, speed in zip(shares, speeds, strict=True)]
        -     shares[ends.index(min(ends))] += 1
        - return shares
        + return [(global_batch_size + rank) // len(speeds) for rank in range(len(speeds))]

        - self.speeds = given.exchange_speeds(speed, self.group)
        + pass
    """),
    "ranks_count_alike": Mutant(16, loses={"means", "one_process", "unequal", "outer_steps"}).edited("""
        The mean of the ranks' means, however many samples each has.

        - message.flat.mul_(weight)
        + pass
    """),
    "gathers_all": Mutant(20, loses={"one_message", "rounds", "outer_rounds", "real_processes"}).edited("""
        Each rank gathers the tensors of all ranks and adds them up itself.

        - dist.all_reduce(message.flat, group=group)
        + parts = [torch.empty_like(message.flat) for _ in range(dist.get_world_size(group))]
        + dist.all_gather(parts, message.flat, group=group)
        + message.flat.copy_(torch.stack(parts).sum(0))
    """),
    "drops_the_rest": Mutant(21, loses={"split", "balanced_time"}).edited("""
        Shares are rounded down, and some samples belong to nobody.

        - for _ in range(global_batch_size - sum(shares)):
        -     ends = [(share + 1) / speed for share, speed in zip(shares, speeds, strict=True)]
        -     shares[ends.index(min(ends))] += 1
    """),
    "equal_batches": Mutant(21, loses={"split", "balanced_time"}).edited("""
        All ranks get the same number of samples, whatever their speed.

          given.check_speeds(speeds, global_batch_size)
        + speeds = [1.0] * len(speeds)
    """),
    "measures_once": Mutant(21, loses={"speeds", "balanced_time"}).edited("""
        Speeds are the mean since training began: a rank that becomes slow is seen late.

          self.speeds = given.exchange_speeds(speed, self.group)
        - self.samples, self.seconds = 0, 0.0
          return self.speeds
    """),
    "averages_every_step": Mutant(
        13, loses={"local_steps", "rounds", "unequal", "groups", "outer_steps", "outer_rounds", "real_processes"}
    ).edited("""
        The period is ignored: local steps are averaged one by one.

        - if self.local_steps == self.period:
        -     self.synchronize()
        + self.synchronize()
    """),
    "counts_the_warm_up": Mutant(15, loses={"local_steps", "rounds", "unequal", "groups", "outer_steps"}).edited("""
        Periods are counted from the first step, also through the warm-up.

        - if self.local_steps == self.period:
        + if (self.steps + 1) % self.period == 0:
    """),
    "waits_every_step": Mutant(22, loses={"rounds", "outer_rounds"}).edited("""
        Ranks meet in a barrier after each local step.

          self.local_steps, self.samples = self.local_steps + 1, self.samples + samples
        + dist.barrier(self.group)
    """),
    "forgets_the_short_period": Mutant(
        15, loses={"local_steps", "rounds", "unequal", "outer_steps", "outer_rounds"}
    ).edited("""
        A last period with fewer steps is not averaged.

        - if self.local_steps:
        + if self.local_steps == self.period:
    """),
    "averages_weights_in_the_warm_up": Mutant(22, loses={"one_process"}).edited("""
        With period 1 and in the warm-up each rank takes its own step, and weights are averaged.

        - weighted_average(given.gradients(self.parameters), samples, self.group)
        - self.optimizer.step()
        + given.gradients(self.parameters)
        + if samples:
        +     self.optimizer.step()
        + weighted_average(self.parameters, samples, self.group)
    """),
    "samples_of_the_last_step": Mutant(21, loses={"unequal", "outer_steps"}).edited("""
        A rank counts by the samples of the period's last step alone.

        - self.local_steps, self.samples = self.local_steps + 1, self.samples + samples
        + self.local_steps, self.samples = self.local_steps + 1, samples
    """),
    "samples_of_all_time": Mutant(21, loses={"unequal", "outer_steps"}).edited("""
        A rank counts by the samples of all its local steps, not of those since the last average.

          self.average()
        - self.local_steps, self.samples = 0, 0
        + self.local_steps = 0
    """),
    "outer_without_momentum": Mutant(21, loses={"outer_steps", "outer_rounds", "real_processes"}).edited("""
        The outer optimizer forgets its momentum after each step.

          self.outer.step()
        + self.outer.state.clear()
    """),
    "only_parameters_move": Mutant(21, loses={"outer_steps", "outer_rounds", "real_processes"}).edited("""
        Parameters take the outer step, the anchors stay where training began.

        - self.outer.step()
        + began = [anchor.detach().clone() for anchor in self.anchors]
        + self.outer.step()

        - for anchor, parameter in zip(self.anchors, self.parameters, strict=True):
        -     parameter.copy_(anchor)
        + for anchor, old, parameter in zip(self.anchors, began, self.parameters, strict=True):
        +     parameter.copy_(anchor)
        +     anchor.copy_(old)
    """),
    "anchors_of_few_digits": Mutant(23, loses={"outer_steps"}).edited("""
        Anchors have the parameters' dtype: small outer steps in bfloat16 are lost.

        - self.anchors = [nn.Parameter(given.widened(parameter)) for parameter in self.parameters]
        + self.anchors = [nn.Parameter(parameter.detach().clone()) for parameter in self.parameters]
    """),
}
