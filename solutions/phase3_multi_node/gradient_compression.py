"""Gradient compression: ranks send a short message for each gradient, and keep what it lacks for the next step.

A message is a tuple of tensors. If messages can be added up (`summable`), an all-reduce carries them: what a rank
receives does not grow with the number of ranks N. Others are gathered: a rank receives and decompresses N of them. What
was not sent is added to the next gradient (Seide et al. 2014). `Compressor` is given: it saves `self.state`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Size, Tensor, nn

from labkit.course.phase3_multi_node.gradient_compression import given
from labkit.course.phase3_multi_node.gradient_compression.given import Compressor, Gradients, Group, Message, Pending

__all__ = ["CommunicationOptimizer", "OneBit", "PowerSGD", "Quantized", "RandomK", "TopK", "compression_hook"]


class ErrorFeedback(Compressor):
    """A compressor that keeps what it does not send: `self.state[name]["residual"]`, for each parameter."""

    def compress(self, gradient: Tensor, name: str) -> Message:
        """Return the message for `gradient`, of parameter `name`, plus its residual, if there is one already. Keep as
        new residual exactly that sum minus `self.decompress(message, ...)`. `gradient` stays as it is."""
        state = self.state[name]
        # TODO 1. Which tensor does `self.encode(tensor, name)` get? Keep what its message does not tell the receivers.
        ### BEGIN SOLUTION
        corrected = gradient + state["residual"] if "residual" in state else gradient
        message = self.encode(corrected, name)
        state["residual"] = corrected - self.decompress(message, gradient.shape, name)
        return message
        ### END SOLUTION


@dataclass(eq=False)
class TopK(ErrorFeedback):
    """Sends the ceil(ratio * numel) elements of largest magnitude (Aji & Heafield 2017). Message: int32 indices into
    the flat tensor, and the values there; 8 bytes for each float32 that is sent."""

    ratio: float

    def encode(self, tensor: Tensor, name: str) -> Message:
        flat, count = tensor.reshape(-1), given.kept(self.ratio, tensor.numel())
        # TODO 2. What each message holds: here, in RandomK, OneBit and Quantized. `decompress` shows how it is read.
        ### BEGIN SOLUTION
        indices = flat.abs().topk(count, sorted=False).indices
        return indices.to(torch.int32), flat[indices]
        ### END SOLUTION

    def decompress(self, message: Message, shape: Size, name: str) -> Tensor:
        indices, values = message
        return values.new_zeros(shape.numel()).scatter(0, indices.long(), values).view(shape)


@dataclass(eq=False)
class RandomK(ErrorFeedback):
    """Sends ceil(ratio * numel) elements, others at each step (Stich et al. 2018). Message: their values alone, since
    `given.random_indices` are the same on all ranks: they follow from seed, name, and the number of this step."""

    ratio: float
    seed: int
    summable = True

    def encode(self, tensor: Tensor, name: str) -> Message:
        self.state[name]["step"] = step = self.state[name].get("step", 0) + 1
        ### BEGIN SOLUTION
        indices = given.random_indices(tensor.numel(), self.ratio, self.seed, name, step).to(tensor.device)
        return (tensor.reshape(-1)[indices],)
        ### END SOLUTION

    def decompress(self, message: Message, shape: Size, name: str) -> Tensor:
        indices = given.random_indices(shape.numel(), self.ratio, self.seed, name, self.state[name]["step"])
        return message[0].new_zeros(shape.numel()).scatter(0, indices.to(message[0].device), message[0]).view(shape)


class OneBit(ErrorFeedback):
    """Sends a bit for each element, 1 if it is 0 or more, and the mean magnitude (Karimireddy et al. 2019). Message:
    ceil(numel / 8) bytes by `given.pack`, and (1,) of the tensor's dtype; elements become plus or minus that."""

    def encode(self, tensor: Tensor, name: str) -> Message:
        ### BEGIN SOLUTION
        mean = tensor.abs().sum().reshape(1) / max(1, tensor.numel())
        return given.pack(tensor >= 0, 1), mean
        ### END SOLUTION

    def decompress(self, message: Message, shape: Size, name: str) -> Tensor:
        return (given.unpack_signs(message[0], shape.numel()) * message[1]).view(shape)


@dataclass(eq=False)
class Quantized(ErrorFeedback):
    """Rounds to integers from -L to L, L = 2**(bits - 1) - 1, in units of a block's largest magnitude / L (Dettmers et
    al. 2022). Message: numel integers plus L, by `given.pack`, and the units, (blocks, 1). Zeros stay zeros."""

    bits: int = 8
    block: int = 256

    def encode(self, tensor: Tensor, name: str) -> Message:
        rows, largest = given.in_blocks(tensor, self.block), 2 ** (self.bits - 1) - 1
        ### BEGIN SOLUTION
        units = rows.abs().amax(1, keepdim=True) / largest
        integers = (rows / torch.where(units > 0, units, 1)).round().clamp(-largest, largest)
        return given.pack(given.from_blocks(integers + largest, tensor.shape), self.bits), units
        ### END SOLUTION

    def decompress(self, message: Message, shape: Size, name: str) -> Tensor:
        integers = given.unpack(message[0], self.bits, shape.numel()).to(message[1].dtype) - (2 ** (self.bits - 1) - 1)
        return given.from_blocks(given.in_blocks(integers, self.block) * message[1], shape)


