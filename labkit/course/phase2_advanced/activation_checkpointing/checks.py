"""Visible checks and hints of activation_checkpointing: small functions, counting calls and tensors held.

One rank is enough for most checks, since ranks hold their memory independently. The last check has two ranks:
recomputation repeats communication.
"""

from __future__ import annotations

from typing import Any

import torch

from labkit.checks import Args, Draw, NotMeasurable, Ranks, Submission, check, expect
from labkit.clusters import Run

TENSOR = 256_000
"""Elements of the tensors whose memory is counted: 1 MB, a whole number of blocks."""


# What runs on the ranks -----------------------------------------------------------------------------------------------


def one_call(x: torch.Tensor, y: torch.Tensor) -> Any:
    """On a rank: call a checkpointed function of two tensors and a number, with a weight; return the gradients.

    It is called under autocast, which does not affect it; the backward pass runs outside.
    """
    import torch

    from labkit.exercises import activation_checkpointing

    autocast = []
    weight = torch.tensor(2.0, requires_grad=True)

    def function(a: torch.Tensor, power: int, b: torch.Tensor) -> torch.Tensor:
        autocast.append(torch.is_autocast_enabled("cpu"))
        return (weight * a) ** power * b

    x.requires_grad_()
    y.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = activation_checkpointing.checkpoint(function, 3 * x, 2, y)
    forward = len(autocast)
    result.sum().backward()
    gradients = [tensor.grad for tensor in (x, y, weight)]
    return {"result": result.detach(), "gradients": gradients, "autocast": [autocast[:forward], autocast[forward:]]}


def dropped(seed: int) -> Any:
    """On a rank: call a function with dropout, checkpointed and plain; return results and the next random numbers."""
    import torch

    from labkit.exercises import activation_checkpointing

    def function(t: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(t, 0.5)

    found = []
    for call in (activation_checkpointing.checkpoint, lambda function, *args: function(*args)):
        torch.manual_seed(seed)
        x = torch.ones(24, requires_grad=True)
        result = call(function, x)
        between = torch.rand(3)
        result.sum().backward()
        found.append({"result": result.detach(), "grad": x.grad, "between": between, "after": torch.rand(3)})
    return found


def held(way: str, numel: int, depth: int) -> Any:
    """On a rank: apply tanh `depth` times. Return the number of tensors held, besides the input, after forward, after
    backward, and at the peak."""
    import torch

    from labkit.clusters import device
    from labkit.exercises import activation_checkpointing

    def function(t: torch.Tensor) -> torch.Tensor:
        for _ in range(depth):
            t = t.tanh()
        return t

    x = torch.full((numel,), 0.5, requires_grad=True)
    device.reset_peak_memory_stats()
    before = device.memory_allocated()
    if way == "checkpoint":
        result = activation_checkpointing.checkpoint(function, x)
    else:
        with activation_checkpointing.offload_activations("cpu"):
            result = function(x)
    after_forward = device.memory_allocated()
    result.sum().backward()
    del result
    counts = (after_forward, device.memory_allocated(), device.max_memory_allocated())
    return {"grad": x.grad, "tensors": [(count - before) / x.nbytes for count in counts]}


def in_segments(segments: Any, count: int) -> Any:
    """On a rank: return the indices of the functions in call order, and the gradient."""
    import torch

    from labkit.exercises import activation_checkpointing

    called: list[int] = []

    def numbered(number: int) -> Any:
        def function(t: torch.Tensor) -> torch.Tensor:
            called.append(number)
            return t.square()

        return function

    x = torch.ones(2, requires_grad=True)
    try:
        result = activation_checkpointing.checkpoint_sequential([numbered(n) for n in range(count)], segments, x)
    except ValueError as error:
        return {"error": str(error), "called": len(called)}
    forward = list(called)
    result.sum().backward()
    return {"forward": forward, "again": called[len(forward) :], "grad": x.grad}


def offloaded(x: torch.Tensor) -> Any:
    """On a rank: return the tensors that a function's backward pass gets back, and the gradient."""
    import torch

    from labkit.exercises import activation_checkpointing

    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, t: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(t, parameter)
            return t**3

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
            t, parameter = ctx.saved_tensors
            found.append((str(t.dtype), list(t.stride())))
            stayed.append(parameter.data_ptr() == weight.data_ptr())
            return 3 * t * t * gradients[0], None

    found: list[Any] = []
    stayed: list[bool] = []
    weight = torch.nn.Parameter(torch.ones(2))
    x.requires_grad_()
    with activation_checkpointing.offload_activations("cpu"):
        result = Cube.apply(x.t(), weight)  # type: ignore[no-untyped-call]
    result.sum().backward()
    return {"grad": x.grad, "saved": found, "stayed": stayed}


def summed(x: torch.Tensor) -> Any:
    """On a rank: run two checkpointed functions with an all-reduce in each; the second one's tensor is smaller."""
    import torch
    import torch.distributed as dist

    from labkit.exercises import activation_checkpointing

    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, t: torch.Tensor) -> torch.Tensor:
            total = t.clone()
            dist.all_reduce(total)
            return total

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            return gradients[0]

    def function(t: torch.Tensor, numel: int) -> torch.Tensor:
        total: torch.Tensor = Sum.apply(t[:numel])  # type: ignore[no-untyped-call]
        return total * total

    x.requires_grad_()
    first = activation_checkpointing.checkpoint(function, x, 8)
    activation_checkpointing.checkpoint(function, first, 4).sum().backward()
    return x.grad


