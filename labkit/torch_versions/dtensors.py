"""DTensor: the form of an operator's result is computed once for all ranks of a process, hidden from dispatch modes.

DTensor keeps these decisions for each thread: the shape of the whole result, for which it runs the operator on fake
tensors, and its placements, for which it compares all strategies. Both are the same on every rank of equal meshes.
What follows from a mesh's layout is computed once, too.
"""

from __future__ import annotations

import copy
import functools
import inspect
import operator
from types import SimpleNamespace
from typing import Any

import torch

from labkit.torch_versions.dispatch import no_modes

__all__ = [
    "layouts_once", "local_part", "parts_once", "plan_once", "propagate_once", "signatures_once", "specs_in_one_step",
    "unmarked_for_compilers",
]  # fmt: skip

_MOST = 1 << 14
"""Decisions that are kept of each kind."""


def local_part(tensor: Any) -> tuple[Any, Any, Any]:
    """A DTensor's local tensor, its mesh and its placements; any other tensor, None and None."""
    spec = getattr(tensor, "_spec", None)
    return (tensor, None, None) if spec is None else (tensor._local_tensor, spec.mesh, spec.placements)


def _layout(spec: Any) -> Any:
    """All of a DTensor's specification but the ranks of its mesh."""
    mesh = spec.mesh
    placed = spec.placements, spec.shard_order, spec.use_strided_shard_as_shard_order
    return spec.tensor_meta, placed, mesh.device_type, mesh.shape, mesh.mesh_dim_names


def _keep(table: dict[Any, Any], form: Any, value: Any) -> None:
    if len(table) >= _MOST:
        table.clear()
    table[form] = value


@functools.cache
def unmarked_for_compilers() -> None:
    """Leave out DTensor's `__init__`, in a process that neither compiles nor exports. May be called repeatedly.

    It only announces the new tensor, whose attributes `__new__` has set, to `torch.compile` and `torch.export`: but in
    five calls, and each operator on DTensors makes a tensor.
    """
    from torch.distributed.tensor import DTensor

    changed: Any = DTensor
    changed.__init__ = object.__init__


@functools.cache
def layouts_once() -> None:
    """Compute what follows from a mesh's layout once for all ranks. May be called repeatedly.

    `mesh["data"]` checks and merges layouts a dozen times, and a program may ask for it at each collective. A layout is
    immutable numbers, so what follows from it never changes.
    """
    from torch.distributed import _mesh_layout

    methods = {"_MeshLayout": ("collapse",), "_FlatLayout": ("complement", "check_orthogonal")}
    for owner, names in methods.items():
        layout: Any = getattr(_mesh_layout, owner, None)  # an earlier torch may lack one of them
        for name in names:
            if name in getattr(layout, "__dict__", {}):
                setattr(layout, name, functools.cache(vars(layout)[name]))


@functools.cache
def parts_once() -> None:
    """Compute the parts of a mesh once, such as `mesh["data"]`: each call copies them. May be called repeatedly.

    torch makes a new mesh at each call, whose hash covers all ranks.
    """
    from torch.distributed.device_mesh import DeviceMesh

    changed: Any = DeviceMesh
    original, state = changed.__getitem__, changed.__getstate__

    def copied(mesh: Any) -> Any:
        part = object.__new__(DeviceMesh)
        for name, value in vars(mesh).items():
            part.__dict__[name] = value.copy() if value.__class__ in (dict, list) else value
        return part

    @functools.wraps(original)
    def known_part(self: Any, names: Any) -> Any:
        names = (names,) if names.__class__ is str else names
        own, groups = self._mesh_dim_names, getattr(self, "_dim_group_names", None)
        # the name of a flattened mesh may be that of another one later
        if not groups or names == own or names.__class__ is not tuple or not all(name in own for name in names):
            return original(self, names)
        form = names, tuple(groups)
        parts = vars(self).setdefault("_known_parts", {})
        if form not in parts:
            parts[form] = original(self, names)
            hash(parts[form])  # a mesh keeps its hash
        return copied(parts[form])

    @functools.wraps(state)
    def state_without_parts(self: Any) -> Any:
        kept = state(self)
        kept.pop("_known_parts", None)
        return kept

    changed.__getitem__, changed.__getstate__ = known_part, state_without_parts


@functools.cache
def specs_in_one_step() -> None:
    """Make a DTensor's specification in one step if its placements are known. May be called repeatedly.

    torch derives the order of shards from the placements each time, and checks it with each attribute that it sets.
    """
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    changed: Any = DTensorSpec
    fields = ("mesh", "placements", "tensor_meta", "shard_order", "use_strided_shard_as_shard_order")
    if tuple(changed.__dataclass_fields__) != fields:
        return  # of an earlier torch
    original = changed.__init__
    orders: dict[Any, tuple[Any, bool]] = {}

    @functools.wraps(original)
    def init(
        self: Any,
        mesh: Any,
        placements: Any,
        tensor_meta: Any = None,
        shard_order: Any = None,
        use_strided_shard_as_shard_order: bool | None = None,
    ) -> None:
        strided = use_strided_shard_as_shard_order
        if shard_order is not None or placements.__class__ is not tuple or tensor_meta.__class__ is not TensorMeta:
            original(self, mesh, placements, tensor_meta, shard_order, strided)
            return
        form = placements, tuple([placement.__class__ for placement in placements]), strided
        known = orders.get(form)
        if known is None:
            original(self, mesh, placements, tensor_meta, shard_order, strided)
            _keep(orders, form, (self.shard_order, self.use_strided_shard_as_shard_order))
        else:
            values = mesh, placements, tensor_meta, *known
            self.__dict__.update(zip(fields, values, strict=True), _hash=None)

    changed.__init__ = init


