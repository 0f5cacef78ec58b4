"""Gradients in buckets: several parameters' gradients, which are sent together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from torch import Tensor
from torch.distributed import ProcessGroup

from labkit.course.arguments import positive, require
from labkit.course.phase3_multi_node.gradient_compression.given.arguments import require_gradient

Bucket = list[tuple[str, Tensor]]
"""Names of parameters with their gradients, all of one dtype and on one device."""

Gradients = Mapping[str, Tensor] | Iterable[tuple[str, Tensor]]
"""Names of parameters with their gradients."""

Group = ProcessGroup | None
"""The ranks that take part; None: all of them."""


def buckets(gradients: Gradients, bucket_size_mb: float) -> Iterator[Bucket]:
    """Yield the gradients in buckets, in order; each as soon as there are `bucket_size_mb` (10**6 bytes) in it.

    gradients: a mapping, or pairs of a name and a tensor, taken one after the other: a bucket is yielded before the
    next gradient is taken. Raises ValueError for a size that is not above 0, and, at the pair concerned, for
    anything else and for a name given twice.
    """
    require("bucket_size_mb", bucket_size_mb, positive)
    pairs = gradients.items() if isinstance(gradients, Mapping) else gradients
    bucket: Bucket = []
    held, seen = 0, set[str]()
    for name, gradient in pairs:
        require_gradient(name, gradient)
        if name in seen:
            raise ValueError(f"gradients must have different names, got {name!r} twice")
        seen.add(name)
        if bucket and (gradient.dtype, gradient.device) != (bucket[0][1].dtype, bucket[0][1].device):
            yield bucket
            bucket, held = [], 0
        bucket.append((name, gradient.detach()))
        held += gradient.nbytes
        if held >= bucket_size_mb * 1e6:
            yield bucket
            bucket, held = [], 0
    if bucket:
        yield bucket
