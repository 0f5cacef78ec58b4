"""torch's dispatcher: modes that see operators, hiding operators from them, and properties of operators."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._C import _DisableTorchDispatch as DisableTorchDispatch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, _get_current_dispatch_mode

__all__ = [
    "DisableTorchDispatch", "TorchDispatchMode", "UnguardedDispatchMode", "find_rules_in_one_step",
    "function_without_wrapper", "has_modes", "is_composite", "no_modes", "schema_of", "top_mode",
]  # fmt: skip


class UnguardedDispatchMode(TorchDispatchMode):
    """A mode in processes that compile nothing: the guard against compilation costs as much as the mode itself."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True


@functools.cache
def find_rules_in_one_step() -> None:
    """Let torch look up in one call, not in three, whether an operator has a rule for a mode or a class of tensors.

    It asks before each operator that Python sees, and before each query of a fake tensor's device. May be called
    repeatedly.
    """
    from torch._library import simple_registry

    def find(op: Any, torch_dispatch_class: type) -> Any:
        entry = singleton._data.get(op.__qualname__)  # type: ignore[name-defined] # noqa: F821  # of that module
        return None if entry is None else entry.torch_dispatch_rules._data.get(torch_dispatch_class)

    # torch's C++ keeps the function itself, not its name
    simple_registry.find_torch_dispatch_rule.__code__ = find.__code__


def no_modes() -> AbstractContextManager[Any]:
    """Within the context, no dispatch mode sees this thread's operators."""
    return _disable_current_modes()


def has_modes() -> bool:
    """Whether a dispatch mode sees this thread's operators."""
    return bool(torch._C._len_torch_dispatch_stack())


def top_mode() -> TorchDispatchMode | None:
    """The dispatch mode that sees this thread's operators first; None if a function mode sees them before."""
    return None if torch._C._len_torch_function_stack() else _get_current_dispatch_mode()


def schema_of(function: Any) -> Any:
    """Schema of an operator, a `torch.ops.NAMESPACE.NAME.OVERLOAD`: its name, arguments, returns and aliases."""
    return function._schema


def function_without_wrapper(function: Any) -> Callable[..., Any]:
    """The function that an operator's Python wrapper calls; the wrapper takes time."""
    called: Callable[..., Any] = function._op
    return called


def is_composite(function: Any) -> bool:
    """Whether an operator is made of other operators, for autograd, too (`CompositeImplicitAutograd`)."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(function.name(), "CompositeImplicitAutograd")
