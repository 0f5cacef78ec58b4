"""A backward pass: which parameters it will reach, when it has ended, and hooks that do not keep their owner alive."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from labkit.torch_versions.groups import backward_pass_number, run_after_backward


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested lists, tuples, dicts and data classes."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple, set)):
        for item in value:
            yield from tensors_in(item)
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            yield from tensors_in(getattr(value, name))


def parameters_in_graph(outputs: Any) -> set[nn.Parameter]:
    """Return the parameters that a backward pass from these outputs reaches: the leaves of their autograd graph."""
    parameters: set[Any] = set()
    seen: set[Any] = set()
    nodes: list[Any] = []
    for tensor in tensors_in(outputs):
        if tensor.requires_grad and tensor.grad_fn is None:
            parameters.add(tensor)
        nodes.append(tensor.grad_fn)
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            parameters.add(node.variable)
        nodes += [following for following, _ in node.next_functions]
    return parameters


class EndOfBackward:
    """Calls a function once when the backward pass that is under way has ended; see `ask`."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function, self._pass = function, -1

    def ask(self) -> None:
        """Have the function called once at the end of this pass, however often `ask` is. For use in hooks only."""
        current_pass = backward_pass_number()
        if current_pass != self._pass:
            self._pass = current_pass
            run_after_backward(self._function)


def weak(method: Callable[..., None]) -> Callable[..., None]:
    """Return a function that calls the method while its object exists, and then does nothing.

    A parameter outlives a wrapper that is replaced, and would otherwise keep it, its buckets and its hooks.
    """
    reference = weakref.WeakMethod(method)

    def call(*given: Any) -> None:
        alive = reference()
        if alive is not None:
            alive(*given)

    return call
