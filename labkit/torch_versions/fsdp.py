"""FSDP: state that virtual ranks cannot share, and objects that they need not make."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from torch import Tensor

from labkit.torch_versions.dispatch import DisableTorchDispatch
from labkit.torch_versions.fake_tensors import FakeTensor, fake_view


def untimed_fsdp_state_dicts() -> None:
    """Let FSDP (version 1) make state dictionaries in several threads: it times steps for a log, one in a process."""
    from torch.distributed.fsdp import _debug_utils

    timer: Any = _debug_utils.SimpleProfiler
    timer.profile = lambda _: nullcontext()


def strides_once() -> None:
    """Compute a contiguous tensor's strides once for each shape: fully_shard asks three times for each parameter."""
    from torch.distributed.fsdp._fully_shard import _fsdp_param

    changed: Any = _fsdp_param
    original = changed.make_contiguous_strides_for
    known = functools.lru_cache(maxsize=4096)(original)

    @functools.wraps(original)
    def strides(shape: Any, *rest: Any) -> Any:
        return known(tuple(shape), *rest) if all(size.__class__ is int for size in shape) else original(shape, *rest)

    changed.make_contiguous_strides_for = strides


def chunks_on_demand() -> None:
    """Let fully_shard make only those chunks of a parameter that it looks at: its rank's and the first, not all."""
    from torch.distributed.fsdp._fully_shard import _fsdp_param

    changed: Any = _fsdp_param
    changed._chunk_with_empty = _Chunks


@functools.cache
def shards_padded_once() -> None:
    """Let fully_shard see that a fake parameter's shard is padded already; it would pad it again.

    May be called repeatedly. It compares addresses of their memory, which fake tensors do not have.
    """
    from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

    changed: Any = FSDPParam
    original = changed.reset_sharded_param

    @functools.wraps(original)
    def reset(self: Any) -> None:
        parameter = getattr(self._module_info.module, self._module_info.param_name)
        local, padded = getattr(parameter, "_local_tensor", None), self._sharded_param_data
        if not self.pin_memory and local.__class__ is padded.__class__ is FakeTensor:
            memory = padded.untyped_storage()
            if memory.nbytes() and memory._cdata == local.untyped_storage()._cdata:
                self.sharded_param, self._sharding_spec = parameter, parameter._spec
                return
        original(self)

    changed.reset_sharded_param = reset


class _Chunks(Sequence[Tensor]):
    """`torch.chunk(tensor, number, dim)`, with empty chunks at the end if these are fewer than `number`."""

    def __init__(self, tensor: Tensor, number: int, dim: int) -> None:
        self._tensor, self._number, self._dim = tensor, number, dim

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, index: Any) -> Any:
        size = self._tensor.size(self._dim)
        most = -(-size // self._number)
        begin = range(self._number)[index] * most
        if begin >= size > 0:
            return self._tensor.new_empty(0)
        if self._tensor.__class__ is not FakeTensor:
            return self._tensor.narrow(self._dim, begin, min(most, size - begin))
        # `narrow` without the operator: a view costs nothing, and of most chunks only the size is asked for
        shape, stride = list(self._tensor.shape), self._tensor.stride()
        shape[self._dim] = min(most, size - begin)
        with DisableTorchDispatch():
            return fake_view(self._tensor, shape, stride, self._tensor.storage_offset() + begin * stride[self._dim])