# Checks ---------------------------------------------------------------------------------------------------------------


def called(submission: Submission, ranks: Ranks) -> Any:
    x, y = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 10.0, 100.0])
    (value,) = ranks(1).call(submission.used_by(one_call), [Args(x, y)]).values
    return value


def counted(run: Run) -> Any:
    """Return the rank's memory report, if memory is counted."""
    if run.trace.clock != "modelled":
        raise NotMeasurable("memory is counted tensor by tensor on virtual ranks only")
    return run.values[0]


@check(
    points=4,
    todo=2,
    title="results and gradients are those of a plain call",
    look_at="pack and unpack: which number belongs to which tensor",
)
def gradients(submission: Submission, ranks: Ranks) -> None:
    value = called(submission, ranks)
    x, y = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 10.0, 100.0])
    expect(value["result"], "checkpoint(f, 3 * x, 2, y), where f(a, power, b) is (2 * a) ** power * b").equals(
        36 * x * x * y
    )
    wanted = {"x": 72 * x * y, "y": 36 * x * x, "the weight, 2,": torch.tensor(36 * (x * x * y).sum().item())}
    for (name, gradient), seen in zip(wanted.items(), value["gradients"], strict=True):
        expect(seen, f"gradient of {name}").close_to(gradient)


@check(
    points=3,
    todo=2,
    title="the function is computed once more in the backward pass",
    look_at="unpack: is the tensor there already",
)
def once_more(submission: Submission, ranks: Ranks) -> None:
    autocast = called(submission, ranks)["autocast"]
    expect([len(calls) for calls in autocast], "calls of the function: forward, backward").equals([1, 1])
    hint = "recompute: is the function called under `self.autocast`"
    expect(autocast[1], "is autocast on in the second call, as it was in the first", look_at=hint).equals([True])


@check(
    points=5,
    todo=2,
    title="nothing but the arguments is held until then, and nothing afterwards",
    look_at="what still refers to a tensor that was saved, or to one that was computed again",
)
def memory(submission: Submission, ranks: Ranks) -> None:
    run = ranks(1).call(submission.used_by(held), [Args("checkpoint", TENSOR, 8)])
    forward, afterwards, most = counted(run)["tensors"]
    what = "tensors that 8 x tanh holds beside its input, after the"
    expect(forward, f"{what} forward pass (the result)").at_most(1.1)
    expect(afterwards, f"{what} backward pass (the gradient)").at_most(1.1)
    expect(most, "the most at any time: 8 saved ones, the result, three gradients").at_most(12.1)


@check(
    points=4,
    todo=2,
    title="dropout drops the same again, and random numbers go on as if nothing had been",
    look_at="recompute: the state of random numbers before it, in it and after it",
)
def randomness(submission: Submission, ranks: Ranks) -> None:
    ((seen, plain),) = ranks(1).call(submission.used_by(dropped), [Args(5)]).values
    expect(seen["result"], "dropout(ones)").equals(plain["result"])
    expect(seen["grad"], "its gradient, 2 where the result is 2 and 0 where it was dropped").equals(seen["result"])
    expect(seen["between"], "random numbers after the forward pass").equals(plain["between"])
    expect(seen["after"], "random numbers after the backward pass").equals(plain["after"])


@check(
    points=4,
    todo=3,
    title="checkpoint_sequential: segments of nearly one length, the last one called once",
    look_at="where a segment begins and ends",
)
def segments(submission: Submission, ranks: Ranks) -> None:
    for count, cut, again in ((4, 2, [0, 1]), (7, 3, [3, 4, 0, 1, 2]), (3, 3, [1, 0]), (3, 1, [])):
        (value,) = ranks(1).call(submission.used_by(in_segments), [Args(cut, count)]).values
        what = f"of {count} functions in {cut} segments,"
        expect(value["forward"], f"{what} those called in the forward pass").equals(list(range(count)))
        expect(value["again"], f"{what} those called again, in order").equals(again)
        expect(value["grad"], f"gradient of x ** {2**count}").equals(torch.full((2,), 2.0**count))
    (value,) = ranks(1).call(submission.used_by(in_segments), [Args(4, 3)]).values
    expect("4" in value.get("error", ""), "a ValueError that names 4, for 4 segments of 3 functions").holds("none")


