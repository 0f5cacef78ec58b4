"""torch.compile: what is prepared before its first use, its caches and state, and the code that inductor generates.

Nothing here imports the compiler before a program uses it: that takes more than a second.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from types import FunctionType
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.function import FunctionCtx
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _python_dispatch

DEFAULT_BACKEND = "inductor"
_LAB = tuple(f"labkit.{name}" for name in ("clusters", "hardware", "linux", "torch_versions", "trace", "transport"))
"""Packages that learners' models do not come from."""


def prepare_with(prepare: Callable[[], None], backend_for: Callable[[Any], Any] = lambda backend: backend) -> None:
    """Call `prepare` before this process, or a fork of it, uses torch.compile for the first time.

    `backend_for(requested)` is used in place of the backend that the program requests; if it is another one, the
    options for the requested one are left out.
    """
    original = torch.compile
    once = functools.cache(prepare)

    @functools.wraps(original)
    def compile(model: Any = None, *, backend: Any = DEFAULT_BACKEND, **options: Any) -> Any:
        once()
        chosen = backend_for(backend)
        if chosen != backend:
            options = {**options, "mode": None, "options": None}
        return original(model, backend=chosen, **options)

    torch.compile = compile


def leave_uncompiled() -> None:
    """Make `torch.compile` return its argument; a module gets the prefix of compiled ones."""

    @functools.wraps(torch.compile)
    def compile(model: Any = None, **how: Any) -> Any:
        if model is None:  # a decorator with arguments
            return functools.partial(compile, **how)
        if not isinstance(model, torch.nn.Module):
            return model
        # takes more than a second unless it was imported before the fork
        from torch._dynamo import disable
        from torch._dynamo.eval_frame import OptimizedModule

        return OptimizedModule(model, disable())

    torch.compile = compile


def never_trace_lab() -> None:
    """Leave the functions that run ranks out of graphs: a call of one breaks the graph, and it runs as it is."""
    from torch._dynamo import trace_rules

    for package in _LAB:
        trace_rules.add(package)


def trace_replaced_collectives() -> None:
    """Trace functions of torch.distributed that `groups.replace_function` has replaced as torch's own: into graphs."""
    from torch.distributed import _functional_collectives

    traceable: dict[Any, Any] = _functional_collectives.traceable_collective_remaps
    for function in [function for function in vars(dist).values() if type(function) is FunctionType]:
        original = function
        while original not in traceable and hasattr(original, "__wrapped__"):
            original = original.__wrapped__
        if original in traceable:
            traceable[function] = traceable[original]


def while_compiling(context: Callable[[], AbstractContextManager[None]]) -> None:
    """Enter `context()` whenever the compiler is at work: it traces a function, or compiles its backward pass."""
    from torch._dynamo.callback import callback_handler

    handler: Any = callback_handler
    original = handler.install_callbacks

    @contextmanager
    def install(*args: Any, **options: Any) -> Any:
        with context(), _python_dispatch._disable_current_modes(), original(*args, **options):
            yield

    handler.install_callbacks = install


# Several ranks in one process -------------------------------------------------------------------------------------


def can_separate_caches() -> bool:
    """Whether this version of torch can compile one function separately for each of several ranks."""
    return hasattr(torch._C._dynamo.eval_frame, "set_eval_frame_isolate_recompiles_id")


_FIRST_REGION = 1 << 32
"""Regions below it are those of `torch.compile(isolate_recompiles=True)`."""


def separate_caches(rank: Callable[[], int | None], ranks: int) -> None:
    """Compile functions separately for each rank, although ranks have the same code objects.

    `rank()` is the running rank, None for a thread of none. torch keeps compiled code per code object and region.
    """
    from torch._dynamo import config, eval_frame

    module: Any = eval_frame
    original = module.set_eval_frame_isolate_recompiles_id

    def set_region(region: int) -> int:
        number = rank()
        own = region if region != -1 or number is None else _FIRST_REGION + number
        return int(original(own))

    module.set_eval_frame_isolate_recompiles_id = set_region
    # counts the compiled versions of all ranks
    _set_default(config, "accumulated_recompile_limit", config.accumulated_recompile_limit * ranks)


State = tuple[Callable[[], Any], Callable[[Any], object], Callable[[Any], Any]]
"""Functions that read and write a piece of state, and one that makes a rank's first value from the present one."""


