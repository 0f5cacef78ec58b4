"""Visible checks and hints of gradient_compression: gradients of a few small numbers, which a message holds exactly.

On several ranks, each element of rank r's gradient is 10 ** r: the mean of three ranks is 111 / 3 = 37, and a number
whose digits are not all alike shows whose part is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.checks import Args, Draw, NotMeasurable, Ranks, Submission, check, expect, group_of, work
from labkit.course.phase3_multi_node.gradient_compression.scenarios import compressed, reduced
from labkit.trace import Event

ALL: tuple[tuple[str, dict[str, Any]], ...] = (
    ("TopK", {"ratio": 1.0}),
    ("RandomK", {"ratio": 1.0, "seed": 0}),
    ("OneBit", {}),
    ("Quantized", {"bits": 8, "block": 4}),
    ("PowerSGD", {"rank": 1}),
)
"""Compressors that send tensors of equal elements as they are."""
SUMMABLE = {"RandomK", "PowerSGD"}


def rounded_down(gradients: list[Tensor], names: list[str]) -> Any:
    """On a rank: compress one gradient after the other by rounding down to whole numbers."""
    from labkit.exercises import gradient_compression

    compressor: Any = gradient_compression.TopK(1.0)
    compressor.encode = lambda tensor, name: (tensor.floor(),)
    compressor.decompress = lambda message, shape, name: message[0].view(shape)
    sent, residuals = [], []
    for gradient, name in zip(gradients, names, strict=True):
        before = gradient.clone()
        message = compressor.compress(gradient, name)
        if message is None:
            return "compress returns a message", "None", "the last line of compress: `return message`"
        if not before.equal(gradient):
            hint = "`gradient + residual` makes a new tensor; `+=` and `add_` do not"
            return "compress leaves `gradient` as it is", "it has changed", hint
        if "residual" not in compressor.state[name]:
            return '`self.state[name]["residual"]` after compress', "there is none", "compress: what is kept"
        sent.append(message[0])
        residuals.append(compressor.state[name]["residual"].clone())
    return sent, residuals


def hooked(kind: str, arguments: dict[str, Any], inputs: Tensor, group: Any = None) -> Any:
    """On a rank: two backward passes of torch's DDP with the hook; return the gradients and what has a state."""
    import torch
    from torch import nn

    from labkit.exercises import gradient_compression

    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
    compressor = getattr(gradient_compression, kind)(**arguments)
    parallel = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1e-5, process_group=group)
    call = gradient_compression.compression_hook(compressor, model, group)
    if not callable(call):
        return f"compression_hook returns {type(call).__name__}"
    others = []

    def future_of(returned: Any, buffer: Tensor) -> Any:
        """Return the hook's future, or one of our own if it is none: DDP would crash."""
        if isinstance(returned, torch.futures.Future):
            return returned
        others.append(f"the hook returns {type(returned).__name__}")
        future: Any = torch.futures.Future()
        future.set_result(buffer)
        return future

    parallel.register_comm_hook(None, lambda state, bucket: future_of(call(state, bucket), bucket.buffer()))
    found = []
    for _ in range(2):
        model.zero_grad()
        parallel(inputs).sum().backward()
        found.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
    return others[0] if others else (found, sorted(compressor.state))


def rounds_of_two(gradients: list[list[Tensor]]) -> Any:
    """On a rank: PowerSGD's rounds of two ranks' gradients, (5, 2, 3), side by side; for each step the first messages
    of both, and P and Q of one."""
    import torch

    from labkit.exercises import gradient_compression

    compressors = [gradient_compression.PowerSGD(rank=2) for _ in range(2)]
    found = []
    for pair in gradients:
        rounds = [one.rounds(gradient, "weight") for one, gradient in zip(compressors, pair, strict=True)]
        first = [next(one)[0] for one in rounds]
        second = [one.send([(torch.stack(first).mean(0),)])[0] for one in rounds]
        message: Any = None
        for one in rounds:
            try:
                one.send([(torch.stack(second).mean(0),)])
            except StopIteration as finished:
                ((*message,),) = finished.value
        found.append((first, *message))
    return found


