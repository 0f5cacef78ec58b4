"""Fake tensors, tensor subclasses, and operations hidden from dispatch modes."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes, is_traceable_wrapper_subclass

from labkit.clusters.torch_versions.groups import replace_function


def ddp_of_shapes() -> None:
    """Make DistributedDataParallel assume that parameters are equal at first, and form its buckets at once.

    Its C++ part would read fake tensors to compare parameters, and to agree on buckets after the first pass. The
    buckets are those that result when gradients arrive in the opposite order of the parameters.
    """
    from torch.nn.parallel import DistributedDataParallel

    ddp: Any = DistributedDataParallel
    private: Any = dist
    private.Reducer._rebuild_buckets = lambda self: False
    helper, assign, original = ddp._ddp_init_helper, private._compute_bucket_assignment_by_size, ddp.__init__

    @functools.wraps(helper)
    def init_helper(self: Any, *args: Any, **options: Any) -> None:
        def assigned(tensors: list[Any], limits: list[int], *rest: Any) -> tuple[list[list[int]], list[int]]:
            last = len(tensors) - 1
            if limits == [sys.maxsize]:  # one bucket for all, until the first pass shows the order
                limits = [min(private._DEFAULT_FIRST_BUCKET_BYTES, self.bucket_bytes_cap), self.bucket_bytes_cap]
            buckets, sizes = assign(tensors[::-1], limits, *[list(flags)[::-1] for flags in rest])
            return [[last - index for index in bucket] for bucket in buckets[::-1]], sizes[::-1]

        private._compute_bucket_assignment_by_size = assigned
        try:
            helper(self, *args, **options)
        finally:
            private._compute_bucket_assignment_by_size = assign

    @functools.wraps(original)
    def init(self: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **{**options, "init_sync": False})

    ddp._ddp_init_helper, ddp.__init__ = init_helper, init


def all_ddp() -> list[Any]:
    """Every DistributedDataParallel of this process."""
    from torch.nn.parallel import DistributedDataParallel

    return [thing for thing in gc.get_objects() if issubclass(type(thing), DistributedDataParallel)]


def ddp_afresh(found: list[Any], groups: list[dist.ProcessGroup]) -> None:
    """Reset the first-pass state and the buckets of those in `found` whose group is one of `groups`.

    In a failed pass some ranks may have agreed on new buckets, and others not, so they would differ.
    """
    register: Any = dist._register_comm_hook  # type: ignore[attr-defined]  # private
    for ddp in found:
        if "reducer" not in ddp.__dict__ or not any(ddp.process_group is group for group in groups):
            continue
        parameters, expect_sparse_gradient = ddp._build_params_for_reducer()
        names = ddp._build_debug_param_to_name_mapping(parameters)
        ddp._ddp_init_helper(parameters, expect_sparse_gradient, names, ddp.static_graph)
        if ddp.static_graph:
            ddp.reducer._set_static_graph()
        for hook, state in ddp._comm_hooks:
            register(ddp.reducer, state, hook)


def shapes_of_dtensors_apart() -> None:
    """Hide from dispatch modes the operators on fake tensors by which DTensor computes the shape of a whole result."""
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    name = "_propagate_tensor_meta_non_cached"
    original = getattr(ShardingPropagator, name)

    @functools.wraps(original)
    def propagate(self: Any, schema: Any) -> Any:
        with no_modes():
            return original(self, schema)

    setattr(ShardingPropagator, name, propagate)


def fake_tensor(meta: torch.Tensor, device: torch.device, attributes: dict[str, Any]) -> torch.Tensor:
    """A fake tensor of `device` from one on `meta`, with another's attributes: its constructor, but shorter."""
    fake = torch.Tensor._make_subclass(FakeTensor, meta, False, dispatch_device=True, device_for_backend_keys=device)
    torch._C._set_throw_on_mutable_data_ptr(fake)
    vars(fake).update(attributes)
    return fake


def swap_fake_tensors(mode: FakeTensorMode) -> None:
    """Let `module.to(torch.bfloat16)` swap fake parameters with new ones, which torch refuses while weak references to
    them exist. The mode has some since their creation: it drops them first.
    """
    original: Callable[..., None] = torch.utils.swap_tensors
    known: Any = mode.fake_tensor_converter.meta_converter.tensor_memo

    @functools.wraps(original)
    def swap(first: torch.Tensor, second: torch.Tensor) -> None:
        for key in [key for key, tensor in known.items() if tensor is first or tensor is second]:
            del known[key]
        original(first, second)

    torch.utils.swap_tensors = swap


@functools.cache
def meshes_apart() -> None:
    """Hide from dispatch modes the tensors in which a DeviceMesh keeps its ranks. May be called repeatedly."""
    from torch.distributed import device_mesh

    def apart(original: Any) -> Any:
        @functools.wraps(original)
        def method(*args: Any, **options: Any) -> Any:
            with no_modes():
                return original(*args, **options)

        return method

    initial = device_mesh.init_device_mesh
    for module in list(sys.modules.values()):  # torch's modules that imported it by name
        if getattr(module, "__dict__", {}).get("init_device_mesh") is initial:
            setattr(module, "init_device_mesh", apart(initial))  # noqa: B010  # not known of a module
    mesh = device_mesh.DeviceMesh
    for name in ("__init__", "__getitem__", "_flatten", "_unflatten", "from_group"):
        if callable(vars(mesh).get(name)):
            setattr(mesh, name, apart(vars(mesh)[name]))
    if isinstance(vars(mesh).get("mesh"), property):
        mesh.mesh = property(apart(vars(mesh)["mesh"].fget))  # type: ignore[assignment]


def objects_without_modes() -> None:
    """Hide collectives of Python objects from dispatch modes: they pickle them into tensors, whose values matter."""
    names = ("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list")
    for name in (*names, "send_object_list", "recv_object_list"):
        replace_function(name, _without_modes(getattr(dist, name)))


def _without_modes(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        with no_modes():
            return original(*args, **options)

    return call


def no_modes() -> AbstractContextManager[Any]:
    """Within the context, no dispatch mode sees this thread's operators."""
    return _disable_current_modes()


def plain_tensors(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors that hold a tensor's data: a DTensor's local one, for instance, or `[tensor]` itself."""
    if not is_traceable_wrapper_subclass(tensor):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()
    parts = (getattr(tensor, name) for name in names)  # includes a DTensor's mesh
    return [plain for part in parts if isinstance(part, torch.Tensor) for plain in plain_tensors(part)]
