"""Variants of zero: other right solutions."""

from autograder.mutants import Variant

VARIANTS = {
    "divides_first": Variant().edited("""
        Right: divides before it sends, gathers into pieces, joins by copying, and clips by hand.

        A sum of quotients is the quotient of the sum; pieces of `flat.full` are views of it; the squares of all shards
        add up to the square of the norm.

        - padding = -sum(map(len, tensors)) % ranks
        - return torch.cat([*tensors, tensors[0].new_zeros(padding)])
        + numel = sum(map(len, tensors))
        + joined = tensors[0].new_zeros((numel + ranks - 1) // ranks * ranks)
        + torch.cat(list(tensors), out=joined[:numel])
        + return joined

        - if gradients := flat.take_gradients():
        -     whole = self.join(gradients, self.ranks)
        -     del gradients
        + gradients = flat.take_gradients()
        + if gradients:
        +     whole = self.join(gradients, self.ranks).div_(self.replicas)

        - flat.add_gradient(part.div_(self.replicas))
        + flat.add_gradient(part)

        - shards = [flat.shard for flat in self.flats]
        - norm = nn.utils.get_total_norm([shard.grad for shard in shards if shard.grad is not None])
        - norm = given.on_device(norm, self.flats[0]).square()
        - dist.all_reduce(norm, group=self.group)
        - norm.sqrt_()
        - nn.utils.clip_grads_with_norm_(shards, max_norm, norm)
        + gradients = [flat.shard.grad for flat in self.flats if flat.shard.grad is not None]
        + squares = torch.stack([gradient.square().sum() for gradient in gradients]).sum()
        + squares = given.on_device(squares, self.flats[0])
        + dist.all_reduce(squares, group=self.group)
        + norm = squares.sqrt()
        + if norm > max_norm:
        +     for gradient in gradients:
        +         gradient.mul_(max_norm / (norm + 1e-6))

        - given.all_gather_single(flat.full, flat.own(), group=self.group, async_op=True) for flat in unit.flats
        + dist.all_gather(list(flat.full.chunk(self.ranks)), flat.own(), group=self.group, async_op=True)
        + for flat in unit.flats
    """),
}
