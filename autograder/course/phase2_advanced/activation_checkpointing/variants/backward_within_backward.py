"""Right: an autograd function whose backward calls the function again and runs a backward pass of its own."""

from contextlib import contextmanager

import torch
from torch.autograd.graph import saved_tensors_hooks

from labkit import to_device, to_host

__all__ = ["checkpoint", "checkpoint_sequential", "offload_activations"]


class Segment(torch.autograd.Function):
    @staticmethod
    def forward(ctx, anchor, function, *args):
        ctx.function, ctx.others = function, [None if isinstance(arg, torch.Tensor) else arg for arg in args]
        ctx.places = [i for i, arg in enumerate(args) if isinstance(arg, torch.Tensor)]
        ctx.save_for_backward(*(args[i] for i in ctx.places))
        ctx.state = torch.get_rng_state()
        ctx.autocast = torch.autocast("cpu", torch.get_autocast_dtype("cpu"), torch.is_autocast_enabled("cpu"))
        return function(*args)

    @staticmethod
    def backward(ctx, *gradients):
        given = list(ctx.others)
        for place, tensor in zip(ctx.places, ctx.saved_tensors, strict=True):
            given[place] = tensor.detach().requires_grad_(tensor.requires_grad)
        with torch.random.fork_rng(devices=[]), torch.enable_grad(), ctx.autocast:
            torch.set_rng_state(ctx.state)
            results = ctx.function(*given)
        results = results if isinstance(results, tuple) else (results,)
        pairs = [pair for pair in zip(results, gradients, strict=True) if pair[0].requires_grad]
        torch.autograd.backward(*zip(*pairs, strict=True))
        return None, None, *(arg.grad if isinstance(arg, torch.Tensor) else None for arg in given)


def checkpoint(function, *args):
    if not callable(function):
        raise ValueError(f"function must be something to call, got {function!r}")
    if not torch.is_grad_enabled():
        return function(*args)
    return Segment.apply(torch.empty(0, requires_grad=True), function, *args)


def checkpoint_sequential(functions, segments, input):
    functions = list(functions)
    if not isinstance(segments, int) or not 1 <= segments <= len(functions):
        raise ValueError(f"segments must be from 1 to {len(functions)}, got {segments!r}")
    parts = [part.tolist() for part in torch.arange(len(functions)).tensor_split(segments)]
    for part in parts[:-1]:
        input = checkpoint(lambda x, part=part: in_turn([functions[i] for i in part], x), input)
    return in_turn([functions[i] for i in parts[-1]], input)


def in_turn(functions, input):
    for function in functions:
        input = function(input)
    return input


@contextmanager
def offload_activations(device="cpu"):
    try:
        device = torch.device(device)
    except RuntimeError:
        raise ValueError(f"device must be one that torch knows, got {device!r}") from None

    def pack(tensor):
        base = tensor if tensor._base is None else tensor._base
        if isinstance(base, torch.nn.Parameter):
            return tensor, None
        return to_host(tensor) if device.type == "cpu" else tensor.to(device), tensor.device

    def unpack(packed):
        tensor, home = packed
        return tensor if home is None else to_device(tensor, home)

    with saved_tensors_hooks(pack, unpack):
        yield