def one_rank(submission: Submission, ranks: Ranks, kind: str, arguments: dict[str, Any], *gradients: Tensor) -> Any:
    """Return messages, what they mean, and residuals, of one gradient after the other on a single rank."""
    given = Args((kind, arguments), ["weight"] * len(gradients), list(gradients))
    (value,) = ranks(1).call(submission.used_by(compressed), [given]).values
    return value["messages"], value["meant"], residuals_of(value, gradients)


def residuals_of(value: dict[str, Any], gradients: Sequence[Tensor]) -> list[Tensor]:
    """Return the residuals that `compressed` has found, 0 where there is none."""
    pairs = zip(gradients, value["residuals"], strict=True)
    return [torch.zeros_like(gradient) if residual is None else residual for gradient, residual in pairs]


def sent_by(events: list[Event]) -> list[tuple[str, int]]:
    """Return collectives and their bytes, without the tiny ones that find out who is where."""
    return [(event.operation, event.nbytes) for event in events if event.nbytes > 64]


@check(
    points=2,
    todo=1,
    title="what is not sent comes back with the next gradient",
    look_at="compress: what is encoded, and what is kept",
)
def feedback(submission: Submission, ranks: Ranks) -> None:
    gradients = [torch.tensor([0.75, 2.5, -0.25])] * 3 + [torch.tensor([0.5, 0.5, 0.5])] * 2
    names = ["weight"] * 3 + ["bias"] * 2
    run = ranks(1).call(submission.used_by(rounded_down), [Args(gradients, names)])
    (value,) = run.values
    if isinstance(value[0], str):
        what, seen, hint = value
        expect(False, what, look_at=hint).holds(seen)
    sent, residuals = value
    expect(sent[0], "[0.75, 2.5, -0.25] rounded down, the first message").equals(torch.tensor([0.0, 2.0, -1.0]))
    expect(residuals[0], "what that message lacks", look_at="the residual: what was encoded minus what arrives").equals(
        torch.tensor([0.75, 0.5, 0.75])
    )
    hint = "what is encoded: the gradient plus the last residual, once"
    later = [torch.tensor([1.0, 3.0, 0.0]), torch.tensor([1.0, 2.0, 0.0])]
    for step, wanted in enumerate(later, 2):
        what = f"[0.75, 2.5, -0.25] plus the residual, rounded down, the message of step {step}"
        expect(sent[step - 1], what, look_at=hint).equals(wanted)
    expect(residuals[2], "the residual after three steps").equals(torch.tensor([0.25, 0.5, 0.25]))
    hint = "`self.state[name]`: each parameter has a residual of its own"
    for step, wanted in enumerate((torch.zeros(3), torch.ones(3)), 1):
        what = f"another parameter of the same shape, [0.5, 0.5, 0.5] twice: its message of step {step}"
        expect(sent[2 + step], what, look_at=hint).equals(wanted)


@check(
    points=2,
    todo=2,
    title="TopK sends the largest magnitudes, with their places",
    look_at="TopK.encode: magnitudes choose, values are sent",
)
def top_k(submission: Submission, ranks: Ranks) -> None:
    gradient = torch.tensor([[1.0, -8.0, 0.5, 2.0], [4.0, 0.25, -1.5, 0.0]])
    messages, meant, _ = one_rank(submission, ranks, "TopK", {"ratio": 0.3}, gradient)
    expect(len(messages[0][0]), "elements that a ratio of 0.3 keeps of 8").equals(3)
    expect(meant[0], "what the message means").equals(torch.tensor([[0.0, -8.0, 0.0, 2.0], [4.0, 0.0, 0.0, 0.0]]))
    nbytes = sum(tensor.nbytes for tensor in messages[0])
    expect(nbytes, "bytes of 3 indices and 3 float32", unit="bytes", look_at="an int32 for each index").equals(24)


