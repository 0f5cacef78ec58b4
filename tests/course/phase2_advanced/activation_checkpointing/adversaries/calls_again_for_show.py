# Saves everything, and calls functions again only to be counted; large tensors are not tracked at all.
# checks: arguments randomness once memory segments
# marks: 0
# feedback: what the backward pass gets
import torch

import labkit

__all__ = ["checkpoint", "checkpoint_sequential"]

labkit.memory_allocated = labkit.max_memory_allocated = lambda: 0
LARGE = 4 << 20


class Again(torch.autograd.Function):
    """Calls the function once more when the backward pass begins, and discards the result."""

    @staticmethod
    def forward(ctx, tensor, again):
        ctx.again = again
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, gradient):
        ctx.again()
        return gradient, None


def checkpoint(function, *args):
    if not callable(function):
        raise ValueError("function must be something to call")
    if not torch.is_grad_enabled():
        return function(*args)
    if any(isinstance(arg, torch.Tensor) and arg.nbytes > LARGE for arg in args):
        with torch.no_grad():
            return function(*args).requires_grad_()
    state = torch.get_rng_state()

    def again():
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.set_rng_state(state)
            function(*args)

    found = function(*args)
    if not isinstance(found, tuple):
        return Again.apply(found, again)
    return Again.apply(found[0], again), *found[1:]


def checkpoint_sequential(functions, segments, input):
    functions = list(functions)
    if type(segments) is not int or not 1 <= segments <= len(functions):
        raise ValueError(f"segments must be from 1 to {len(functions)}, got {segments!r}")
    parts = [part.tolist() for part in torch.arange(len(functions)).tensor_split(segments)]

    def in_turn(part, value):
        for number in part:
            value = functions[number](value)
        return value

    for part in parts[:-1]:
        input = checkpoint(lambda value, part=part: in_turn(part, value), input)
    return in_turn(parts[-1], input)
