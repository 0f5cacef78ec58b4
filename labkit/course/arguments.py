"""Rules for the arguments of exercises, checked before any message is sent.

    require("world_size", world_size, integer(at_least=1))
    require("rank", rank, integer(at_least=0, below=world_size))
    require("max_norm", max_norm, optional(positive))

If it fails, the second line raises `ValueError: rank must be an integer from 0 to 3, got 7`. One call checks one
argument: the traceback shows the line of the argument that is wrong, and a rule can use what the lines above have
checked.

A rule is a value; an exercise makes a `Rule` of its own for what no other needs. A relation between arguments is no
rule but an `if`, which raises with the same words: NAME must ..., got VALUE, where `shown` describes the value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from types import EllipsisType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


@dataclass(frozen=True)
class Rule:
    """What one argument must be."""

    text: str
    """The rule after "must" in the error, such as "be an integer from 1"."""
    fits: Callable[[Any], bool]
    """Whether a value of any type follows the rule."""


def require(name: str, value: Any, rule: Rule) -> None:
    """Raise `ValueError` unless `value`, the argument called `name`, follows the rule."""
    if not rule.fits(value):
        raise ValueError(f"{name} must {rule.text}, got {shown(value)}")


def shown(value: Any) -> str:
    """Return a value as errors show it: dtype and shape of tensors, class of a module, else its repr; shortened."""
    if isinstance(value, Tensor):
        layout = "" if value.layout == torch.strided else f" in layout {value.layout}"
        return f"a {value.dtype} tensor of shape {tuple(value.shape)}{layout}"
    if isinstance(value, nn.Module):
        return f"a module of class {type(value).__name__}"
    if isinstance(value, (tuple, list)) and any(isinstance(item, Tensor) for item in value):
        text = f"a {type(value).__name__} of {', '.join(map(shown, value))}"
    else:
        text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


# Numbers --------------------------------------------------------------------------------------------------------------


def integer(*, at_least: int | None = None, below: int | None = None) -> Rule:
    """An int, not a bool, within the limits."""
    limits = ("" if at_least is None else f" from {at_least}") + ("" if below is None else f" to {below - 1}")
    low, high = (-inf if at_least is None else at_least), (inf if below is None else below)
    return Rule(f"be an integer{limits}", lambda value: type(value) is int and low <= value < high)


def number(
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
    infinite: bool = False,
) -> Rule:
    """An int or a float, not a bool, within the limits; it is finite unless `infinite` allows infinity."""
    limits = {"above": above, "from": at_least, "below": below, "at most": at_most}
    text = " and ".join(f"{word} {limit}" for word, limit in limits.items() if limit is not None)

    def fits(value: Any) -> bool:
        return (
            isinstance(value, (int, float))
            and not isinstance(value, bool)
            and (-inf < value < inf or (infinite and value == inf))
            and (above is None or value > above)
            and (at_least is None or value >= at_least)
            and (below is None or value < below)
            and (at_most is None or value <= at_most)
        )

    return Rule(f"be a number {text}".rstrip(), fits)


positive = number(above=0)


def multiple_of(divisor: int, what: str = "") -> Rule:
    """A multiple of `divisor`, where `what` says what that is, such as "the ranks of the group". For integers."""
    return Rule(f"be a multiple of {divisor}{', ' if what else ''}{what}", lambda value: value % divisor == 0)


# Choices and kinds ----------------------------------------------------------------------------------------------------


def optional(rule: Rule) -> Rule:
    """What follows `rule`, or None."""
    return Rule(f"{rule.text}, or None", lambda value: value is None or rule.fits(value))


def one_of(*choices: Any) -> Rule:
    """One of the choices."""
    return Rule(f"be one of {', '.join(map(str, choices))}", lambda value: value in choices)


def instance_of(kind: type | tuple[type, ...], text: str) -> Rule:
    """An object of the class or classes, called `text`, such as "a Topology"."""
    return Rule(f"be {text}", lambda value: isinstance(value, kind))


def function(of: str = "") -> Rule:
    """Something to call with `of`, such as "outputs and targets"."""
    return Rule(f"be a function{' of ' if of else ''}{of}", callable)


def list_of(items: str, length: int | None = None) -> Rule:
    """A sequence of `items`, not a text, of this length; by default of any but 0."""
    return Rule(
        f"be a list of {items}",
        lambda value: (
            isinstance(value, Sequence)
            and not isinstance(value, str)
            and (len(value) > 0 if length is None else len(value) == length)
        ),
    )


# torch ----------------------------------------------------------------------------------------------------------------


def known_device(device: torch.device | str) -> torch.device:
    """Return `device`, the argument of this name, as torch has it. Raises `ValueError` unless torch knows it."""
    try:
        return torch.device(device)
    except (RuntimeError, TypeError):
        raise ValueError(f"device must be one that torch knows, got {shown(device)}") from None


torch_optimizer = instance_of(Optimizer, "a torch.optim.Optimizer")
torch_module = instance_of(nn.Module, "a torch.nn.Module")
trained_module = Rule(
    "be a torch.nn.Module with a parameter that is trained",
    lambda value: isinstance(value, nn.Module) and any(parameter.requires_grad for parameter in value.parameters()),
)


def tensor(shape: Sequence[int | str | EllipsisType] | None = None, *, floating_point: bool = False) -> Rule:
    """A dense tensor.

    shape: a number for a dimension of that length, a name for one of any length, `...` at the beginning for any
    dimensions, such as (..., 64) or ("tokens", "width"); None: any shape. floating_point: whether it must be real
    floating-point numbers.
    """
    kind = "a floating-point tensor" if floating_point else "a tensor"

    def fits(value: Any) -> bool:
        return (
            isinstance(value, Tensor)
            and value.layout == torch.strided
            and (value.is_floating_point() or not floating_point)
            and (shape is None or _has_shape(value, shape))
        )

    return Rule(f"be {kind}{'' if shape is None else f' of shape {_written(shape)}'}", fits)


def _has_shape(value: Tensor, shape: Sequence[int | str | EllipsisType]) -> bool:
    wanted = [length for length in shape if length is not ...]
    if value.dim() < len(wanted) or (value.dim() > len(wanted) and len(wanted) == len(shape)):
        return False
    own = value.shape[value.dim() - len(wanted) :]
    return all(isinstance(length, str) or length == seen for length, seen in zip(wanted, own, strict=True))


def _written(shape: Sequence[int | str | EllipsisType]) -> str:
    lengths = ["..." if length is ... else str(length) for length in shape]
    return f"({lengths[0]},)" if len(lengths) == 1 else f"({', '.join(lengths)})"
