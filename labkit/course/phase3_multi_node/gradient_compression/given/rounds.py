"""The messages of a bucket, round by round: one tensor a round, which one collective carries.

A compressor's generator yields its message for a gradient and receives those of the ranks (`compressor.Rounds`).
Here the generators of all gradients of a bucket advance together, so the number of collectives does not depend on how
many parameters there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import Work

from labkit.course.phase3_multi_node.gradient_compression.given.buckets import Bucket
from labkit.course.phase3_multi_node.gradient_compression.given.compressor import Compressor, Message
from labkit.torch_versions.tensors import as_bytes

Works = Iterator[Work]
"""Iterator over the asynchronous work of each round of a bucket: `next` handles the last round and starts another."""


class BucketRounds:
    """The rounds of all gradients of a bucket; when it is `done`, the gradients hold their means over the ranks."""

    message: Tensor
    """This rank's message in this round, 1-D: in the gradients' dtype if messages can be added up, else bytes. If it is
    empty, there is nothing to send."""

    def __init__(self, compressor: Compressor, bucket: Bucket) -> None:
        self._compressor = compressor
        waiting = [(name, gradient, compressor.rounds(gradient, name)) for name, gradient in bucket if gradient.numel()]
        self._waiting = [(*entry, next(entry[-1])) for entry in waiting]
        self._join()

    @property
    def done(self) -> bool:
        """Whether all rounds are over."""
        return not self._waiting

    def advance(self, received: Sequence[Tensor]) -> None:
        """Answer this round: each of `received` is laid out as `message`. Then `message` is that of the next round.

        received: the messages of all ranks, in their order, or their mean as the only one.
        """
        parts = [_separated(flat, self._tensors) for flat in received]
        begin, waiting = 0, []
        for name, gradient, rounds, sent in self._waiting:
            end = begin + len(sent)
            answer = [tuple(tensors[begin:end]) for tensors in parts]
            begin = end
            try:
                waiting.append((name, gradient, rounds, rounds.send(answer)))
            except StopIteration as finished:
                self._write(name, gradient, finished.value)
        self._waiting = waiting
        self._join()

    def _join(self) -> None:
        self._tensors = [tensor for *_, sent in self._waiting for tensor in sent]
        self.message = _joined(self._tensors, in_bytes=not self._compressor.summable)

    def _write(self, name: str, gradient: Tensor, messages: list[Message]) -> None:
        mean = torch.zeros_like(gradient)
        for message in messages:
            mean += self._compressor.decompress(message, gradient.shape, name)
        gradient.copy_(mean / len(messages))


class Pending:
    """A bucket under way: `works` yields the asynchronous work of each round, and carries on when that is complete."""

    def __init__(self, works: Works) -> None:
        """Start the first round."""
        self._works = works
        self._work: Any = next(works, None)

    def advance(self) -> bool:
        """Wait for the round under way and start the next one; return whether there was one."""
        if self._work is None:
            return False
        self._work.wait()
        self._work = next(self._works, None)
        return self._work is not None


def finish(pending: Sequence[Pending]) -> None:
    """Wait for all rounds of these buckets. Each next round is started in the order of the buckets, on every rank."""
    while pending:
        pending = [bucket for bucket in pending if bucket.advance()]


def _joined(tensors: Sequence[Tensor], in_bytes: bool) -> Tensor:
    flat = [as_bytes(tensor) if in_bytes else tensor.contiguous().view(-1) for tensor in tensors]
    return torch.cat(flat) if flat else torch.empty(0, dtype=torch.uint8)


def _separated(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Return the parts of `flat`, with the shapes and dtypes of the tensors that were joined in the same layout."""
    parts, begin = [], 0
    for tensor in like:
        size = tensor.numel() if flat.dtype == tensor.dtype else tensor.nbytes
        part = flat[begin : begin + size]
        if part.dtype != tensor.dtype:
            # a float32 in the middle of bytes may begin at any of them
            part = part.clone().view(tensor.dtype)
        parts.append(part.view(tensor.shape))
        begin += size
    return parts
