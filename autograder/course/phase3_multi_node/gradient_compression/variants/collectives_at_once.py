"""Right: one tensor receives all messages, top elements come from a sort, residuals are changed in place, and buckets
that are finished early are looked for while others are still under way."""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from labkit.course.phase3_multi_node.gradient_compression import given
from labkit.course.phase3_multi_node.gradient_compression.given import Compressor

__all__ = ["CommunicationOptimizer", "OneBit", "PowerSGD", "Quantized", "RandomK", "TopK", "compression_hook"]


class Remembering(Compressor):
    def compress(self, gradient, name):
        rest = self.state[name].setdefault("residual", torch.zeros_like(gradient))
        rest += gradient
        message = self.encode(rest.clone(), name)
        rest -= self.decompress(message, gradient.shape, name)
        return message


@dataclass(eq=False)
class TopK(Remembering):
    ratio: float

    def encode(self, tensor, name):
        flat = tensor.flatten()
        places = flat.abs().argsort(descending=True)[: given.kept(self.ratio, flat.numel())]
        return flat[places], places.int()

    def decompress(self, message, shape, name):
        values, places = message
        found = torch.zeros(shape.numel(), dtype=values.dtype)
        found[places.long()] = values
        return found.reshape(shape)


@dataclass(eq=False)
class RandomK(Remembering):
    ratio: float
    seed: int
    summable = True

    def places(self, name, numel):
        count = -int(-self.ratio * numel // 1)
        step = self.state[name]["step"]
        generator = torch.Generator().manual_seed(self.seed + 1000 * sum(name.encode()) + 1_000_003 * step)
        return torch.rand(numel, generator=generator).argsort()[:count]

    def encode(self, tensor, name):
        self.state[name]["step"] = self.state[name].get("step", -1) + 1
        return (tensor.flatten()[self.places(name, tensor.numel())],)

    def decompress(self, message, shape, name):
        found = torch.zeros(shape.numel(), dtype=message[0].dtype)
        found[self.places(name, shape.numel())] = message[0]
        return found.reshape(shape)


@dataclass(eq=False)
class OneBit(Remembering):
    def encode(self, tensor, name):
        mean = tensor.abs().mean() if tensor.numel() else tensor.new_zeros(())
        return mean, given.pack(~tensor.signbit() | (tensor == 0), 1)

    def decompress(self, message, shape, name):
        mean, bits = message
        return torch.where(given.unpack(bits, 1, shape.numel()).bool(), mean, -mean).reshape(shape)


@dataclass(eq=False)
class Quantized(Remembering):
    bits: int = 8
    block: int = 256

    def encode(self, tensor, name):
        largest = 2 ** (self.bits - 1) - 1
        parts, units = [], []
        for row in tensor.flatten().split(self.block) if tensor.numel() else ():
            unit = row.abs().max() / largest
            units.append(unit)
            parts.append(torch.round(row / unit).clamp(-largest, largest) if unit > 0 else torch.zeros_like(row))
        if not units:
            return given.pack(tensor, self.bits), tensor.new_zeros(0, 1)
        return given.pack(torch.cat(parts) + largest, self.bits), torch.stack(units)[:, None]

    def decompress(self, message, shape, name):
        packed, units = message
        integers = given.unpack(packed, self.bits, shape.numel()).to(units.dtype) - (2 ** (self.bits - 1) - 1)
        return (integers * units.repeat_interleave(self.block)[: shape.numel()]).reshape(shape)


@dataclass(eq=False)
class PowerSGD(Compressor):
    rank: int
    summable = True

    def decompress(self, message, shape, name):
        if len(message) == 1:
            return message[0].reshape(shape)
        p, q = message
        return (p @ q.T).reshape(shape)

    def rounds(self, gradient, name):
        n, m = given.matrix_shape(gradient.shape)
        if self.rank * (n + m) >= n * m:
            answer = yield (gradient,)
            return answer
        kept = self.state[name]
        if not kept:
            kept["residual"] = torch.zeros_like(gradient)
            kept["q"] = given.random_matrix(m, self.rank, gradient, "start", name)
        whole = gradient + kept["residual"]
        matrix = whole.reshape(n, m)
        # orthonormal rows of Q do not change the columns that M Q spans
        start = torch.linalg.qr(kept["q"].to(torch.promote_types(gradient.dtype, torch.float32))).Q.to(gradient.dtype)
        answer = yield (matrix @ start,)
        wide = answer[0][0].to(torch.promote_types(gradient.dtype, torch.float32))
        p = torch.linalg.qr(wide).Q.to(gradient.dtype).contiguous()
        mine = (p.T @ matrix).T.contiguous()
        kept["residual"] = whole - self.decompress((p, mine), gradient.shape, name)
        answer = yield (mine,)
        kept["q"] = answer[0][0].clone()
        return [(p, answer[0][0])]


def communicated(compressor, bucket, group):
    rounds = given.BucketRounds(compressor, bucket)
    count = dist.get_world_size(group)
    while not rounds.done:
        mine = rounds.message
        if not mine.numel():
            rounds.advance([mine] * (1 if compressor.summable else count))
        elif compressor.summable:
            yield dist.all_reduce(mine, group=group, async_op=True)
            rounds.advance([mine / count])
        else:
            everything = mine.new_empty(count * mine.numel())
            yield dist.all_gather_into_tensor(everything, mine, group=group, async_op=True)
            rounds.advance(everything.chunk(count))


@dataclass(eq=False)
class CommunicationOptimizer:
    compressor: Compressor
    bucket_size_mb: float = 25.0
    enable_overlap: bool = True

    def all_reduce_compressed(self, gradients, group=None):
        started = []
        for bucket in given.buckets(gradients, self.bucket_size_mb):
            works = communicated(self.compressor, bucket, group)
            work = next(works, None)
            if self.enable_overlap:
                started.append((work, works))
            else:
                self._carry_on(work, works)
        while started:
            for work, _ in started:
                if work is not None:
                    work.wait()
            started = [(next(works, None), works) for work, works in started if work is not None]

    def _carry_on(self, work, works):
        while work is not None:
            work.wait()
            work = next(works, None)

    def hierarchical_all_reduce(self, gradients, intra_node_group, inter_node_group):
        node = given.NodeReduction(intra_node_group, inter_node_group)
        for bucket in node.own_buckets(given.buckets(gradients, self.bucket_size_mb), self.enable_overlap):
            works = communicated(self.compressor, bucket, inter_node_group)
            self._carry_on(next(works, None), works)
        node.broadcast()


def compression_hook(compressor, module=None, group=None):
    buckets = given.HookBuckets(module)

    def hook(state, bucket):
        pending = given.Pending(communicated(compressor, buckets.named(bucket), group))
        return buckets.future(bucket, pending)

    return hook