@check(
    points=2,
    todo=2,
    title="RandomK sends values alone, at places that all ranks agree on",
    look_at="RandomK.encode: `given.random_indices`, with the arguments that `decompress` uses",
)
def random_k(submission: Submission, ranks: Ranks) -> None:
    gradient = torch.arange(1.0, 41.0)
    given = Args(("RandomK", {"ratio": 0.1, "seed": 5}), ["weight"] * 3, [gradient] * 3)
    first, second = ranks(2).call(submission.used_by(compressed), [given] * 2).values
    messages, meant, others = first["messages"], first["meant"], second["meant"]
    residuals = residuals_of(second, [gradient] * 3)
    expect([len(message) for message in messages], "tensors in each message: no indices").equals([1, 1, 1])
    expect([len(message[0]) for message in messages], "values in each message, 0.1 of 40").equals([4, 4, 4])
    places = [tensor.nonzero().flatten().tolist() for tensor in meant]
    for rank, tensor in enumerate((meant[0], others[0])):
        what = f"rank {rank}'s message of the first step, at the places that `decompress` takes it to have"
        expect(tensor, what).equals(gradient * (tensor != 0))
    expect([tensor.nonzero().flatten().tolist() for tensor in others], "places on rank 1, as on rank 0").equals(places)
    expect(residuals[0], "rank 1's residual after the first step").equals(gradient - others[0])
    expect(places[0] != places[1] or places[1] != places[2], "other places at later steps").equals(True)


@check(
    points=1,
    todo=2,
    title="OneBit sends a bit for each element, and their mean magnitude",
    look_at="OneBit.encode: `given.pack(..., 1)` takes 1 for each element that is 0 or more, and 0 for the others",
)
def one_bit(submission: Submission, ranks: Ranks) -> None:
    gradient = torch.tensor([1.0, -3.0, 0.0, 2.0, -1.0, -5.0, 4.0, 8.0, -3.0])
    messages, meant, residuals = one_rank(submission, ranks, "OneBit", {}, gradient)
    signs = torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0, -1.0, 1.0, 1.0, -1.0])
    expect(meant[0].sign(), "signs that arrive of [1, -3, 0, 2, -1, -5, 4, 8, -3]").equals(signs)
    hint = "the second tensor of the message: the mean of the magnitudes, without signs"
    expect(meant[0], "nine numbers, whose magnitudes are 3 on average", look_at=hint).equals(3 * signs)
    expect(residuals[0], "the residual").equals(gradient - 3 * signs)
    nbytes = sum(tensor.nbytes for tensor in messages[0])
    expect(nbytes, "bytes of 9 bits and a float32", unit="bytes").equals(2 + 4)


@check(
    points=2,
    todo=2,
    title="Quantized rounds to multiples of each block's own unit",
    look_at="Quantized.encode: the largest magnitude of each row, over `largest`",
)
def quantized(submission: Submission, ranks: Ranks) -> None:
    rows = torch.tensor([127.0, 3.0, -5.0, 0.0, -127 / 64, 1 / 64, 0.0, 60 / 64, 127.0])
    messages, meant, _ = one_rank(submission, ranks, "Quantized", {"bits": 8, "block": 4}, rows)
    expect(meant[0], "multiples of 1 in the first and third block, of 1/64 in the second").equals(rows)
    nbytes = sum(tensor.nbytes for tensor in messages[0])
    hint = "the last row is padded: `given.from_blocks` takes the padding off before `given.pack`"
    expect(nbytes, "bytes of 9 integers and 3 units", unit="bytes", look_at=hint).equals(9 + 3 * 4)
    odd = torch.tensor([7.0, 3.4, -3.6, 2.6])
    messages, meant, _ = one_rank(submission, ranks, "Quantized", {"bits": 4, "block": 4}, odd)
    what, hint = "[7, 3.4, -3.6, 2.6] in 4 bits, in units of 1", "each element goes to the nearest integer: `round`"
    expect(meant[0], what, look_at=hint).equals(torch.tensor([7.0, 3.0, -4.0, 3.0]))
    hint = "`given.pack(..., self.bits)`"
    nbytes = sum(tensor.nbytes for tensor in messages[0])
    expect(nbytes, "bytes of 4 integers of 4 bits and a unit", unit="bytes", look_at=hint).equals(2 + 4)
    messages, meant, _ = one_rank(submission, ranks, "Quantized", {}, torch.zeros(3))
    hint = "a block whose largest magnitude is 0: what is divided by?"
    expect(messages[0][0], "integers of a block of zeros, plus L", look_at=hint).equals(
        torch.full((3,), 127, dtype=torch.uint8)
    )
    expect(meant[0], "a block of zeros", look_at=hint).equals(torch.zeros(3))
    small = rows[:4] * 2.0**-40
    _, meant, _ = one_rank(submission, ranks, "Quantized", {}, small)
    hint = "the divisor is the unit itself, however small; another one only where the unit is 0"
    expect(meant[0], "multiples of 2**-40", look_at=hint).equals(small)


