"""Mutants of gradient_accumulation: what is wrong in each, what it earns, and the checks that it loses."""

from autograder.mutants import Mutant

ALL = {
    "windows", "uneven", "empty", "partial", "returns", "clipping", "finite", "parameters", "dtypes", "groups",
    "bad_arguments", "communication", "memory", "real_processes",
}  # fmt: skip

MUTANTS = {
    # memory, too, is measured where values are right
    "works_alone": Mutant(0, loses=ALL).edited("""
        Each rank accumulates by itself; what it sends, it throws away.

        - dist.all_reduce(message.flat, group=self.group)
        + dist.all_reduce(message.flat.clone(), group=self.group)
    """),
    "forgets_to_divide": Mutant(0, loses=ALL).edited("""
        The gradients of all samples are added up and not divided.

        - message.gradient.div_(message.samples)
    """),
    # one window is right
    "keeps_gradients": Mutant(
        8, loses=ALL - {"clipping", "groups", "bad_arguments", "memory", "real_processes"}
    ).edited("""
        Gradients of a window are still there in the next one.

        - self.model.zero_grad()
          self.microbatches, self.samples = 0, 0.0
    """),
    # windows that are full, of microbatches that are equal, are right
    "divides_by_steps": Mutant(17, loses={"uneven", "empty", "partial", "returns", "real_processes"}).edited("""
        The usual recipe: each loss is divided by `steps`, and the mean over the ranks taken.

        - (loss * samples).backward()
        + (loss / self.steps).backward()

        - message.gradient.div_(message.samples)
        + message.gradient.div_(dist.get_world_size(self.group))
    """),
    "short_windows_count_as_full": Mutant(21, loses={"partial", "returns", "real_processes"}).edited("""
        A window that is not full is divided as if it were.

        - message.gradient.div_(message.samples)
        + message.gradient.div_(message.samples * self.steps / self.microbatches)
    """),
    "drops_the_last_window": Mutant(21, loses={"partial", "returns", "real_processes"}).edited("""
        What flush finds is thrown away.

        - if self.microbatches == 0:
        + if self.microbatches < self.steps:
        +     self.model.zero_grad()
        +     self.microbatches, self.samples = 0, 0.0
              return False
    """),
    "counts_backward_calls": Mutant(23, loses={"empty"}).edited("""
        A microbatch without samples is not counted.

          self.samples += samples
        + self.microbatches += 1

        - self.microbatches += 1
          return self.microbatches == self.steps and self.flush()
    """),
    "clips_each_rank_s_gradient": Mutant(22, loses={"clipping"}).edited("""
        Each rank clips its own gradient before the sum.

          message.samples.fill_(self.samples)
        + if self.max_norm is not None:
        +     own_norm = message.gradient.norm().item() / self.samples
        +     message.gradient.mul_(min(1.0, self.max_norm / (own_norm + 1e-6)))

        - if self.max_norm is not None and norm > self.max_norm:
        -     message.gradient.mul_(self.max_norm / norm)
    """),
    "clips_the_sum": Mutant(22, loses={"clipping"}).edited("""
        Clips before it divides.

        - message.gradient.div_(message.samples)

        - finite = math.isfinite(norm)  # which the mean over no samples is not, either
        + finite = math.isfinite(norm) and message.samples.item() > 0

              message.gradient.mul_(self.max_norm / norm)
        + message.gradient.div_(message.samples)
    """),
    "says_always_that_it_stepped": Mutant(23, loses={"returns", "finite"}).edited("""
        step and flush return True.

        - return self.microbatches == self.steps and self.flush()
        + if self.microbatches == self.steps:
        +     self.flush()
        + return True

          if self.microbatches == 0:
        -     return False
        +     return True

        - return finite
        + return True
    """),
    "skips_alone": Mutant(24, loses={"finite"}).edited("""
        A rank whose own gradient is not finite leaves the window, and does not tell the others.

        + if not math.isfinite(message.flat.sum().item()):
        +     self.model.zero_grad()
        +     self.microbatches, self.samples = 0, 0.0
        +     return False
          dist.all_reduce(message.flat, group=self.group)
    """),
    "unused_get_zeros": Mutant(23, loses={"parameters"}).edited("""
        A parameter that no rank has used gets a gradient of zeros.

        - parameter.grad = part.to(parameter.dtype) if share else None
        + parameter.grad = part.to(parameter.dtype)
    """),
    "ignores_the_group": Mutant(24, loses={"groups"}).edited("""
        Adds up over all ranks, whatever the group.

        - dist.all_reduce(message.flat, group=self.group)
        + dist.all_reduce(message.flat)
    """),
    "sends_every_microbatch": Mutant(21, loses={"communication", "real_processes"}).edited("""
        Adds up over the ranks after every microbatch.

          self.microbatches += 1
        + flat = self._sent()
        + self._total = flat if self.microbatches == 1 else self._total + flat

        - for parameter, part in zip(message.parameters, message.parts, strict=True):
        -     if parameter.grad is not None:
        -         part.copy_(parameter.grad)
        - message.present.copy_(torch.tensor([parameter.grad is not None for parameter in message.parameters]))
        - message.samples.fill_(self.samples)
        - dist.all_reduce(message.flat, group=self.group)
        + message.flat.copy_(self._total)

        + def _sent(self) -> Tensor:
        +     message = self._message()
        +     for parameter, part in zip(message.parameters, message.parts, strict=True):
        +         if parameter.grad is not None:
        +             part.copy_(parameter.grad)
        +     message.present.copy_(torch.tensor([parameter.grad is not None for parameter in message.parameters]))
        +     message.samples.fill_(self.samples)
        +     dist.all_reduce(message.flat, group=self.group)
        +     self.model.zero_grad()
        +     self.samples = 0.0
        +     return message.flat
        +
          def _message(self) -> Message:
    """),
    "a_message_for_each_parameter": Mutant(22, loses={"communication"}).edited("""
        Calls an all-reduce for each parameter.

        - dist.all_reduce(message.flat, group=self.group)
        + for part in message.flat.split([*(p.numel() for p in message.parameters), len(message.parameters) + 1]):
        +     dist.all_reduce(part, group=self.group)
    """),
    "one_backward_for_all": Mutant(23, loses={"memory"}).edited("""
        Adds up the losses and goes back through them when the window ends.

        + self._loss: Tensor | None = None
          self.samples = 0.0

        - (loss * samples).backward()
        + self._loss = loss * samples if self._loss is None else self._loss + loss * samples

          message = self._message()
        + if self._loss is not None:
        +     self._loss.backward()

          self.microbatches, self.samples = 0, 0.0
        + self._loss = None
    """),
    "keeps_every_gradient": Mutant(23, loses={"memory"}).edited("""
        Keeps each microbatch's gradients and adds them up when the window ends.

        + self._kept: list[Sequence[Tensor | None]] = []
          self.samples = 0.0

        - (loss * samples).backward()
        + trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        + self._kept.append(torch.autograd.grad(loss * samples, trained, allow_unused=True))

          message = self._message()
        + for parameter, *gradients in zip(message.parameters, *self._kept, strict=True):
        +     there = [gradient for gradient in gradients if gradient is not None]
        +     parameter.grad = sum(there) if there else None

          self.microbatches, self.samples = 0, 0.0
        + self._kept = []
    """),
}