@dataclass(eq=False)
class PowerSGD(Compressor):
    """Sends a matrix M (n, m) as P (n, r), with orthonormal columns, and Q (m, r); M ≈ P Qᵀ (Vogels et al. 2019). A
    tensor's dimensions after the first count as one. Without a gain, r (n + m) >= n m, it is sent as it is: vectors."""

    rank: int
    summable = True

    def decompress(self, message: Message, shape: Size, name: str) -> Tensor:
        return (message[0] @ message[1].T if len(message) == 2 else message[0]).view(shape)

    def rounds(self, gradient: Tensor, name: str) -> given.Rounds:
        """P is the mean of M Q over the ranks, its columns made orthonormal; then Q is the mean of Mᵀ P. M is gradient
        plus residual; the new residual is M minus what this rank sends, P and its own Mᵀ P. The next step begins with
        the new Q, `state["q"]`, the first one with random numbers."""
        (n, m), r, state = given.matrix_shape(gradient.shape), self.rank, self.state[name]
        if r * (n + m) >= n * m:
            return (yield (gradient,))
        q = state["q"] if "q" in state else given.random_matrix(m, r, gradient, name)
        # TODO 3. `((mean,),) = yield (factor,)` sends a factor. QR needs float32 or more. Return [(P, Q)].
        ### BEGIN SOLUTION
        matrix = (gradient + state["residual"] if "residual" in state else gradient).reshape(n, m)
        ((p,),) = yield (matrix @ q,)
        p = torch.linalg.qr(p.to(torch.promote_types(p.dtype, torch.float32))).Q.to(p.dtype)
        own = matrix.T @ p
        state["residual"] = (matrix - p @ own.T).view(gradient.shape)
        ((state["q"],),) = yield (own,)
        return [(p, state["q"])]
        ### END SOLUTION


def exchange(compressor: Compressor, bucket: given.Bucket, group: Group) -> given.Works:
    """Replace a bucket's gradients by their means over the group; yield the asynchronous work of each round: one
    all-reduce if messages are `summable`, else one all-gather, and none if there is nothing to send."""
    rounds, world_size = given.BucketRounds(compressor, bucket), dist.get_world_size(group)
    while not rounds.done:
        sent = rounds.message
        # TODO 4. `received`: a list of all ranks' messages, or of their mean alone. `yield` the work; then it is done.
        # Below, `Pending(exchange(...))` starts a bucket; `given.finish` waits for a list of them.
        ### BEGIN SOLUTION
        received = [sent] if compressor.summable else [torch.empty_like(sent) for _ in range(world_size)]
        if sent.numel() and compressor.summable:
            yield dist.all_reduce(sent.div_(world_size), group=group, async_op=True)
        elif sent.numel():
            yield dist.all_gather(received, sent, group=group, async_op=True)
        ### END SOLUTION
        rounds.advance(received)


@dataclass(eq=False)
class CommunicationOptimizer:
    """Replaces gradients by their means over ranks, in buckets of `bucket_size_mb` MB (10**6 bytes). enable_overlap: go
    on to the next gradients before a bucket is finished. gradients: a mapping from names to tensors, or pairs, taken
    one by one as the backward pass computes them; names, shapes and dtypes are the same on every rank."""

    compressor: Compressor
    bucket_size_mb: float = 25.0
    enable_overlap: bool = True

    def all_reduce_compressed(self, gradients: Gradients, group: Group = None) -> None:
        """Exchange all buckets; each begins when its last gradient has been taken."""
        under_way: list[Pending] = []
        for bucket in given.buckets(gradients, self.bucket_size_mb):
            ### BEGIN SOLUTION
            under_way.append(Pending(exchange(self.compressor, bucket, group)))
            if not self.enable_overlap:
                given.finish(under_way)
            ### END SOLUTION
        given.finish(under_way)

    def hierarchical_all_reduce(self, gradients: Gradients, intra_node_group: Group, inter_node_group: Group) -> None:
        """Add up inside each node uncompressed; take the mean over the nodes compressed (`given.NodeReduction`)."""
        node = given.NodeReduction(intra_node_group, inter_node_group)
        own = node.own_buckets(given.buckets(gradients, self.bucket_size_mb), self.enable_overlap)
        ### BEGIN SOLUTION
        given.finish([Pending(exchange(self.compressor, bucket, inter_node_group)) for bucket in own])
        ### END SOLUTION
        node.broadcast()


def compression_hook(compressor: Compressor, module: nn.Module | None = None, group: Group = None) -> given.CommHook:
    """Return a hook: `model.register_comm_hook(None, compression_hook(TopK(0.01)))`. It starts a bucket and returns its
    future; with the last bucket all are finished. module: gives names to parameters, else numbered in HookBuckets."""
    started = given.HookBuckets(module)
    ### BEGIN SOLUTION
    return lambda state, bucket: started.future(bucket, Pending(exchange(compressor, started.named(bucket), group)))
    ### END SOLUTION
