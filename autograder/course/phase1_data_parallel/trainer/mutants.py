"""Mutants of trainer: what is wrong in each, what it earns, and the checks that it loses."""

from autograder.mutants import Mutant

ALL = {
    "steps", "uneven", "empty", "parameters", "dtypes", "groups", "loss", "bad_arguments", "flat", "per_parameter",
    "gather_scatter", "tree", "times", "real_processes",
}  # fmt: skip
"""Checks that compare a step: all but those of the start and of the learning rate."""

MUTANTS = {
    "does_nothing": Mutant(2, loses=ALL | {"start"}, base="concatenates").edited("""
        Each rank trains by itself.

        - for tensor in (*model.parameters(), *model.buffers()):
        -     sent = tensor.detach().contiguous()
        -     dist.broadcast(sent, self.first, group)
        -     tensor.detach().copy_(sent)

        - *sums, rest = self.add_up(pieces)
        + *sums, rest = pieces
    """),
    "gathers_the_batch": Mutant(4, loses=ALL, base="concatenates").edited("""
        Every rank gathers all samples and does all the work.

          self.model.zero_grad()
        + everybody = [None] * dist.get_world_size(self.group)
        + dist.all_gather_object(everybody, (inputs, targets), self.group)
        + inputs, targets = (torch.cat(column) for column in zip(*everybody, strict=True))
        + count = len(targets)

        - *sums, rest = self.add_up(pieces)
        + *sums, rest = pieces
    """),
    "works_on_the_first_rank": Mutant(4, loses=ALL, base="concatenates").edited("""
        The first rank gathers all samples, trains, and sends its weights.

        - if count:
        -     loss = self.loss_fn(self.model(inputs), targets)
        -     loss.backward()
        + is_first = dist.get_rank() == self.first
        + everybody = [None] * dist.get_world_size(self.group) if is_first else None
        + dist.gather_object((inputs, targets), everybody, self.first, self.group)
        + if is_first:
        +     inputs, targets = (torch.cat(column) for column in zip(*everybody, strict=True))
        +     count = len(targets)
        +     if count:
        +         loss = self.loss_fn(self.model(inputs), targets)
        +         loss.backward()

        - *sums, rest = self.add_up(pieces)
        + *sums, rest = pieces

        - if total:
        + if total and is_first:

              self.optimizer.step()
        + for p in self.model.parameters():
        +     dist.broadcast(p.detach(), self.first, self.group)
        + found = torch.tensor([mean])
        + dist.broadcast(found, self.first, self.group)
        + mean = found.item()
    """),
    "weights_start_apart": Mutant(3, loses=ALL - {"times"} | {"start"}, base="concatenates").edited("""
        Nobody sends weights.

        - for tensor in (*model.parameters(), *model.buffers()):
        -     sent = tensor.detach().contiguous()
        -     dist.broadcast(sent, self.first, group)
        -     tensor.detach().copy_(sent)
    """),
    "forgets_to_divide": Mutant(4, loses=ALL, base="concatenates").edited("""
        Gradients are added up and not divided.

        - p.grad = (part / total).view(p.shape).to(p.dtype) if share else None
        + p.grad = part.view(p.shape).to(p.dtype) if share else None
    """),
    # equal shares are right, and that is what some checks have
    "wraps_torch_s_ddp": Mutant(7, loses=ALL - {"steps", "bad_arguments"}),
    "mean_of_means": Mutant(8, loses=ALL - {"steps", "bad_arguments", "times"}, base="concatenates").edited("""
        Every rank counts alike, however many samples it has.

        - pieces = [piece * count for piece in (*parts, rest)]
        + pieces = [piece * bool(count) for piece in (*parts, rest)]
    """),
    # a step without Adam is linear in the gradient
    "averages_weights": Mutant(6, loses=ALL - {"tree"}, base="concatenates").edited("""
        Each rank takes a step of its own; then the weights are averaged.

              loss.backward()
        + self.optimizer.step()

        - parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        + parts = [p.detach() for p in parameters]

        - for p, part, share in zip(parameters, sums, rest.tolist(), strict=False):
        -     p.grad = (part / total).view(p.shape).to(p.dtype) if share else None
        - self.optimizer.step()
        + for p, part in zip(parameters, sums, strict=True):
        +     p.detach().copy_((part / total).view(p.shape))
    """),
    # where there is only one step
    "keeps_old_gradients": Mutant(8, loses=ALL - {"bad_arguments", "tree", "times"}, base="concatenates").edited("""
        Gradients of the step before are still there.

        - self.model.zero_grad()
    """),
    "always_flat": Mutant(21, loses={"per_parameter", "gather_scatter", "tree"}, base="concatenates").edited("""
        Whatever the reduction, it is one all-reduce.

        - if self.reduction == "per_parameter":
        -     for piece in pieces:
        -         dist.all_reduce(piece, group=self.group)
        -     return pieces
          flat = torch.cat(pieces)
        - if self.reduction == "flat":
        -     dist.all_reduce(flat, group=self.group)
        - elif self.reduction == "tree":
        -     collectives.all_reduce_tree(flat, group=self.group)
        - else:
        -     size, is_first = dist.get_world_size(self.group), dist.get_rank() == self.first
        -     parts = [torch.empty_like(flat) for _ in range(size)] if is_first else None
        -     dist.gather(flat, parts, self.first, self.group)
        -     dist.scatter(flat, [sum(parts)] * size if is_first else None, self.first, self.group)
        + dist.all_reduce(flat, group=self.group)
    """),
    "counts_in_a_second_message": Mutant(22, loses={"flat"}, base="concatenates").edited("""
        The numbers of samples and the losses are added up apart.

        + dist.all_reduce(pieces[-1], group=self.group)
        + flat = torch.cat(pieces[:-1])
          dist.all_reduce(flat, group=self.group)
        + flat = torch.cat([flat, pieces[-1]])
    """),
    "first_rank_is_rank_0": Mutant(24, loses={"groups"}, base="concatenates").edited("""
        Rank 0 sends and gathers, in whatever group.

        - self.first = dist.get_process_group_ranks(group)[0]
        + self.first = 0
    """),
    "skips_empty_batches": Mutant(24, loses={"empty"}, base="concatenates").edited("""
        A rank without samples goes on without the others.

        - if count:
        -     loss = self.loss_fn(self.model(inputs), targets)
        -     loss.backward()
        + if not count:
        +     return StepMetrics(float("nan"), 0.0, 0.0)
        + loss = self.loss_fn(self.model(inputs), targets)
        + loss.backward()
    """),
    "unused_get_zeros": Mutant(23, loses={"parameters"}, base="concatenates").edited("""
        A parameter that nobody uses has a gradient of 0, and decays.

        - for p, part, share in zip(parameters, sums, rest.tolist(), strict=False):
        -     p.grad = (part / total).view(p.shape).to(p.dtype) if share else None
        + for p, part in zip(parameters, sums, strict=True):
        +     p.grad = (part / total).view(p.shape).to(p.dtype)
    """),
    "casts_to_float32": Mutant(24, loses={"dtypes"}, base="concatenates").edited("""
        Gradients travel as float32, whatever they are.

        - dtype = torch.promote_types(parameters[0].dtype, torch.float32)
        + dtype = torch.float32
    """),
    "own_metrics": Mutant(23, loses={"loss", "times"}, base="concatenates").edited("""
        The loss is this rank's own, and nobody looked at the clock.

        - began = time.perf_counter()

        - packed = time.perf_counter()
          *sums, rest = self.add_up(pieces)
        - added_up = time.perf_counter()

        - mean = rest[-2].item() / total
        + mean = loss.item()

        - communication = added_up - packed
        - return StepMetrics(mean, time.perf_counter() - began - communication, communication)
        + return StepMetrics(mean, 0.0, 0.0)
    """),
    "checks_nothing": Mutant(24, loses={"bad_arguments"}, base="concatenates").edited("""
        No argument is tested.

        - if reduction not in REDUCTIONS:
        -     raise ValueError(f"reduction must be one of {REDUCTIONS}, got {reduction!r}")
        - mine = set(model.parameters())
        - if any(p not in mine for entry in optimizer.param_groups for p in entry["params"]):
        -     raise ValueError("optimizer must hold parameters of model only")

        - if len(inputs) != len(targets):
        -     raise ValueError(f"batch must have as many inputs as targets, got {len(inputs)} and {len(targets)}")
    """),
    "warms_up_from_0": Mutant(23, loses={"learning_rate"}, base="concatenates").edited("""
        The warm-up begins at a learning rate of 0.

        - return learning_rate + (full - learning_rate) * step / warmup_steps
        + return full * step / warmup_steps
    """),
}