@functools.cache
def signatures_once() -> None:
    """Let `distribute_module` look once at the signatures of equal partial functions. May be called repeatedly.

    It only counts their arguments, and each `parallelize_module` makes two of them for each module.
    """
    from torch.distributed.tensor import _api

    known: dict[Any, inspect.Signature] = {}

    def signature(function: Any) -> inspect.Signature:
        if function.__class__ is not functools.partial:
            return inspect.signature(function)
        form = function.func, len(function.args), tuple(function.keywords)
        if form not in known:
            _keep(known, form, inspect.signature(function))
        return known[form]

    changed: Any = _api
    changed.inspect = SimpleNamespace(signature=signature)


@functools.cache
def plan_once() -> None:
    """Plan the steps of a redistribution once for each place in a mesh. May be called repeatedly.

    torch does so, too, except on fake tensors, where it takes a program for one that is being compiled.
    """
    from torch.distributed.tensor import _redistribute

    changed: Any = _redistribute
    original, name = changed._gen_transform_infos_non_cached, "_FORCE_MIN_COST_REDISTRIBUTION_PLAN"

    plans: dict[Any, Any] = {}

    @functools.wraps(original)
    def plan(src_spec: Any, dst_spec: Any, use_graph_based_transform: bool | None = None) -> Any:
        place = src_spec.mesh.get_coordinate()
        how = use_graph_based_transform, getattr(changed, name, None)
        form = _layout(src_spec), _layout(dst_spec), None if place is None else tuple(place), how
        known = plans.get(form)
        if known is None:
            known = original(src_spec, dst_spec, use_graph_based_transform)
            _keep(plans, form, known)
        return known

    changed._gen_transform_infos_non_cached = plan


@functools.cache
def propagate_once() -> None:
    """Share the shapes and placements of results between threads. May be called repeatedly."""
    from torch.distributed.tensor._dtensor_spec import DTensorSpec
    from torch.distributed.tensor._op_schema import OpSchema
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    def of_shape(spec: DTensorSpec) -> Any:
        return spec.tensor_meta, spec.mesh.device_type

    def key(schema: Any, of_spec: Any) -> Any:
        """Everything that a decision depends on; None if it cannot be a key."""

        def part(argument: Any) -> Any:
            if isinstance(argument, DTensorSpec):
                return of_spec(argument)
            if isinstance(argument, (list, tuple)):
                return (argument.__class__, *map(part, argument))
            return argument.__class__, argument

        kwargs = [(name, part(value)) for name, value in schema.kwargs_schema.items()]
        dependencies = schema.op, torch.get_default_dtype(), part(schema.args_schema), *kwargs
        try:
            hash(dependencies)
        except TypeError:
            return None
        return dependencies

    def mesh_of(schema: Any) -> Any:
        """The mesh of all arguments; None if they have several."""
        meshes = {id(spec.mesh): spec.mesh for spec in schema.args_spec}
        return next(iter(meshes.values())) if len(meshes) == 1 else None

    def on(argument: Any, mesh: Any) -> Any:
        """The same specification, or argument with specifications, on another mesh."""
        if isinstance(argument, DTensorSpec):
            moved = copy.copy(argument)
            moved.mesh = mesh
            return moved
        if argument.__class__ in (list, tuple):
            return argument.__class__([on(item, mesh) for item in argument])
        return argument

    def decided_on(decision: Any, mesh: Any) -> Any:
        """The same decision on another mesh."""
        moved = copy.copy(decision)
        moved.output_spec = on(moved.output_spec, mesh)
        schema = moved.redistribute_schema
        if schema is not None:
            kwargs = {name: on(value, mesh) for name, value in schema.kwargs_schema.items()}
            moved.redistribute_schema = OpSchema(schema.op, on(schema.args_schema, mesh), kwargs, schema.schema_info)
        return moved

    shape, placement = "_propagate_tensor_meta_non_cached", "propagate_op_sharding_non_cached"
    find_shape, find_placement = getattr(ShardingPropagator, shape), getattr(ShardingPropagator, placement)
    shapes: dict[Any, Any] = {}
    placements: dict[Any, tuple[Any, list[Any]]] = {}

    @functools.wraps(find_shape)
    def known_shape(self: Any, schema: Any) -> Any:
        form = key(schema, of_shape)
        if form in shapes:
            return shapes[form]
        with no_modes():
            result = find_shape(self, schema)
        if form is not None:
            _keep(shapes, form, result)
        return result

    @functools.wraps(find_placement)
    def known_placement(self: Any, schema: Any) -> Any:
        mesh = mesh_of(schema)
        form = None if mesh is None else key(schema, _layout)
        if form is None:
            return find_placement(self, schema)
        place = mesh.get_coordinate()
        # ranks outside of the mesh weigh no costs, so they may decide otherwise
        forms = (form, place is None), (form, None if place is None else tuple(place))
        tables = self.op_strategy_funcs, self.op_single_dim_strategy_funcs, self.op_to_rules
        strategies = [table.get(schema.op) for table in tables]
        known, made_with = placements.get(forms[0]) or placements.get(forms[1]) or (None, [])
        # a program may have registered a strategy of its own since
        if known is not None and all(map(operator.is_, strategies, made_with)):
            return decided_on(known, mesh)
        decision = find_placement(self, schema)
        # a size that replaces an argument depends on the rank's place in the mesh; placements do not
        _keep(placements, forms[decision.use_val_from_redistribute_schema], (copy.copy(decision), strategies))
        return decision

    setattr(ShardingPropagator, shape, known_shape)
    setattr(ShardingPropagator, placement, known_placement)
