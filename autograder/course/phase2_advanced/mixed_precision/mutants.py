"""Mutants of mixed_precision: what is wrong in each, what it earns, and the checks that it loses."""

from autograder.mutants import Mutant

STEPS = {"steps", "clip", "travel", "bad_arguments"}
"""Checks that compare a step with float32's, without an overflow, on virtual ranks."""

MUTANTS = {
    "decides_alone": Mutant(21, loses={"one_rank", "one_message"}, base="adds_up_flags").edited("""
        Each rank decides by its own gradients.

        - dist.all_reduce(found, group=group)
    """),
    "looks_before_adding_up": Mutant(22, loses={"skip"}, base="adds_up_flags").edited("""
        Asks all ranks for an overflow, but before gradients are added up.

              (scaled * (len(targets) / total[0])).backward()
        + if scaler:
        +     bad = [1.0 for p in trained if p.grad is not None and not p.grad.isfinite().all()]
        +     found = torch.tensor([sum(bad)])
        +     dist.all_reduce(found, group=group)
        +     found_inf = found.item() > 0

        - found_inf = scaler.unscale_(updated, group)
        + for p in updated:
        +     if p.grad is not None:
        +         p.grad.div_(scaler.get_scale())
    """),
    "grows_on_every_step": Mutant(18, loses={"scale_history", "restored", "skip"}, base="adds_up_flags").edited("""
        The scale grows after each step without overflow.

        - if self.fine >= self.interval:
        + if self.fine:
    """),
    "keeps_counting": Mutant(22, loses={"scale_history"}, base="adds_up_flags").edited("""
        An overflow does not set the counter back.

          self.value = max(self.value * self.backoff, torch.finfo(torch.float32).tiny)
        - self.fine = 0
    """),
    "never_backs_off": Mutant(19, loses={"scale_history", "skip"}, base="adds_up_flags").edited("""
        Skips the step, and keeps the scale.

        - self.value = max(self.value * self.backoff, torch.finfo(torch.float32).tiny)
    """),
    "leaves_float32": Mutant(22, loses={"scale_history"}, base="adds_up_flags").edited("""
        Nothing keeps the scale from becoming infinite, or 0.

        - self.value = max(self.value * self.backoff, torch.finfo(torch.float32).tiny)
        + self.value = self.value * self.backoff

        - if self.value * self.growth <= torch.finfo(torch.float32).max:
        -     self.value *= self.growth
        + self.value *= self.growth
    """),
    # where clipping has the last word, a factor does not show
    "forgets_to_unscale": Mutant(15, loses={"unscale", "underflow"} | STEPS, base="adds_up_flags").edited("""
        Gradients stay scaled.

        - gradient.div_(self.value)
    """),
    "unscales_twice": Mutant(17, loses={"underflow"} | STEPS, base="adds_up_flags").edited("""
        Unscales before clipping and, to be sure, once more before the step.

          found_inf = scaler.unscale_(updated, group)
        + scaler.unscale_(updated, group)
    """),
    "clips_scaled_gradients": Mutant(22, loses={"clip", "real_processes"}, base="adds_up_flags").edited("""
        Clips before it unscales.

              optimizer.take_gradients()
        + if max_norm is not None:
        +     nn.utils.clip_grad_norm_(updated, max_norm)

          if not found_inf:
        -     if max_norm is not None:
        -         nn.utils.clip_grad_norm_(updated, max_norm)
    """),
    "puts_zeros_for_infinities": Mutant(22, loses={"skip"}, base="adds_up_flags").edited("""
        Steps all the same, with zeros where a gradient is not finite.

        - if not found_inf:
        + for p in updated:
        +     if p.grad is not None:
        +         p.grad.nan_to_num_(0.0, 0.0, 0.0)
        + if True:
    """),
    "steps_without_gradients": Mutant(22, loses={"skip"}, base="adds_up_flags").edited("""
        A skipped step is one with gradients of 0: momentum moves on.

        - if not found_inf:
        + if found_inf:
        +     for p in updated:
        +         if p.grad is not None:
        +             p.grad.zero_()
        + if True:
    """),
    "masters_in_16_bits": Mutant(
        13, loses={"masters", "underflow", "real_processes"} | STEPS, base="adds_up_flags"
    ).edited("""
        The masters are copies in the model's dtype.

        - if any(g.dtype == torch.float16 for g in gradients):
        -     raise ValueError("parameters have gradients in torch.float16")

        - master = nn.Parameter(p.detach().float())
        + master = nn.Parameter(p.detach().clone())
    """),
    "returns_the_scaled_loss": Mutant(22, loses={"steps"}, base="adds_up_flags").edited("""
        Says the loss that goes backward, which is scaled.

        - scaled = scaler.scale(loss) if scaler else loss.float()
        - (scaled * (len(targets) / total[0])).backward()
        + loss = scaler.scale(loss) if scaler else loss.float()
        + (loss * (len(targets) / total[0])).backward()
    """),
    "unscales_in_16_bits": Mutant(22, loses={"underflow", "bad_arguments"}, base="adds_up_flags").edited("""
        Unscales the model's own gradients, before masters take them.

        - if any(g.dtype == torch.float16 for g in gradients):
        -     raise ValueError("parameters have gradients in torch.float16")

          add_up(trained, group)
        + if scaler:
        +     found_inf = scaler.unscale_(trained, group)
        +     scaler.update(found_inf)

        - if scaler:
        -     found_inf = scaler.unscale_(updated, group)
        -     scaler.update(found_inf)
    """),
    "one_collective_each": Mutant(20, loses={"one_rank", "one_message", "travel"}, base="adds_up_flags").edited("""
        Asks the other ranks about each parameter.

        - found = torch.zeros(1)
        - for gradient in gradients:
        -     found += float(not gradient.isfinite().all())
        -     gradient.div_(self.value)
        - dist.all_reduce(found, group=group)
        - return found.item() > 0
        + anywhere = False
        + for p in parameters:
        +     finite = p.grad is None or bool(p.grad.isfinite().all())
        +     found = torch.tensor([float(not finite)])
        +     dist.all_reduce(found, group=group)
        +     anywhere = anywhere or found.item() > 0
        +     if p.grad is not None:
        +         p.grad.div_(self.value)
        + return anywhere
    """),
    "sums_to_find_out": Mutant(23, loses={"unscale"}, base="adds_up_flags").edited("""
        Takes a sum of squares for the test: those of large gradients are infinite.

        - found += float(not gradient.isfinite().all())
        + found += float(not gradient.square().sum().isfinite())
    """),
    "computes_in_float32": Mutant(19, loses={"skip", "travel", "real_processes"}, base="adds_up_flags").edited("""
        Computes and sends in float32, and rounds afterwards: nothing ever overflows.

        + kept = {p: p.dtype for p in model.parameters()}
          model.zero_grad()
        + for p in kept:
        +     p.data = p.data.float()

        - with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        + with torch.autocast("cpu", dtype, enabled=False):

        - if has_masters:
        -     optimizer.take_gradients()
        + pairs = optimizer.pairs if has_masters else []
        + for p, master in pairs:
        +     master.grad, p.grad = p.grad, None
        + for p, dtype in kept.items():
        +     p.data = p.data.to(dtype)
    """),
    "ignores_group": Mutant(20, loses={"one_rank", "skip"}, base="adds_up_flags").edited("""
        All collectives are the world's.

        - dist.all_reduce(found, group=group)
        + dist.all_reduce(found)

        - dist.all_reduce(total, group=group)
        + dist.all_reduce(total)

        - dist.all_reduce(flat, group=group)
        + dist.all_reduce(flat)
    """),
    "checks_nothing": Mutant(24, loses={"bad_arguments"}, base="adds_up_flags").edited("""
        No argument is tested.

        - if not 0 < init_scale < math.inf or not 1 < growth_factor < math.inf or not 0 < backoff_factor < 1:
        -     raise ValueError(
        -         f"bad init_scale, growth_factor or backoff_factor: {init_scale, growth_factor, backoff_factor}"
        -     )
        - if not isinstance(growth_interval, int) or growth_interval < 1:
        -     raise ValueError(f"growth_interval must be 1 or more, got {growth_interval}")

        - if any(g.dtype == torch.float16 for g in gradients):
        -     raise ValueError("parameters have gradients in torch.float16")

        - check(model, optimizer, inputs, targets, scaler, dtype, max_norm)
    """),
}
