"""Mutants of scaling_study: what is wrong in each, what it earns, and the checks that it loses."""

from __future__ import annotations

from autograder.mutants import Mutant

MUTANTS = {
    "warm_up_counts": Mutant(7, loses={"times", "weak", "strong", "ratios"}).edited("""
        The first steps are timed like all others.

        - for _ in range(self.warmup):
        -     step()
        - seconds = []
        + seconds = []
    """),
    "own_time": Mutant(20, loses={"times"}).edited("""
        Each rank has its own figures.

        - dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=group)
        - return slowest.tolist()
        + return slowest.tolist()
    """),
    "mean_of_ranks": Mutant(20, loses={"times"}).edited("""
        The mean of the ranks' times: none of them is done before the slowest is.

        - dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=group)
        - return slowest.tolist()
        + dist.all_reduce(slowest, group=group)
        + return (slowest / dist.get_world_size(group)).tolist()
    """),
    "no_common_begin": Mutant(20, loses={"times"}).edited("""
        Ranks begin when they come, so waiting for the last one is part of a step.

        - dist.barrier(group)
          began = given.now(self.device)
    """),
    "exchange_in_each_repeat": Mutant(20, loses={"times"}).edited("""
        Figures are exchanged one by one.

        - slowest = torch.tensor(seconds, dtype=torch.float64, device=self.device)
        - dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=group)
        - return slowest.tolist()
        + figures = [torch.tensor([own], dtype=torch.float64, device=self.device) for own in seconds]
        + for figure in figures:
        +     dist.all_reduce(figure, op=dist.ReduceOp.MAX, group=group)
        + return [figure.item() for figure in figures]
    """),
    "all_ranks_meet": Mutant(15, loses={"weak", "strong"}).edited("""
        The barrier is that of all ranks, also of those that take no part.

        - dist.barrier(group)
        + dist.barrier()
    """),
    "time_of_a_repeat": Mutant(10, loses={"times", "weak", "strong"}).edited("""
        The figures are seconds of a repeat, not of a step; all ratios are right.

        - seconds.append((given.now(self.device) - began) / self.steps)
        + seconds.append(given.now(self.device) - began)
    """),
    "weak_by_gpu_seconds": Mutant(18, loses={"weak", "reports", "arguments"}).edited("""
        Weak scaling has the denominator of strong scaling.

        - efficiencies = [measured[0].seconds / one.seconds for one in measured]
        + gpu_seconds = [one.world_size * one.seconds for one in measured]
        + efficiencies = [gpu_seconds[0] / own for own in gpu_seconds]
    """),
    "strong_by_seconds": Mutant(20, loses={"strong"}).edited("""
        Strong scaling has the denominator of weak scaling: it is a speedup.

        - gpu_seconds = [one.world_size * one.seconds for one in measured]
        + gpu_seconds = [one.seconds for one in measured]
    """),
    "first_point_is_one_gpu": Mutant(20, loses={"strong"}).edited("""
        The first point is taken for that of one GPU.

        - efficiencies = [gpu_seconds[0] / own for own in gpu_seconds]
        + efficiencies = [measured[0].seconds / own for own in gpu_seconds]
    """),
    "whole_batch_for_each": Mutant(17, loses={"strong", "formulas"}).edited("""
        In strong scaling each rank has the samples of all.

        - measured = [self.measure(world_size, global_batch_size // world_size) for world_size in world_sizes]
        + measured = [self.measure(world_size, global_batch_size) for world_size in world_sizes]
    """),
    "batch_is_divided": Mutant(12, loses={"weak", "ratios", "formulas", "reports", "arguments"}).edited("""
        In weak scaling the ranks share the batch.

        - measured = [self.measure(world_size, batch_size) for world_size in world_sizes]
        + measured = [self.measure(world_size, max(1, batch_size // world_size)) for world_size in world_sizes]
    """),
    "all_is_perfect": Mutant(13, loses={"weak", "strong", "reports", "arguments"}).edited("""
        Every study finds an efficiency of 1.

        - efficiencies = [measured[0].seconds / one.seconds for one in measured]
        + efficiencies = [1.0 for one in measured]

        - efficiencies = [gpu_seconds[0] / own for own in gpu_seconds]
        + efficiencies = [1.0 for own in gpu_seconds]
    """),
    "samples_of_one_rank": Mutant(18, loses={"ratios", "formulas", "reports"}).edited("""
        The throughput is that of one rank.

        - return measurement.world_size * measurement.batch_size / measurement.seconds
        + return measurement.batch_size / measurement.seconds
    """),
    "share_of_the_step": Mutant(22, loses={"ratios"}).edited("""
        The ratio is communication's share of the step, not that over computing.

        - return max(0.0, measurement.seconds / measurement.computing - 1)
        + return max(0.0, 1 - measurement.computing / measurement.seconds)
    """),
    "negative_ratio": Mutant(22, loses={"ratios"}).edited("""
        The clock's noise makes communication negative.

        - return max(0.0, measurement.seconds / measurement.computing - 1)
        + return measurement.seconds / measurement.computing - 1
    """),
    "parts_of_steps": Mutant(23, loses={"costs"}).edited("""
        An epoch may end within a step.

        - steps = -(-num_samples // (measurement.world_size * measurement.batch_size))
        + steps = num_samples / (measurement.world_size * measurement.batch_size)
    """),
    "one_gpu_is_paid": Mutant(23, loses={"costs"}).edited("""
        The price is that of one GPU.

        - return Cost(steps, hours, gpu_hours, gpu_hours * dollars_per_gpu_hour)
        + return Cost(steps, hours, gpu_hours, hours * dollars_per_gpu_hour)
    """),
    "gustafson_is_amdahl": Mutant(22, loses={"formulas"}).edited("""
        One law for both kinds of scaling.

        - return serial + (1 - serial) * gpus
        + return 1 / (serial + (1 - serial) / gpus)
    """),
    "no_pairs": Mutant(22, loses={"formulas"}).edited("""
        Coherency grows with the GPUs, not with their pairs: throughput never falls.

        - return gpus / (1 + contention * (gpus - 1) + coherency * gpus * (gpus - 1))
        + return gpus / (1 + contention * (gpus - 1) + coherency * (gpus - 1))
    """),
    "hides_predictions": Mutant(24, loses={"reports"}).edited("""
        The report leaves out what was not measured.

        - for point in self.points
        + for point in self.points if point.measurement.origin != "predict"
    """),
    "no_argument_checks": Mutant(24, loses={"arguments"}).edited("""
        A study begins without a look at its arguments.

        - given.check_study(world_sizes, batch_size)
        + measured = []
    """),
}
