"""Right: the recomputation does not stop early, and all segments are listed first."""

from contextlib import contextmanager

import torch
from torch.autograd.graph import saved_tensors_hooks

from labkit import to_device, to_host

__all__ = ["checkpoint", "checkpoint_sequential", "offload_activations"]


class Save(torch.autograd.Function):
    @staticmethod
    def forward(ctx, anchor, *tensors):
        ctx.save_for_backward(*tensors)
        return anchor.clone()


def checkpoint(function, *args):
    if not callable(function):
        raise ValueError(f"function must be something to call, got {function!r}")
    if not torch.is_grad_enabled():
        return function(*args)
    places = [i for i, arg in enumerate(args) if isinstance(arg, torch.Tensor)]
    node = Save.apply(torch.empty(0, requires_grad=True), *(args[i] for i in places)).grad_fn
    others = [None if i in places else arg for i, arg in enumerate(args)]
    state = torch.get_rng_state()
    autocast = torch.autocast("cpu", torch.get_autocast_dtype("cpu"), torch.is_autocast_enabled("cpu"))
    count, there = 0, {}

    def pack(tensor):
        nonlocal count
        count += 1
        return count - 1

    def unpack(number):
        if number not in there:
            there.update(enumerate(again()))
        return there.pop(number)

    def again():
        found, given = [], list(others)
        for place, tensor in zip(places, node.saved_tensors, strict=True):
            given[place] = tensor.detach().requires_grad_(tensor.requires_grad)
        with torch.random.fork_rng(devices=[]), torch.enable_grad(), autocast:
            torch.set_rng_state(state)
            with saved_tensors_hooks(lambda tensor: found.append(tensor.detach()), lambda _: None):
                function(*given)
        return found

    with saved_tensors_hooks(pack, unpack):
        return function(*args)


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
