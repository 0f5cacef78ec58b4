"""torch.compile on virtual ranks: each rank compiles for itself, and compiled graphs are charged as what they run.

The compiler itself takes no virtual time, and its own tensors are not counted. A graph's operators are charged by the
rank's accounting, as without torch.compile. The kernels that inductor generates are not operators of torch: each loop
nest of one is charged as a GPU's kernel, with the bytes that it reads and writes (`loop_nests`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from labkit.clusters.virtual.device import memory
from labkit.clusters.virtual.device.loop_nests import loop_nests
from labkit.clusters.virtual.device.memory import OPTIMIZER, OTHER
from labkit.clusters.virtual.isolation import process_state
from labkit.clusters.virtual.isolation.current import here
from labkit.torch_versions import compilation

_COMPILING = (
    "the compiler of torch.compile communicates, which is not possible on virtual ranks that are threads: they compile "
    'one after the other. Use ranks="processes"'
)


def install_on_processes() -> None:
    """Prepare torch.compile for ranks that are processes."""
    compilation.prepare_with(_prepare, _backend_for)


def install_on_threads(ranks: int) -> None:
    """Prepare torch.compile for `ranks` that are threads of this process."""

    def prepare() -> None:
        _prepare()
        compilation.separate_caches(lambda: None if here.rank is None else here.rank.number, ranks)
        for read, write, fresh in compilation.compiler_state():
            process_state.exchange(read, write, fresh)

    if compilation.can_separate_caches():
        compilation.prepare_with(prepare, _backend_for)
    else:
        compilation.leave_uncompiled()


def _prepare() -> None:
    compilation.never_trace_lab()
    compilation.trace_replaced_collectives()
    compilation.while_compiling(_outside_virtual_time)
    compilation.when_saved_for_backward(_saved)


@contextmanager
def _outside_virtual_time() -> Iterator[None]:
    """Within the context clocks are real, as the compiler's locks and processes need, and the rank keeps its turn."""
    clock, endpoint = here.clock, here.endpoint
    if endpoint is None:
        yield
        return
    here.clock = None
    try:
        with endpoint.keeping_turn(_COMPILING):
            yield
    finally:
        here.clock = clock


def _saved(tensors: tuple[Any, ...]) -> None:
    account = memory.current()
    if account is not None:
        for tensor in tensors:
            if isinstance(tensor, Tensor):
                account.is_saved(tensor)


# Inductor ---------------------------------------------------------------------------------------------------------


def _backend_for(requested: Any) -> Any:
    if requested != compilation.DEFAULT_BACKEND:
        return requested
    reason = _inductor_lacks()
    if not reason:
        return requested
    _explain(reason, None if here.rank is None else here.rank.number)
    return "aot_eager"


@functools.cache
def _inductor_lacks() -> str:
    """The reason why inductor cannot be used here; empty once it is prepared."""
    if not compilation.has_cpp_compiler():
        return "inductor finds no C++ compiler"
    if not compilation.links_with_torch():
        return "inductor cannot link kernels where the path of torch's folder has a space"
    compilation.compile_kernels_with(_charged, _allocated)
    return ""


@functools.cache
def _explain(reason: str, rank: int | None) -> None:
    compilation.warn(f"{reason}, so the backend aot_eager is used: operators are not fused")


def _charged(source: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A compiled kernel that charges the rank that calls it."""
    nests = loop_nests(source)

    def call(*args: Any) -> Any:
        device = memory.device()
        if device is not None:
            endpoint = device.endpoint
            gpu = device.topology.gpu_of(endpoint.rank)
            if endpoint.race_detector.pending:
                for argument in args:
                    if isinstance(argument, Tensor):
                        endpoint.race_detector.check_read(argument)
            for nest in nests:
                endpoint.compute(gpu.seconds(0.0, nest.nbytes(args), "float32"))
        return kernel(*args)

    return call


def _allocated(tensor: Tensor) -> None:
    account = memory.current()
    if account is not None:
        account.hold(tensor, OPTIMIZER if account.in_optimizer else OTHER)
