"""Tensors: their storage, subclasses, DistributedDataParallel's, and operations hidden from dispatch modes."""

from __future__ import annotations

import copy
import functools
import gc
import sys
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from labkit.imported_modules import NamesInModules
from labkit.torch_versions.dispatch import has_modes, no_modes
from labkit.torch_versions.dtensors import local_part
from labkit.torch_versions.fake_tensors import FakeTensor
from labkit.torch_versions.groups import replace_function

__all__ = [
    "IS_PARAMETER", "all_ddp", "as_bytes", "coo_parts", "ddp_afresh", "ddp_of_shapes", "meshes_apart",
    "objects_without_modes", "plain_tensors", "post_accumulate_grad_hooks", "storage_key",
    "tree_flatten", "tree_leaves", "tree_map", "tree_unflatten", "view_base",
]  # fmt: skip

storage_key: Callable[[torch.UntypedStorage], int] = attrgetter("_cdata")
"""Address of a storage's C++ object: the same for all Python objects of one storage, also on `meta`."""

view_base: Callable[[Tensor], Tensor | None] = attrgetter("_base")
"""The tensor that a tensor is a view of; None if it is no view."""

_WITHOUT_PARTS = (Tensor, torch.nn.Parameter, FakeTensor)

IS_PARAMETER = "_is_param"
"""Attribute by which torch marks a tensor of a subclass, such as a fake one, as a parameter."""


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


_meshes = NamesInModules("init_device_mesh")


@functools.cache
def meshes_apart() -> None:
    """Hide from dispatch modes the tensors in which a DeviceMesh keeps its ranks. May be called repeatedly."""
    from torch.distributed import device_mesh

    def apart(original: Any) -> Any:
        @functools.wraps(original)
        def method(*args: Any, **options: Any) -> Any:
            if not has_modes():  # called by another of these methods
                return original(*args, **options)
            with no_modes():
                return original(*args, **options)

        return method

    initial = device_mesh.init_device_mesh
    for _, namespace, name in _meshes.find():
        if namespace[name] is initial:
            namespace[name] = apart(initial)
    mesh = device_mesh.DeviceMesh
    for name in ("__init__", "__getitem__", "_flatten", "_unflatten", "from_group"):
        if callable(vars(mesh).get(name)):
            setattr(mesh, name, apart(vars(mesh)[name]))
    if isinstance(vars(mesh).get("mesh"), property):
        mesh.mesh = property(apart(vars(mesh)["mesh"].fget))  # type: ignore[assignment]

    def deepcopy(self: Any, memo: dict[int, Any]) -> Any:
        copied = memo[id(self)] = object.__new__(type(self))
        copied.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return copied

    if "__deepcopy__" not in vars(mesh):
        mesh.__deepcopy__ = apart(deepcopy)  # type: ignore[attr-defined]


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


def as_bytes(tensor: Tensor) -> Tensor:
    """A strided tensor's elements, in order, as bytes in one dimension: a view if they lie one after the other.

    A single element counts as contiguous whatever its stride is, but torch refuses to view it as bytes then.
    """
    flat = tensor.contiguous()
    return flat.as_strided((flat.numel(),), (1,)).view(torch.uint8)


def plain_tensors(tensor: Tensor) -> list[Tensor]:
    """The tensors that hold a tensor's data: a DTensor's local one, for instance, or `[tensor]` itself."""
    if tensor.__class__ in _WITHOUT_PARTS:
        return [tensor]
    local, mesh, _ = local_part(tensor)  # of a DTensor, without a look at its protocol
    if mesh is not None:
        return plain_tensors(local)
    if not is_traceable_wrapper_subclass(tensor):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()
    parts = (getattr(tensor, name) for name in names)  # includes a DTensor's mesh
    return [plain for part in parts if isinstance(part, Tensor) for plain in plain_tensors(part)]


def coo_parts(tensor: Tensor) -> list[Tensor]:
    """Indices and values of a sparse COO tensor, which need not be coalesced."""
    return [tensor._indices(), tensor._values()]


def post_accumulate_grad_hooks(parameter: Tensor) -> dict[int, Callable[[Tensor], None]] | None:
    """Hooks that `register_post_accumulate_grad_hook` has registered; None if there never was one."""
    hooks: dict[int, Callable[[Tensor], None]] | None = parameter._post_accumulate_grad_hooks
    return hooks


def print_options() -> dict[str, Any]:
    """The options that `torch.set_printoptions` has set, for `set_print_options`."""
    return dict(vars(torch._tensor_str.PRINT_OPTS))


def set_print_options(options: dict[str, Any]) -> None:
    """Set all options of printing tensors."""
    vars(torch._tensor_str.PRINT_OPTS).update(options)
