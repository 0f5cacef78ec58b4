"""Right: one class for each idea. Feedback is a function, both sparse compressors share their way back, Gram-Schmidt is
written out, and the hook and the optimizer share one list of buckets under way."""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from labkit.course.phase3_multi_node.gradient_compression import given
from labkit.course.phase3_multi_node.gradient_compression.given import Compressor

__all__ = ["CommunicationOptimizer", "OneBit", "PowerSGD", "Quantized", "RandomK", "TopK", "compression_hook"]


def owed(state, gradient):
    return gradient + state["residual"] if "residual" in state else gradient


def in_place_of(values, places, shape):
    found = values.new_zeros(shape.numel())
    found.index_copy_(0, places.long(), values)
    return found.view(shape)


class WithFeedback(Compressor):
    def compress(self, gradient, name):
        whole = owed(self.state[name], gradient)
        message = self.encode(whole, name)
        self.state[name]["residual"] = torch.sub(whole, self.decompress(message, gradient.shape, name))
        return message


@dataclass(eq=False)
class TopK(WithFeedback):
    ratio: float

    def encode(self, tensor, name):
        magnitudes = tensor.reshape(-1).abs()
        places = magnitudes.topk(given.kept(self.ratio, magnitudes.numel())).indices.sort().values
        return places.to(torch.int32), tensor.reshape(-1).gather(0, places)

    def decompress(self, message, shape, name):
        return in_place_of(message[1], message[0], shape)


@dataclass(eq=False)
class RandomK(WithFeedback):
    ratio: float
    seed: int
    summable = True

    def places(self, name, numel):
        return given.random_indices(numel, self.ratio, name, self.seed, self.state[name]["step"])

    def encode(self, tensor, name):
        self.state[name]["step"] = self.state[name].get("step", 0) + 1
        return (tensor.reshape(-1).gather(0, self.places(name, tensor.numel())),)

    def decompress(self, message, shape, name):
        return in_place_of(message[0], self.places(name, shape.numel()), shape)


@dataclass(eq=False)
class OneBit(WithFeedback):
    def encode(self, tensor, name):
        return given.pack(tensor.ge(0), 1), tensor.norm(1).reshape(1) / (tensor.numel() or 1)

    def decompress(self, message, shape, name):
        return (given.unpack_signs(message[0], shape.numel()) * message[1]).view(shape)


@dataclass(eq=False)
class Quantized(WithFeedback):
    bits: int = 8
    block: int = 256

    def encode(self, tensor, name):
        largest = 2 ** (self.bits - 1) - 1
        rows = given.in_blocks(tensor, self.block)
        units = rows.abs().max(1, keepdim=True).values / largest
        integers = (rows / units).nan_to_num(0).round() + largest
        return given.pack(integers.clamp(0, 2 * largest).view(-1)[: tensor.numel()], self.bits), units

    def decompress(self, message, shape, name):
        integers = given.unpack(message[0], self.bits, shape.numel()).to(message[1].dtype)
        rows = given.in_blocks(integers - (2 ** (self.bits - 1) - 1), self.block)
        return given.from_blocks(rows * message[1], shape)


@dataclass(eq=False)
class PowerSGD(Compressor):
    rank: int
    summable = True

    def decompress(self, message, shape, name):
        return message[0].view(shape) if len(message) == 1 else (message[0] @ message[1].T).view(shape)

    def rounds(self, gradient, name):
        n, m = given.matrix_shape(gradient.shape)
        if self.rank * (n + m) >= n * m:
            return (yield (gradient,))
        state = self.state[name]
        matrix = owed(state, gradient).reshape(n, m)
        if "q" not in state:
            state["q"] = given.random_matrix(m, self.rank, gradient, name)
        ((p,),) = yield (matrix @ state["q"],)
        p = self.orthonormal(p)
        own = matrix.T @ p
        state["residual"] = (matrix - p @ own.T).view(gradient.shape)
        ((q,),) = yield (own,)
        state["q"] = q
        return [(p, q)]

    def orthonormal(self, p):
        """Gram-Schmidt, twice: once leaves float32's errors in nearly parallel columns."""
        columns = []
        for column in p.double().T:
            for _ in range(2):
                for other in columns:
                    column = column - other * (other @ column)
                column = column / column.norm().clamp(min=1e-30)
            columns.append(column)
        return torch.stack(columns, 1).to(p.dtype)


def exchange(compressor, bucket, group):
    rounds = given.BucketRounds(compressor, bucket)
    while not rounds.done:
        received = [rounds.message]
        if compressor.summable:
            if rounds.message.numel():
                yield dist.all_reduce(rounds.message, group=group, async_op=True)
                received = [rounds.message / dist.get_world_size(group)]
        else:
            received = [torch.empty_like(rounds.message) for _ in range(dist.get_world_size(group))]
            if rounds.message.numel():
                yield dist.all_gather(received, rounds.message, group=group, async_op=True)
        rounds.advance(received)


@dataclass(eq=False)
class CommunicationOptimizer:
    compressor: Compressor
    bucket_size_mb: float = 25.0
    enable_overlap: bool = True

    def all_reduce_compressed(self, gradients, group=None):
        self._finish(self._start(given.buckets(gradients, self.bucket_size_mb), group))

    def hierarchical_all_reduce(self, gradients, intra_node_group, inter_node_group):
        node = given.NodeReduction(intra_node_group, inter_node_group)
        own = node.own_buckets(given.buckets(gradients, self.bucket_size_mb), self.enable_overlap)
        self._finish(self._start(own, inter_node_group))
        node.broadcast()

    def _start(self, buckets, group):
        under_way = []
        for bucket in buckets:
            under_way.append(given.Pending(exchange(self.compressor, bucket, group)))
            if not self.enable_overlap:
                self._finish(under_way)
        return under_way

    def _finish(self, under_way):
        given.finish(under_way)
        under_way.clear()


def compression_hook(compressor, module=None, group=None):
    buckets = given.HookBuckets(module)
    return lambda _, bucket: buckets.future(bucket, given.Pending(exchange(compressor, buckets.named(bucket), group)))
