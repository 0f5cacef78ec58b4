"""Variants of trainer: other right solutions."""

from autograder.mutants import Variant

VARIANTS = {
    "hooks_and_handles": Variant(base="concatenates").edited("""
        Right: shares initial weights by all-reduce, weights the loss before backward, and posts all sums at once.

        All ranks but the first add zeros. A loss times this rank's number of samples has gradients times that number.

        - for tensor in (*model.parameters(), *model.buffers()):
        -     sent = tensor.detach().contiguous()
        -     dist.broadcast(sent, self.first, group)
        -     tensor.detach().copy_(sent)
        + with torch.no_grad():
        +     for tensor in (*model.parameters(), *model.buffers()):
        +         if dist.get_rank() != self.first:
        +             tensor.zero_()
        +         sent = tensor.detach().clone(memory_format=torch.contiguous_format)
        +         dist.all_reduce(sent, group=group)
        +         tensor.copy_(sent)

        - loss = self.loss_fn(self.model(inputs), targets)
        + loss = self.loss_fn(self.model(inputs), targets) * count

        - rest = torch.tensor([*(p.grad is not None for p in parameters), loss.item(), 1], dtype=dtype)
        - pieces = [piece * count for piece in (*parts, rest)]
        + rest = torch.tensor([*(p.grad is not None for p in parameters), loss.item(), count], dtype=dtype)
        + pieces = [*parts, rest]

        - for piece in pieces:
        -     dist.all_reduce(piece, group=self.group)
        + for work in [dist.all_reduce(piece, group=self.group, async_op=True) for piece in pieces]:
        +     work.wait()
    """),
}
