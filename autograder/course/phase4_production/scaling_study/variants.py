"""Variants of scaling_study: other right solutions."""

from autograder.mutants import Variant

VARIANTS = {
    "gathers_all_times": Variant().edited("""
        Right: one loop with a mark around each repeat, all ranks' times gathered, throughputs compared, other formulas.

        An all-reduce of one number lets ranks begin a repeat together as a barrier does. Each rank computes the maximum
        over ranks from the same times. The formulas are transformed, not changed.

        - for _ in range(self.warmup):
        + total, own = self.warmup + self.repeats * self.steps, []
        + for number in range(total):
        +     if number >= self.warmup and (number - self.warmup) % self.steps == 0:
        +         dist.all_reduce(torch.zeros(1, device=self.device), group=group)
        +         own.append(-given.now(self.device))
              step()
        - seconds = []
        - for _ in range(self.repeats):
        -     dist.barrier(group)
        -     began = given.now(self.device)
        -     for _ in range(self.steps):
        -         step()
        -     seconds.append((given.now(self.device) - began) / self.steps)
        - slowest = torch.tensor(seconds, dtype=torch.float64, device=self.device)
        - dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=group)
        - return slowest.tolist()
        +     if number >= self.warmup and (number + 1 - self.warmup) % self.steps == 0:
        +         own[-1] += given.now(self.device)
        + table = [
        +     torch.zeros(len(own), dtype=torch.float64, device=self.device) for _ in range(dist.get_world_size(group))
        + ]
        + dist.all_gather(table, torch.tensor(own, dtype=torch.float64, device=self.device), group=group)
        + return [max(column) / self.steps for column in zip(*(row.tolist() for row in table), strict=True)]

        - efficiencies = [measured[0].seconds / one.seconds for one in measured]
        + rates = [self.samples_per_second(one) / one.world_size for one in measured]
        + efficiencies = [rate / rates[0] for rate in rates]

        - gpu_seconds = [one.world_size * one.seconds for one in measured]
        - efficiencies = [gpu_seconds[0] / own for own in gpu_seconds]
        + first, efficiencies = measured[0], []
        + for one in measured:
        +     speedup = first.seconds / one.seconds
        +     efficiencies.append(speedup * first.world_size / one.world_size)

        - return max(0.0, measurement.seconds / measurement.computing - 1)
        + exposed = measurement.seconds - measurement.computing
        + return exposed / measurement.computing if exposed > 0 else 0.0

        - steps = -(-num_samples // (measurement.world_size * measurement.batch_size))
        - hours = steps * measurement.seconds / 3600
        - gpu_hours = hours * measurement.world_size
        - return Cost(steps, hours, gpu_hours, gpu_hours * dollars_per_gpu_hour)
        + batch = measurement.world_size * measurement.batch_size
        + steps = num_samples // batch + (num_samples % batch > 0)
        + gpu_hours = steps * measurement.seconds * measurement.world_size / 3600
        + return Cost(steps, gpu_hours / measurement.world_size, gpu_hours, dollars_per_gpu_hour * gpu_hours)

        - return 1 / (serial + (1 - serial) / gpus)
        + return gpus / (1 + serial * (gpus - 1))

        - return serial + (1 - serial) * gpus
        + return gpus - serial * (gpus - 1)

        - return gpus / (1 + contention * (gpus - 1) + coherency * gpus * (gpus - 1))
        + waiting, agreeing = contention * (gpus - 1), coherency * gpus * (gpus - 1)
        + return gpus / (1 + waiting + agreeing)

        - return max(1.0, ((1 - contention) / coherency) ** 0.5) if coherency else float("inf")
        + if coherency == 0:
        +     return float("inf")
        + best = ((1 - contention) / coherency) ** 0.5
        + return best if best > 1 else 1.0
    """),
}
