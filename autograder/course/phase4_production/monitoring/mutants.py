"""Mutants of monitoring: what is wrong in each, what it earns, and the checks that it loses."""

from __future__ import annotations

from autograder.mutants import Mutant

MUTANTS = {
    "sum_alone": Mutant(22, loses={"hashes"}).edited("""
        The fingerprint is the sum of the words: who changes places is not seen.

        - return (words * ((weight ^ (weight >> 29)) | 1)).sum()
        + return words.sum()
    """),
    "regular_weights": Mutant(22, loses={"hashes"}).edited("""
        The weights are 1, 3, 5, ...: changes of 1, -2 and 1 in three neighbours cancel.

        - weight = torch.arange(1, words.numel() + 1, device=words.device) * 0x1E3779B97F4A7C15
        - weight = (weight ^ (weight >> 31)) * 0x3F58476D1CE4E5B9
        - return (words * ((weight ^ (weight >> 29)) | 1)).sum()
        + return (words * (2 * torch.arange(words.numel(), device=words.device) + 1)).sum()
    """),
    "rounded_values": Mutant(18, loses={"hashes", "synchronized", "arguments"}).edited("""
        Values are rounded before they are hashed, since floating-point numbers are never quite equal.

        - words = given.words(tensor)
        + words = given.words(tensor.double().mul(1000).round())
    """),
    "one_collective_per_parameter": Mutant(22, loses={"synchronized"}).edited("""
        Each tensor has an all-gather of its own.

        - for name, column in zip(tensors, given.gather_rows(row, self.group).T.tolist(), strict=True):
        + columns = [given.gather_rows(one[None], self.group).flatten().tolist() for one in row]
        + for name, column in zip(tensors, columns, strict=True):
    """),
    "rank_0_is_right": Mutant(22, loses={"synchronized"}).edited("""
        Ranks are compared with rank 0: if that one is wrong, all others are named.

        - usual, count = Counter(column).most_common(1)[0]
        + usual, count = column[0], len(column)
    """),
    "parameters_alone": Mutant(22, loses={"synchronized"}).edited("""
        Gradients are not compared.

        - tensors = given.named_tensors(model)
        + tensors = dict(model.named_parameters())
    """),
    "last_part_alone": Mutant(22, loses={"parts_of_steps"}).edited("""
        Of several timed parts of a kind the last one counts.

        - spent[part] += seconds
        + spent[part] = seconds
    """),
    "waiting_is_compute": Mutant(16, loses={"parts_of_steps", "stragglers", "healthy_runs"}).edited("""
        Communication counts as compute: who waits for a slow rank is as slow as that one.

        - return step.seconds - sum(spent.values()), spent["communication"], spent["input"]
        + return step.seconds - spent["input"], spent["communication"], spent["input"]
    """),
    "mean_step": Mutant(22, loses={"parts_of_steps"}).edited("""
        The summary has means: one long step looks like ten slower ones.

        - compute, communication, wait = (median(column) for column in zip(*parts, strict=True))
        + compute, communication, wait = (sum(column) / len(column) for column in zip(*parts, strict=True))
    """),
    "waits_every_step": Mutant(18, loses={"parts_of_steps", "traffic", "cost"}).edited("""
        Ranks meet in a barrier after each step, so that all measure the same one.

          self.recorder.end_step(step, loss, samples, memory_bytes)
        + torch.distributed.barrier(self.group)
    """),
    "one_gather_per_metric": Mutant(23, loses={"traffic"}).edited("""
        Each figure is gathered by itself.

        - self.history.append(given.gather_summaries(self.summarize(), self.device, self.group))
        + own = [torch.tensor([x], dtype=torch.float64) for x in self.summarize()]
        + columns = [given.gather_rows(x, self.group).flatten().tolist() for x in own]
        + self.history.append([Summary(*row) for row in zip(*columns, strict=True)])
    """),
    "watches_itself": Mutant(
        11, loses={"parts_of_steps", "traffic", "stragglers", "healthy_runs", "leaks", "losses"}
    ).edited("""
        Nothing is gathered: each rank takes its own figures for those of all.

        - self.history.append(given.gather_summaries(self.summarize(), self.device, self.group))
        + self.history.append([self.summarize()] * self.world_size)
    """),
    "mean_of_ranks": Mutant(17, loses={"deviations", "stragglers", "healthy_runs"}).edited("""
        Ranks are compared with mean and standard deviation, which a straggler moves: it hides.

        - usual = of_all.median()
        - deviation = 1.4826 * (of_all - usual).abs().median()
        + usual = of_all.mean()
        + deviation = of_all.std(correction=0)
    """),
    "fastest_rank": Mutant(17, loses={"deviations", "stragglers", "healthy_runs"}).edited("""
        The rank that is too fast is named.

        - high = (of_all > factor * usual) & (of_all > usual + 5 * deviation)
        + high = (of_all * factor < usual) & (of_all < usual - 5 * deviation)
    """),
    "alarm_at_noise": Mutant(17, loses={"deviations", "stragglers", "healthy_runs"}).edited("""
        Whoever is slower than the median by a thousandth is named.

        - high = (of_all > factor * usual) & (of_all > usual + 5 * deviation)
        + high = of_all > 1.001 * usual
    """),
    "blames_the_link": Mutant(21, loses={"stragglers"}).edited("""
        Beside a slow rank, who waits long in communication has a slow link: that is everybody else. Links are not probed.

        - links = [min(probe[rank], probe[(rank + self.stride) % self.world_size]) for rank in range(self.world_size)]
        + links = self.recent("communication_seconds") if found else [0.0] * self.world_size
    """),
    "both_ends_of_a_link": Mutant(21, loses={"stragglers"}).edited("""
        A slow probe is blamed on the rank that received it, which is every second time the neighbour.

        - links = [min(probe[rank], probe[(rank + self.stride) % self.world_size]) for rank in range(self.world_size)]
        + links = probe
    """),
    "always_compute": Mutant(21, loses={"stragglers"}).edited("""
        A slow loader is reported as slow compute.

        - found.append((rank, "slow compute" if excess[0] >= excess[1] else "slow input"))
        + found.append((rank, "slow compute"))
    """),
    "last_minus_first": Mutant(21, loses={"healthy_runs", "leaks"}).edited("""
        Memory that is higher than some intervals ago is a leak.

        - leaks = [all(after > 1.03 * before for before, after in pairwise(own)) for own in memory]
        + leaks = [own[-1] > 1.09 * own[0] for own in memory]
    """),
    "forgets_nan": Mutant(24, loses={"losses"}).edited("""
        A loss is compared with a limit, and a comparison with NaN is false.

        - if not isfinite(loss):
        -     return "loss not finite"
        + if loss in (float("inf"), float("-inf")):
        +     return "loss not finite"
    """),
    "spike_by_spread_alone": Mutant(23, loses={"healthy_runs"}).edited("""
        Any loss above the last ones by two deviations is a spike.

        - spike = loss > usual + 8 * max(deviation, 0.05 * abs(usual))
        + spike = loss > usual + 2 * deviation
    """),
}