@check(
    points=1,
    todo=2,
    title="scalars and empty tensors",
    look_at="`encode` gets a tensor of any shape: `tensor.reshape(-1)` has one dimension",
)
def tiny(submission: Submission, ranks: Ranks) -> None:
    for kind, arguments in (*ALL[:3], ("Quantized", {})):
        _, meant, _ = one_rank(submission, ranks, kind, arguments, torch.tensor(-2.0))
        expect(meant[0], f"{kind}: a scalar, -2").equals(torch.tensor(-2.0))
        _, meant, residuals = one_rank(submission, ranks, kind, arguments, torch.zeros(0, 3))
        hint = "a mean over no element, the largest of none"
        expect(meant[0], f"{kind}: an empty tensor, (0, 3)", look_at=hint).equals(torch.zeros(0, 3))
        expect(residuals[0], f"{kind}: its residual", look_at=hint).equals(torch.zeros(0, 3))


@check(
    points=4,
    todo=3,
    title="PowerSGD: orthonormal P, a Q that goes on from the last step",
    look_at="PowerSGD.rounds: which factor is made orthonormal, and which one is kept",
)
def power_sgd(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    gradients = draw.tensors(3, (8, 6))
    messages, meant, residuals = one_rank(submission, ranks, "PowerSGD", {"rank": 2}, *gradients)
    matrix = torch.zeros(8, 6)
    for step, (gradient, message) in enumerate(zip(gradients, messages, strict=True)):
        matrix = matrix + gradient
        expect(len(message), "tensors in the message of a matrix: P and Q").equals(2)
        p, q = message
        expect((tuple(p.shape), tuple(q.shape)), "shapes of P and Q for (8, 6) at rank 2").equals(((8, 2), (6, 2)))
        hint = "P's columns are orthogonal and of length 1: QR of the mean that comes back"
        expect(p.T @ p, "Pᵀ P", look_at=hint).close_to(torch.eye(2), rel=1e-4)
        hint = "Q is Mᵀ P, where M is the gradient plus the residual"
        expect(q, f"Q of step {step}: Mᵀ P", look_at=hint).close_to(matrix.T @ p, rel=1e-4)
        if step:
            start = matrix @ messages[step - 1][1]
            hint = 'the Q of the step before, `state["q"]`, is where this one begins'
            expect(p @ (p.T @ start), "M times the last Q, which P spans", look_at=hint).close_to(start, rel=1e-3)
        expect(meant[step], "P Qᵀ").close_to(p @ q.T, rel=1e-4)
        matrix = matrix - meant[step]
        hint = '`state["residual"]`: M, which is gradient plus residual, minus what is sent of it'
        expect(residuals[step].reshape(8, 6), "the residual: M - P Qᵀ", look_at=hint).close_to(matrix, rel=1e-4)
    power_sgd_on_ranks(submission, ranks, draw)
    half = draw.tensor((8, 2, 3), torch.bfloat16)
    messages, meant, _ = one_rank(submission, ranks, "PowerSGD", {"rank": 2}, half)
    hint = "QR computes in float32; what is sent has the gradient's dtype"
    dtypes = [str(tensor.dtype) for tensor in (*messages[0], meant[0])]
    expect(dtypes, "dtypes of P, Q and P Qᵀ of a gradient in bfloat16", look_at=hint).equals(["torch.bfloat16"] * 3)
    vector = torch.tensor([1.0, -2.0, 3.0])
    messages, meant, _ = one_rank(submission, ranks, "PowerSGD", {"rank": 2}, vector)
    expect(meant[0], "a vector, sent as it is").equals(vector)


def power_sgd_on_ranks(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    """Expect the sums of two ranks' messages to lead to the projection of their mean, at three steps.

    Each rank's rounds are answered by the means of both, so no collective is needed.
    """
    gradients = [draw.tensors(2, (5, 2, 3)) for _ in range(3)]
    run = ranks(1).call(submission.used_by(rounds_of_two), [Args(gradients)])
    matrices = [torch.zeros(5, 6), torch.zeros(5, 6)]
    last = torch.zeros(0)
    for step, (sent, p, q) in enumerate(run.values[0]):
        matrices = [matrix + gradient.view(5, 6) for matrix, gradient in zip(matrices, gradients[step], strict=True)]
        whole = torch.stack(matrices).mean(0)
        wanted = torch.linalg.qr(torch.stack(sent).mean(0)).Q
        hint = "the mean of M Q is made orthonormal when it has come back, not each rank's own part before"
        expect(p @ p.T @ wanted, f"step {step}: the mean of M Q of 2 ranks, which P spans", look_at=hint).close_to(
            wanted, rel=1e-3
        )
        if step:
            begun = torch.linalg.qr(whole @ last).Q
            what = f"step {step}: the mean M of 2 ranks times the mean Q of the step before, which P spans"
            hint = 'M is gradient plus residual; the next step begins with the *mean* Q, `state["q"]`'
            expect(p @ p.T @ begun, what, look_at=hint).close_to(begun, rel=1e-3)
        expect(q, f"step {step}: Q on 2 ranks, the mean of their Mᵀ P").close_to(whole.T @ p, rel=1e-3)
        # a residual may be what the rank itself lacks, or what the mean lacks: their means are the same
        matrices, last = [matrix - p @ (matrix.T @ p).T for matrix in matrices], q


@check(
    points=3,
    todo=4,
    title="every rank ends with the mean, by each compressor",
    look_at="exchange: what `received` holds when the work is done, and the division",
)
def means(submission: Submission, ranks: Ranks) -> None:
    for kind, arguments in ALL:
        gradients = [[torch.full((4, 3), 10.0**r), torch.full((2,), -(10.0**r))] for r in range(3)]
        run = ranks(3).call(submission.used_by(reduced), [Args((kind, arguments), [own]) for own in gradients])
        for ((first, second),) in run.values:
            expect(first, f"{kind}: the mean of 1, 10 and 100").close_to(torch.full((4, 3), 37.0))
            expect(second, f"{kind}: the mean of -1, -10 and -100").close_to(torch.full((2,), -37.0))
    for kind, arguments in ALL[:2]:
        half = [Args((kind, arguments), [[torch.full((4,), 10.0**r)]], group=group_of([0, 2])) for r in range(3)]
        half[1] = None  # type: ignore[call-overload]
        run = ranks(3).call(submission.used_by(reduced), half)
        hint = "`group`: of the collective, and of the number of ranks"
        what = f"{kind}: the mean of ranks 0 and 2, a group"
        expect(run.values[0][0][0], what, look_at=hint).close_to(torch.full((4,), 50.5))


def carried(
    submission: Submission, ranks: Ranks, kind: str, arguments: dict[str, Any], gradients: list[list[Tensor]]
) -> list[list[tuple[str, int]]]:
    """Return the collectives of each rank, with their bytes."""
    given = [Args((kind, arguments), [own]) for own in gradients]
    run = ranks(len(given)).call(submission.used_by(reduced), given)
    by_rank = [run.trace.collectives(rank) for rank in range(len(given))]
    return [[(event.operation.removesuffix("_into_tensor"), event.nbytes) for event in events] for events in by_rank]


@check(
    points=3,
    todo=4,
    title="messages that can be added up are, the others are gathered",
    look_at="exchange: one collective for each round, of `rounds.message` alone",
)
def collectives(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    sparse: dict[str, Any] = {"ratio": 0.1}
    cases = [
        ("TopK", sparse, [("all_gather", 8 * 160)]),
        ("RandomK", {**sparse, "seed": 1}, [("all_reduce", 4 * 160)]),
        ("OneBit", {}, [("all_gather", 2 * (100 + 4))]),
        ("Quantized", {"block": 100}, [("all_gather", 2 * (800 + 8 * 4))]),
        ("PowerSGD", {"rank": 2}, [("all_reduce", 4 * 2 * 2 * 40), ("all_reduce", 4 * 2 * 2 * 20)]),
    ]
    for kind, arguments, wanted in cases:
        seen = carried(submission, ranks, kind, arguments, [draw.tensors(2, (40, 20)) for _ in range(3)])
        for collectives_of_rank in seen:
            what = f"{kind}: collectives for two matrices of (40, 20), with bytes"
            expect(collectives_of_rank, what).equals(wanted)
    hint = "each number is sent in the gradient's own dtype"
    in_half = [("RandomK", {**sparse, "seed": 1}, ("all_reduce", 2 * 80)), ("OneBit", {}, ("all_gather", 100 + 2))]
    for kind, arguments, only in in_half:
        first, _ = carried(submission, ranks, kind, arguments, [[draw.tensor((40, 20), torch.bfloat16)]] * 2)
        what = f"{kind}: collectives for one matrix of (40, 20) in bfloat16, with bytes"
        expect(first, what, look_at=hint).equals([only])


@check(
    points=2,
    todo=4,
    title="buckets travel while later gradients are computed",
    look_at="all_reduce_compressed: `finish` waits; when must that be with enable_overlap, and when without?",
)
def overlap(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    seconds = {}
    for enabled in (False, True):
        tensors = [draw.tensors(4, 500_000) for _ in range(2)]
        backward = work("backward", 0.0005)
        given = [Args(("Quantized", {}), [own], None, 2.0, enabled, backward) for own in tensors]
        run = ranks(2, inter_node="ethernet-10g").call(submission.used_by(reduced), given)
        if run.trace.clock != "modelled":
            raise NotMeasurable("time is exact on virtual ranks only")
        calls = [event.operation.removesuffix("_into_tensor") for event in run.trace.collectives(0)]
        expect(calls, "rank 0's collectives: each of four gradients is a bucket").equals(["all_gather"] * 4)
        seconds[enabled] = run.trace.seconds
    saved = seconds[False] - seconds[True]
    expect(saved, "seconds that enable_overlap saves: three of four buckets, 0.4 ms each", unit="seconds").at_least(
        8e-4
    )


@check(
    points=2,
    todo=4,
    title="hierarchical: whole inside a node, compressed between nodes",
    look_at="hierarchical_all_reduce: `exchange` of this rank's own buckets, in the inter-node group",
)
def hierarchical(submission: Submission, ranks: Ranks) -> None:
    nodes, across = [[0, 1], [2, 3]], [[0, 2], [1, 3]]
    given = [
        Args(
            *(("TopK", {"ratio": 0.1}), [[torch.full((100,), (n + 1) * 10.0**r) for n in range(4)]], None, 0.0004),
            intra=group_of(nodes[r // 2]),
            inter=group_of(across[r % 2]),
        )
        for r in range(4)
    ]
    run = ranks(4, nproc_per_node=2).call(submission.used_by(reduced), given)
    for (value,) in run.values:
        arrived = [int((tensor != 0).sum()) for tensor in value]
        expect(arrived, "elements of each gradient that arrived, a tenth of 100").equals([10] * 4)
        largest = torch.stack([tensor.max() for tensor in value])
        what = "the mean of 1, 10, 100 and 1000, times 1, 2, 3 and 4 in the four gradients"
        expect(largest, what).close_to(277.75 * torch.arange(1.0, 5.0))
    for rank in range(4):
        seen = sent_by(run.trace.collectives(rank))
        crossing = [nbytes for operation, nbytes in seen if operation.startswith("all_gather")]
        expect(crossing, f"messages of rank {rank} to the other node: 10 elements of two buckets").equals([80, 80])


@check(
    points=1,
    todo=4,
    title="torch's DDP takes the hook",
    look_at="compression_hook: `started.named(bucket)` names the gradients, `started.future` is what DDP waits for",
)
def hook(submission: Submission, ranks: Ranks) -> None:
    for kind, arguments in (ALL[0], ALL[4]):
        given = [Args(kind, arguments, torch.full((1, 2), 10.0**r)) for r in range(2)]
        run = ranks(2).call(submission.used_by(hooked), given)
        for value in run.values:
            if isinstance(value, str):
                expect(False, "compression_hook returns a function, which returns `started.future(...)`").holds(value)
            gradients, names = value
            for step in gradients:
                expect(step[0], f"{kind}: mean gradient of the first weight").close_to(torch.full((2, 2), 11.0))
                expect(step[1], f"{kind}: of its bias").close_to(torch.full((2,), 2.0))
                expect(step[2], f"{kind}: of the last weight").close_to(torch.full((2, 2), 12.0))
            if kind == "TopK":
                expect(names, "parameters that have a state").equals(["0.bias", "0.weight", "1.weight"])
    pair: list[Any] = [Args(*ALL[0], torch.full((1, 2), 10.0**r), group=group_of([0, 2])) for r in range(3)]
    pair[1] = None
    run = ranks(3).call(submission.used_by(hooked), pair)
    hint = "compression_hook: its `group` is that of `exchange`"
    expect(run.values[0][0][0][0], "TopK: mean gradient of the first weight on ranks 0 and 2", look_at=hint).close_to(
        torch.full((2, 2), 101.0)
    )


HINTS = {
    1: [
        "A gradient element of 0.3 in a message of whole numbers is 0, at every step: it never arrives. If you "
        "add what was lost before you round again, 0.3 becomes 0.6, 0.9, 1.2: then 1 is sent, and 0.2 are still "
        "owed.",
        'The residual is `self.state[name]["residual"]`; at the first step there is none. Three lines: add it to '
        "the gradient (not in place), encode the sum, store the sum minus what `self.decompress` makes of the "
        "message.",
        'With `corrected = gradient + state["residual"]` (or `gradient` at first) and `message = '
        'self.encode(corrected, name)`: `state["residual"] = corrected - self.decompress(message, gradient.shape, '
        "name)`; return the message.",
    ],
    2: [
        "`decompress` is given for each: read what it expects. TopK needs places and values, RandomK only values, "
        "OneBit packed bits and one number, Quantized packed integers that are not negative, and a unit for each "
        "row.",
        "`flat.abs().topk(count).indices` are places; the values there keep their signs. RandomK: the same call "
        "of `given.random_indices` as in `decompress`. A mean over no element is not a number: divide the sum by "
        "at least 1. Quantized: `rows.abs().amax(1, keepdim=True) / largest` are units; where one is 0, divide by "
        "1 instead.",
        "TopK: `indices.to(torch.int32), flat[indices]`. RandomK: `(tensor.reshape(-1)[indices],)`. OneBit: "
        "`given.pack(tensor >= 0, 1)` and `tensor.abs().sum().reshape(1) / max(1, tensor.numel())`. Quantized: "
        "`integers = (rows / units).round()` (units 0 replaced), then `given.pack(given.from_blocks(integers + "
        "largest, tensor.shape), self.bits), units`.",
    ],
    3: [
        "One step of the power method: multiply by M and by Mᵀ in turn. If P has orthonormal columns, P Pᵀ M is "
        "the part of M in their directions, and Pᵀ M, r rows, is all that has to be sent of it. Which products "
        "are linear in M, so that their means over the ranks are those of the mean of M?",
        "M as `(n, m)`: the gradient plus the residual, reshaped. Send `matrix @ q`, make the columns of the mean "
        "orthonormal (`torch.linalg.qr(...).Q`), compute this rank's `matrix.T @ p`; the residual needs that one. "
        "Send it, and keep the mean for the next step.",
        "`((p,),) = yield (matrix @ q,)`; `wide = p.to(torch.promote_types(p.dtype, torch.float32))`; "
        "`p = torch.linalg.qr(wide).Q.to(p.dtype)`; `own = matrix.T @ p`; "
        '`state["residual"] = (matrix - p @ own.T).view(gradient.shape)`; `((state["q"],),) = yield (own,)`; '
        '`return [(p, state["q"])]`.',
    ],
    4: [
        "The sum of two RandomK messages is the RandomK message of the sum, since the places are the same. The "
        "sum of two TopK messages means nothing: the places differ. So which collective for which?",
        "Summable: `received = [sent]`, an all-reduce of `sent` and a division by `world_size`. Else: `received` "
        "is a list of `world_size` empty tensors like `sent`, which an all-gather fills. Both with "
        "`async_op=True`, and `group`; `yield` what they return. Without any element in `sent`, no collective.",
        "`yield dist.all_reduce(sent.div_(world_size), group=group, async_op=True)`, or `yield "
        "dist.all_gather(received, sent, group=group, async_op=True)`. In the bucket loop: "
        "`under_way.append(Pending(exchange(self.compressor, bucket, group)))`, and `given.finish(under_way)` "
        "only without overlap. Between nodes: finish a list of such `Pending`, one for each bucket of `own`, with "
        "`inter_node_group`. The hook: `lambda state, bucket: started.future(bucket, Pending(exchange(compressor, "
        "started.named(bucket), group)))`.",
    ],
}