@check(
    points=3,
    todo=4,
    title="offload_activations: tensors leave the device, and come back as they were",
    look_at="what pack returns, and what it still refers to",
)
def offload(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    x = torch.arange(6.0, dtype=torch.float64).view(2, 3)
    (value,) = ranks(1).call(submission.used_by(offloaded), [Args(x)]).values
    expect(value["grad"], "gradient of x ** 3").equals(3 * x * x)
    expect(value["saved"], "dtype and strides of what the backward pass of x.t() ** 3 gets").equals(
        [("torch.float64", [1, 3])]
    )
    expect(value["stayed"], "is a parameter, saved as well, where it was", look_at="which tensors stay").equals([True])
    depth = draw.randrange(6, 11)
    run = ranks(1).call(submission.used_by(held), [Args("offload", TENSOR, depth)])
    forward, _, most = counted(run)["tensors"]
    what = f"tensors that {depth} x tanh holds on the device, offloaded,"
    expect(forward, f"{what} after the forward pass").at_most(1.1)
    expect(most, f"{what} at any time").at_most(4.1)
    hint = "unpack: on which device is the tensor that the backward pass gets"
    expect(most, f"{what} when one has come back", look_at=hint).at_least(3.5)


@check(
    points=2,
    todo=2,
    title="what the function sends is sent again, in one order on all ranks",
    look_at="recompute: does it call the function, and how often",
)
def collectives(submission: Submission, ranks: Ranks) -> None:
    run = ranks(2).call(submission.used_by(summed), [torch.ones(8), torch.ones(8) * 2])
    wanted = torch.cat([torch.full((4,), 4 * 18.0 * 3 * 2 / 2), torch.zeros(4)])
    expect(run.values, "gradient on ranks 0 and 1").close_to([wanted] * 2)
    seen = [[event.nbytes for event in run.trace.collectives(rank)] for rank in range(2)]
    expect(seen, "bytes of each all-reduce on ranks 0 and 1: two forward, the same two backward").equals(
        [[32, 16, 16, 32]] * 2
    )


HINTS = {
    1: [
        "An operator that saves its input or result hands it to `pack` and forgets it; what `pack` returned is all "
        "that the graph holds. Which information is needed to find one tensor again among those that the function "
        "saves, if it is run again and saves them in the same order?",
        "`pack` counts, in `self.count`. `unpack` looks into `self.recomputed`: where the number is missing, "
        "nothing has been computed again yet. Once a tensor has been handed back, nothing here may hold it any "
        "longer.",
        "`pack`: `self.count += 1` and `return self.count - 1`. `unpack`: `if number not in self.recomputed: "
        "self.recomputed = self.recompute()`, and `return self.recomputed.pop(number)`.",
    ],
    2: [
        "`recompute` runs in a backward pass, where gradients are disabled: operators would save nothing. What has "
        "to be switched on around the call, and which hooks see what is saved? Random numbers have two states that "
        "matter: that of the first call, and that of now.",
        "Around the call: `torch.enable_grad()`, `saved_tensors_hooks(keep, never_unpack)`, "
        "`suppress(AllRecomputed)` and `self.autocast`. Before it, note the random state of now and set "
        "`self.random_states`; afterwards set the one of now, in a `finally`.",
        "`now = random_states(self.devices)`, `set_random_states(self.random_states)`; in a `try`: `with "
        "torch.enable_grad(), saved_tensors_hooks(keep, never_unpack), suppress(AllRecomputed), self.autocast: "
        "self.function(*self.arguments.again())`; `finally: set_random_states(now)`.",
    ],
    3: [
        "Ten functions in four segments: lengths 3, 3, 2, 2. How do you compute these from 10 and 4? Which of the "
        "segments is not checkpointed?",
        "`length, longer = divmod(len(functions), segments)`: the first `longer` segments have `length + 1` "
        "functions. What one segment returns is the next one's input.",
        "For all segments but the last: `input = checkpoint(_in_turn(functions[begin:end]), input)`, where `end` is "
        "`begin + length`, one more for the first `longer`. The last: `return _in_turn(functions[begin:])(input)`.",
    ],
    4: [
        "What the graph holds is what `pack` returns, and nothing else. What does `unpack` have to know to return "
        "the tensor to where it was? For which tensors would a copy save nothing?",
        "`pack` returns a parameter as it is, and for anything else a pair: the copy, and the device where the "
        "tensor was. `unpack` gets one or the other.",
        "`pack`: `tensor if is_parameter(tensor) else (_copy(tensor, target), tensor.device)`. `unpack`: `packed if "
        "isinstance(packed, Tensor) else to_device(*packed)`. Then `with saved_tensors_hooks(pack, unpack): yield`.",
    ],
}
