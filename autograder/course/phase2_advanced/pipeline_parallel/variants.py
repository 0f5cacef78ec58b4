"""Variants of pipeline_parallel: other right solutions."""

from autograder.mutants import Variant

VARIANTS = {
    "short_warm_up": Variant(base="tags").edited("""
        Right: with chunks, fewer warm-up forwards: fewer activations are kept, and messages have less time.

        Each forward still comes before its backward, in an order that all ranks can follow.

        - warm = 2 * (stages - rank - 1) + (chunks - 1) * sizes[0]
        + warm = stages - rank - 1 + (chunks - 1) * sizes[0]
    """),
    "checkpoints_its_stages": Variant(base="tags").edited("""
        Right: torch's checkpoint runs a stage again when its first saved tensor is asked for.

        It keeps the inputs, and the random numbers and the autocast of the first run.

        + import functools
          import itertools

          from torch import nn
        + from torch.utils.checkpoint import checkpoint

        - if not self.recompute:
        -     output = self.run(inputs, loss_of)
        -     self.kept[microbatch] = inputs, output
        -     return output.detach().requires_grad_(output.requires_grad)
        - # without a graph, which would say whether anything is trained
        - trained = inputs.requires_grad or any(parameter.requires_grad for parameter in self.module.parameters())
        - self.first_runs[microbatch] = loss_of, torch.get_rng_state(), self.autocast()
        - with torch.no_grad():
        -     output = self.run(inputs, loss_of)
        - self.kept[microbatch] = inputs, None
        - return output.detach().requires_grad_(trained and output.is_floating_point())
        + run = functools.partial(checkpoint, self.run, use_reentrant=False) if self.recompute else self.run
        + output = run(inputs, loss_of)
        + self.kept[microbatch] = inputs, output
        + return output.detach().requires_grad_(output.requires_grad)
    """),
}
