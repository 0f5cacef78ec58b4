"""Variants of local_sgd: other right solutions."""

from autograder.mutants import Variant

VARIANTS = {
    "one_by_one": Variant().edited('''
        Right: samples are dealt out one by one from a heap, the weight leads the message, DiLoCo keeps its anchors flat.

        Whoever would end one more sample first gets it, from the first sample on: the shares are the same, in more
        steps. The weight may be at either end of the message. One anchor for all parameters takes the same outer step,
        since the outer optimizer treats each element by itself.

        + import heapq
          from collections.abc import Callable, Iterable, Sequence

        - message = given.Message(tensors)
        - # TODO 1. `message.flat` has all elements of `tensors`, and a 1 behind them. What must a rank send so that the sums
        - # are enough to compute the mean, also on ranks that do not know the others' weights? `message.views()` are the
        - # parts of `message.flat` in the shapes of `message.tensors`. `torch.where`, unlike `if`, lets a GPU go on.
        - ### BEGIN SOLUTION
        - if weight:
        -     message.flat.mul_(weight)
        - else:
        -     message.flat.zero_()
        - dist.all_reduce(message.flat, group=group)
        - total = message.flat[-1].clone()
        - message.flat.div_(total)
        - for tensor, mean in zip(message.tensors, message.views(), strict=True):
        -     torch.where(total > 0, mean.to(tensor.dtype), tensor, out=tensor)
        - ### END SOLUTION
        + from labkit.course.phase3_multi_node.local_sgd.given.arguments import check_tensors
        +
        + own = [tensor.detach() for tensor in check_tensors(tensors)]
        + wide = torch.float64 if any(tensor.dtype == torch.float64 for tensor in own) else torch.float32
        + share = own[0].new_full((1,), weight, dtype=wide)
        + parts = [(tensor.to(wide) * weight if weight else torch.zeros_like(tensor, dtype=wide)) for tensor in own]
        + sums = torch.cat([share, *(part.flatten() for part in parts)])
        + dist.all_reduce(sums, group=group, async_op=True).wait()
        + sums[1:] /= sums[0].clamp(min=torch.finfo(wide).tiny)
        + begin = 1
        + for tensor in own:
        +     mean = sums[begin : begin + tensor.numel()].view(tensor.shape)
        +     tensor.copy_(torch.where(sums[0] == 0, tensor.to(wide), mean))
        +     begin += tensor.numel()

        - shares = [int(global_batch_size * speed / sum(speeds)) for speed in speeds]
        - for _ in range(global_batch_size - sum(shares)):
        -     ends = [(share + 1) / speed for share, speed in zip(shares, speeds, strict=True)]
        -     shares[ends.index(min(ends))] += 1
        + free = [(1 / speed, rank) for rank, speed in enumerate(speeds)]  # when each rank would end one more sample
        + heapq.heapify(free)
        + shares = [0] * len(speeds)
        + for _ in range(global_batch_size):
        +     rank = free[0][1]
        +     shares[rank] += 1
        +     heapq.heapreplace(free, ((shares[rank] + 1) / speeds[rank], rank))

        - measured = self.samples > 0 and self.seconds > 0
        - speed = self.samples / self.seconds if measured else self.speeds[self.rank]
        - self.speeds = given.exchange_speeds(speed, self.group)
        + own = self.speeds[self.rank]
        + if self.seconds and self.samples:
        +     own = self.samples / self.seconds
          self.samples, self.seconds = 0, 0.0
        + self.speeds = given.exchange_speeds(own, self.group)

        - if self.steps < self.data_parallel_steps:
        -     weighted_average(given.gradients(self.parameters), samples, self.group)
        + self.steps += 1
        + if self.steps <= self.data_parallel_steps:
        +     grads = given.gradients(self.parameters)
        +     weighted_average(grads, samples, self.group)
              self.optimizer.step()
        - else:
        -     if samples:
        -         self.optimizer.step()
        -     self.local_steps, self.samples = self.local_steps + 1, self.samples + samples
        -     if self.local_steps == self.period:
        -         self.synchronize()
        - self.steps += 1
        +     return
        + self.local_steps += 1
        + self.samples += samples
        + if samples > 0:
        +     self.optimizer.step()
        + if self.local_steps % self.period == 0:
        +     self.synchronize()

        -     if self.local_steps:
        -         self.average()
        -         self.local_steps, self.samples = 0, 0
        -     ### END SOLUTION
        -
        +     if not self.local_steps:
        +         return
        +     self.average()
        +     self.local_steps = 0
        +     self.samples = 0
        +     ### END SOLUTION
        +
        + @torch.no_grad()
          def average(self) -> None:

        -     # the model at the last synchronization, in float32 or wider
        -     self.anchors = [nn.Parameter(given.widened(parameter)) for parameter in self.parameters]
        -     self.outer = outer(self.anchors)
        +     self.anchor = nn.Parameter(self.flat())
        +     self.outer = outer([self.anchor])
        +
        + def flat(self) -> Tensor:
        +     """Return all parameters as one tensor, in float32 or wider."""
        +     return torch.cat([given.widened(parameter).flatten() for parameter in self.parameters])

        - for anchor, parameter in zip(self.anchors, self.parameters, strict=True):
        -     anchor.grad = anchor - parameter
        - weighted_average(given.gradients(self.anchors), self.samples, self.group)
        + direction = self.anchor - self.flat()
        + weighted_average([direction], self.samples, self.group)
        + self.anchor.grad = direction
          self.outer.step()
        - for anchor, parameter in zip(self.anchors, self.parameters, strict=True):
        -     parameter.copy_(anchor)
        + parts = self.anchor.split([parameter.numel() for parameter in self.parameters])
        + for parameter, part in zip(self.parameters, parts, strict=True):
        +     parameter.copy_(part.view(parameter.shape))
    '''),
}