def compiler_state() -> list[State]:
    """State of the compiler that a process has once, and that differs between ranks."""
    from torch._C._dynamo import eval_frame as bindings
    from torch._dynamo import eval_frame, pgo, utils

    guards: Any = torch._C._dynamo.guards
    counters: Any = utils.counters

    def set_counters(values: dict[str, Any]) -> None:
        counters.clear()
        counters.update(values)

    def set_modes(flags: tuple[Any, ...]) -> None:
        write_modes(flags)
        guards.set_is_in_mode_without_ignore_compile_internals(flags[0])

    read_modes, write_modes = _attributes(
        _python_dispatch,
        "_is_in_any_mode_without_ignore_compile_internals",
        "_is_in_torch_dispatch_mode",
        "_is_in_non_infra_torch_dispatch_mode",
    )
    return [
        (lambda: dict(counters), set_counters, lambda _: {}),
        (read_modes, set_modes, lambda flags: flags),
        # which sizes of a function's arguments have differed between calls
        (*_attributes(pgo, "_CODE_STATE", "_INIT_CODE_STATE"), lambda _: (None, None)),
        (*_attributes(DistributedDataParallel, "_active_ddp_module"), lambda _: (None,)),
        (*_attributes(eval_frame, "_stance"), lambda stance: stance),
        (*_attributes(utils, "_error_on_graph_break"), lambda _: (False,)),
        (
            bindings.get_eval_frame_isolate_recompiles_id,
            bindings.set_eval_frame_isolate_recompiles_id,
            lambda _: -1,
        ),
    ]


def _attributes(owner: Any, *names: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    def read() -> tuple[Any, ...]:
        return tuple(getattr(owner, name) for name in names)

    def write(values: tuple[Any, ...]) -> None:
        for name, value in zip(names, values, strict=True):
            setattr(owner, name, value)

    return read, write


# Compiled graphs and inductor's code ------------------------------------------------------------------------------


def when_saved_for_backward(saved: Callable[[tuple[Any, ...]], None]) -> None:
    """Call `saved` with what functions of autograd, compiled graphs among them, keep for their backward passes."""
    original = FunctionCtx.save_for_backward

    @functools.wraps(original)
    def save(self: Any, *tensors: Any) -> None:
        saved(tensors)
        original(self, *tensors)

    FunctionCtx.save_for_backward = save  # type: ignore[method-assign]


def has_cpp_compiler() -> bool:
    """Whether inductor finds a C++ compiler."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return False
    return True


def links_with_torch() -> bool:
    """Whether inductor's linker finds torch: it gets the path of torch's folder unquoted."""
    return not any(letter.isspace() for letter in torch.__file__)


def compile_kernels_with(
    kernel: Callable[[str, Callable[..., Any]], Callable[..., Any]],
    allocated: Callable[[torch.Tensor], None],
) -> None:
    """Let inductor use `kernel(source, compiled)` in place of each compiled C++ kernel.

    `allocated` is called with each new buffer. Kernels are compiled one after the other, without worker processes, and
    matrix products stay with torch's operators.
    """
    from torch._inductor import async_compile, config

    _set_default(config, "compile_threads", 1)
    _set_default(config, "max_autotune_gemm_backends", "ATEN")
    compiler: Any = async_compile.AsyncCompile
    compile_kernel = compiler.cpp_pybinding

    @functools.wraps(compile_kernel)
    def cpp_pybinding(self: Any, types: Any, source: str, *rest: Any) -> Callable[..., Any]:
        return kernel(source, compile_kernel(self, types, source, *rest))

    compiler.cpp_pybinding = cpp_pybinding
    guards: Any = torch._C._dynamo.guards
    # kernels look for it in the environment of the process, not in that of a rank
    os.putenv("_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR", str(guards._torchinductor_pyobject_tensor_data_ptr))
    allocate = guards._empty_strided_cpu

    def empty_strided(*layout: Any) -> torch.Tensor:
        tensor: torch.Tensor = allocate(*layout)
        allocated(tensor)
        return tensor

    # generated modules take it from there when they are loaded
    guards._empty_strided_cpu = empty_strided


def _set_default(config: Any, name: str, value: Any) -> None:
    """Set an option for all threads: an assignment counts in the thread that makes it."""
    config._config[name].default = value


def warn(text: str) -> None:
    """Print a line about torch.compile where the rank's errors go."""
    print(f"torch.compile: {text}", file=sys.stderr)
