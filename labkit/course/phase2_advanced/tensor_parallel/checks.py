"""Visible checks and hints of tensor_parallel: whole layers of a few numbers, so that a wrong one can be traced.

Rank r adds 10 ** r: a sum of 101 on three ranks means that rank 1's part is missing.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.checks import Args, Draw, Ranks, Submission, check, expect, group_of
from labkit.course.phase2_advanced.tensor_parallel.scenarios import crossing, losses, part, whole_loss
from labkit.models.gpt import Block, GPTConfig


def layers(
    kind: str, up: list[Tensor], down: list[Tensor], x: Tensor, gradient: Tensor, group: Any = None
) -> dict[str, Tensor]:
    """On a rank: run a column-parallel layer, tanh and a row-parallel layer; return outputs and gradients.

    kind: `pair`, or `apart`, where each layer takes all inputs and returns all outputs.
    """
    import torch

    from labkit.exercises import tensor_parallel

    def linear(weight: torch.Tensor, bias: torch.Tensor) -> torch.nn.Linear:
        layer = torch.nn.Linear(weight.shape[1], weight.shape[0])
        layer.weight.data, layer.bias.data = weight.clone(), bias.clone()
        return layer

    columns = tensor_parallel.ColumnParallelLinear.from_full(linear(*up), group)
    rows = tensor_parallel.RowParallelLinear.from_full(linear(*down), group)
    if kind == "apart":
        columns.gather_output, rows.input_is_parallel = True, False
    inputs = x.clone().requires_grad_()
    hidden = columns(inputs)
    hidden.retain_grad()
    out = rows(torch.tanh(hidden))
    out.backward(gradient)
    assert inputs.grad is not None and hidden.grad is not None
    return {
        "hidden": hidden.detach(),
        "hidden.grad": hidden.grad,
        "out": out.detach(),
        "x": inputs.grad,
        "up.weight": columns.weight.grad,
        "up.bias": columns.bias.grad,
        "down.weight": rows.weight.grad,
        "down.bias": rows.bias.grad,
    }


def blocks(seed: int, x: Tensor, heads: int, causal: bool, backward: bool = True) -> dict[str, Tensor]:
    """On a rank: run a transformer block initialized with this seed."""
    import torch

    from labkit.exercises import tensor_parallel

    torch.manual_seed(seed)
    block = tensor_parallel.TensorParallelTransformer(x.shape[-1], heads, None, causal)
    inputs = x.clone().requires_grad_()
    out = block(inputs)
    if not backward:
        return {"out": out.detach()}
    out.square().sum().backward()
    assert inputs.grad is not None
    return {"out": out.detach(), "x": inputs.grad, "norm": block.norm_attention.weight.grad}


def whole_layers(up: list[Tensor], down: list[Tensor], x: Tensor, gradient: Tensor) -> dict[str, Tensor]:
    """Return the results of one process."""
    columns, rows = ([tensor.clone().requires_grad_() for tensor in pair] for pair in (up, down))
    inputs = x.clone().requires_grad_()
    hidden = F.linear(inputs, *columns)
    hidden.retain_grad()
    out = F.linear(torch.tanh(hidden), *rows)
    out.backward(gradient)
    results = {"hidden": hidden, "hidden.grad": hidden.grad, "out": out, "x": inputs.grad}
    results |= {f"up.{name}": tensor.grad for name, tensor in zip(("weight", "bias"), columns, strict=True)}
    results |= {f"down.{name}": tensor.grad for name, tensor in zip(("weight", "bias"), rows, strict=True)}
    return {name: tensor.detach() for name, tensor in results.items() if tensor is not None}


@check(
    points=4,
    todo=1,
    title="copy_to_group and reduce_from_group: one sums backward, the other forward",
    look_at="the sum, and which of the two ways it belongs to",
)
def copy_and_reduce(submission: Submission, ranks: Ranks) -> None:
    digits = [torch.tensor([10.0**rank, 2 * 10.0**rank]) for rank in range(3)]
    alike = torch.tensor([3.0, 4.0])
    run = ranks(3).call(submission.used_by(crossing), [Args("copy_to_group", alike, digit) for digit in digits])
    expect([v["out"] for v in run.values], "copy_to_group of [3, 4], forward").equals([alike] * 3)
    wanted = torch.tensor([111.0, 222.0])
    expect([v["gradient"] for v in run.values], "copy_to_group, backward: the sum of 1, 10 and 100").equals(
        [wanted] * 3
    )
    run = ranks(3).call(submission.used_by(crossing), [Args("reduce_from_group", digit, alike) for digit in digits])
    expect([v["out"] for v in run.values], "reduce_from_group of 1, 10 and 100, forward").equals([wanted] * 3)
    hint = "every rank has the sum's gradient already, all of it"
    expect([v["gradient"] for v in run.values], "reduce_from_group, backward", look_at=hint).equals([alike] * 3)
    hint = "all_reduce works in place: give it a tensor of its own"
    expect([v["input"] for v in run.values], "the input, afterwards", look_at=hint).equals(digits)
    pair = group_of([0, 2])
    given = [Args("reduce_from_group", digit, alike, pair) if rank != 1 else None for rank, digit in enumerate(digits)]
    run = ranks(3).call(submission.used_by(crossing), given)
    expect(run.values[2]["out"], "reduce_from_group of 1 and 100 in a group of ranks 0 and 2").equals(
        torch.tensor([101.0, 202.0])
    )


@check(
    points=3,
    todo=1,
    title="gather_from_group and scatter_to_group: put together forward, cut backward, and the reverse",
    look_at="`_Scatter`, which mirrors `_Gather`",
)
def gather_and_scatter(submission: Submission, ranks: Ranks) -> None:
    whole, gradient = torch.arange(5.0), 10 * torch.arange(5.0)
    own = [part(5, rank, 2) for rank in range(2)]
    given = [Args("gather_from_group", whole[own[r]], gradient, options={"size": 5}) for r in range(2)]
    run = ranks(2).call(submission.used_by(crossing), given)
    expect([v["out"] for v in run.values], "gather_from_group of [0, 1] and [2, 3, 4], forward").equals([whole] * 2)
    wanted = [gradient[own[r]] for r in range(2)]
    expect([v["gradient"] for v in run.values], "gather_from_group, backward").equals(wanted)
    run = ranks(2).call(
        submission.used_by(crossing), [Args("scatter_to_group", whole, gradient[own[r]]) for r in range(2)]
    )
    expect([v["out"] for v in run.values], "scatter_to_group of [0, 1, 2, 3, 4], forward").equals(
        [whole[own[r]] for r in range(2)]
    )
    expect([v["gradient"] for v in run.values], "scatter_to_group, backward").equals([gradient] * 2)


def compared(submission: Submission, ranks: Ranks, draw: Draw, world_size: int, kind: str) -> None:
    """Compare two layers of 3 inputs, 5 hidden values and 2 outputs, on `world_size` ranks and in one process."""
    up, down = ([draw.tensor(shape) / 8 for shape in pair] for pair in (((5, 3), (5,)), ((2, 5), (2,))))
    x, gradient = draw.tensor((4, 3)) / 4, draw.tensor((4, 2))
    run = ranks(world_size).call(submission.used_by(layers), [Args(kind, up, down, x, gradient)] * world_size)
    wanted = whole_layers(up, down, x, gradient)
    hints = {
        "hidden": "ColumnParallelLinear.forward is given: what does copy_to_group, what gather_from_group do?",
        "hidden.grad": (
            "the gradient of RowParallelLinear's input: `_Reduce` backward; with all inputs, `_Scatter` backward, too"
        ),
        "out": "the sum of the ranks' products, and the bias once",
        "x": "each rank has a part of x's gradient: copy_to_group, backward",
        "down.bias": "the bias comes after the sum: its gradient is the output's",
    }
    for name, tensor in wanted.items():
        parts = [tensor] * world_size
        own = [part(5, rank, world_size) for rank in range(world_size)]
        if name.startswith("up."):
            parts = [tensor[p] for p in own]
        elif name.startswith("hidden") and kind == "pair":
            parts = [tensor[..., p] for p in own]
        elif name == "down.weight":
            parts = [tensor[:, p] for p in own]
        what = {
            "hidden": "the first layer's outputs",
            "hidden.grad": "gradient of the first layer's outputs",
            "out": "the second layer's outputs",
        }.get(name, f"gradient of {name}")
        look_at = hints.get(name, "which gradients come to this rank's part")
        expect([v[name] for v in run.values], f"{what}, {world_size} ranks", look_at=look_at).close_to(parts, rel=1e-5)


@check(
    points=4,
    todo=2,
    title="columns, then rows: two layers cut over the ranks are the two whole ones",
    look_at="RowParallelLinear.forward",
)
def pair(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for world_size in (2, 3, 1):
        compared(submission, ranks, draw, world_size, "pair")


@check(
    points=2,
    todo=2,
    title="each layer by itself: all inputs, all outputs",
    look_at="RowParallelLinear.forward when `input_is_parallel` is False",
)
def apart(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    compared(submission, ranks, draw, draw.choice([2, 3]), "apart")


def loss_of(submission: Submission, ranks: Ranks, logits: Tensor, targets: Tensor, what: str) -> Any:
    """Compute the loss on two ranks and compare it with torch's in one process. Returns the run."""
    wanted, gradient = whole_loss(logits, targets)
    vocab = logits.shape[-1]
    own = [part(vocab, rank, 2) for rank in range(2)]
    run = ranks(2).call(submission.used_by(losses), [Args(logits[:, p], targets, vocab) for p in own])
    expect([v["loss"] for v in run.values], f"loss{what}").close_to([wanted] * 2, rel=1e-5)
    gradients = [gradient[:, p] for p in own]
    expect([v["gradient"] for v in run.values], f"gradient of the logits{what}").close_to(gradients, rel=1e-4)
    return run


@check(
    points=4,
    todo=3,
    title="the loss of logits that are dealt out, large ones too",
    look_at="the largest logit of all ranks, the sum, and the target's own logit",
)
def loss(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    logits, targets = draw.tensor((4, 5)) / 4, torch.tensor([0, 4, 1, 2])
    loss_of(submission, ranks, logits, targets, "")
    loss_of(submission, ranks, logits, torch.tensor([0, -100, 1, -100]), " when -100 is left out")
    large = logits + torch.tensor([[0.0, 0, 0, 200, 0], [300, 0, 0, 0, 0], [0, 0, 0, 0, 0], [-200] * 5])
    loss_of(submission, ranks, large, targets, " with logits up to 300")


@check(points=2, todo=3, title="the loss: two small all-reduces", look_at="what can travel together")
def loss_messages(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    targets = torch.tensor([0, 63, 1, 30])
    run = loss_of(submission, ranks, draw.tensor((4, 64)) / 4, targets, " of 64 tokens")
    expect(dict(run.trace.collective_counts(0)), "collectives of a loss, forward and backward").equals(
        {"all_reduce": 2}
    )
    sent = sum(event.nbytes for event in run.trace.collectives(0))
    expect(sent, "bytes for 4 targets", unit="bytes").at_most(4 * 3 * 4)


@check(
    points=4,
    todo=4,
    title="a block is the plain one: values, and the gradients of input and norm",
    look_at="TensorParallelTransformer.forward: which numbers of qkv are one head's",
)
def block(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for world_size, heads, causal in ((2, 4, True), (3, 3, False), (1, 2, True)):
        x, seed = draw.tensor((2, 3, 12)) / 4, draw.randrange(1000)
        run = ranks(world_size).call(submission.used_by(blocks), [Args(seed, x, heads, causal)] * world_size)
        torch.manual_seed(seed)
        plain = Block(GPTConfig(heads=heads, width=12, causal=causal))
        inputs = x.clone().requires_grad_()
        out = plain(inputs)
        out.square().sum().backward()
        assert isinstance(plain.norm_attention, nn.LayerNorm)
        wanted = {"out": out.detach(), "x": inputs.grad, "norm": plain.norm_attention.weight.grad}
        for name, what in (("out", "output"), ("x", "gradient of the input"), ("norm", "gradient of the first norm")):
            seen = [v[name] for v in run.values]
            expect(seen, f"{what}, {heads} heads on {world_size} ranks").close_to([wanted[name]] * world_size, rel=1e-4)


@check(
    points=2,
    todo=4,
    title="a block: two all-reduces forward, two backward, and nothing else",
    look_at="what follows a column-parallel layer: it takes this rank's part",
)
def block_messages(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    x = draw.tensor((2, 3, 12)) / 4
    counts = []
    for backward in (False, True):
        run = ranks(2).call(submission.used_by(blocks), [Args(1, x, 4, True, backward)] * 2)
        counts.append([dict(run.trace.collective_counts(rank)) for rank in range(2)])
    expect(counts[0], "collectives forward").equals([{"all_reduce": 2}] * 2)
    expect(counts[1], "collectives forward and backward").equals([{"all_reduce": 4}] * 2)


HINTS = {
    1: [
        "What a function does backward follows from who uses its result. The result of `copy_to_group` goes into a "
        "different computation on each rank, so gradients differ and have to be summed. The result of "
        "`reduce_from_group` goes into the same computation everywhere, so each rank has the same gradient already.",
        "`_Copy` and `_Reduce` are mirrors of each other, and so are `_Scatter` and `_Gather`: what one does "
        "forward, the other does backward. `ctx` carries the group, and the size where backward needs it. "
        "`dist.all_reduce` works in place, so `_Reduce` gives it a contiguous copy.",
        "`_Reduce.forward`: `total = x.clone(memory_format=torch.contiguous_format)`, then `dist.all_reduce(total, "
        "group=group)`; backward returns `gradient, None`. `_Copy.forward` keeps the group in `ctx.group` and "
        "returns x; backward returns `reduce_from_group(gradient, ctx.group), None`. `_Scatter.forward` keeps size "
        "and group and returns `x[..., part_of(x.shape[-1], group)]`; backward returns `gather_from_group(gradient, "
        "ctx.group, size=ctx.size), None`.",
    ],
    2: [
        "Write y = (x A) B for two ranks, with A = [A1 A2] and B = [B1; B2], B1 above B2. Which rank can compute "
        "what without asking, and what is left to do at the end? If each rank added the bias to its own product, "
        "how often would it be in y?",
        "Unless the input is parallel already, each rank takes its part by `scatter_to_group`, whose backward "
        "gathers. Multiply without the bias, sum over the ranks, then add the bias once.",
        "`own = x if self.input_is_parallel else scatter_to_group(x, self.group)`; `out = "
        "reduce_from_group(F.linear(own, self.weight), self.group)`; return `out` if `self.bias` is None, else `out "
        "+ self.bias`.",
    ],
    3: [
        "For one target, with the vocabulary on two ranks: which three numbers over the whole vocabulary does the "
        "loss need, and which of them can each rank compute from its part? Which of them must be known before the "
        "others can be computed?",
        "First the largest logit: `largest = wide.detach().amax(-1)`, all-reduced with `dist.ReduceOp.MAX`, and "
        "`shifted = wide - largest[..., None]`. Then two sums over the ranks: that of `exp`, and the target's own "
        "logit, which is 0 on the ranks that do not hold it.",
        "`here` and the index within this part are as in `VocabParallelEmbedding`; `own = shifted.gather(-1, "
        "index[..., None])[..., 0]`. `sums = torch.stack([shifted.exp().sum(-1), torch.where(here, own, 0)])`, "
        "`total, target = reduce_from_group(sums, group)`, and `losses = total.log() - target`.",
    ],
    4: [
        "The block is x plus attention of its norm, and that plus the MLP of its norm: two residual paths. What "
        "`self.qkv` returns on this rank are whole heads, so attention needs no message; `self.out` and `self.down` "
        "sum over the ranks.",
        "`self.qkv(self.norm_attention(x)).unflatten(-1, (-1, 3, self.head_width))` is (batch, length, heads of "
        "this rank, 3, head_width). `F.scaled_dot_product_attention` takes query, key and value as (batch, heads, "
        "length, head_width). Back again the heads belong side by side in the last dimension.",
        "`query, key, value = heads.permute(3, 0, 2, 1, 4)`; `mixed = F.scaled_dot_product_attention(query, key, "
        "value, is_causal=self.causal)`; `x = x + self.out(mixed.transpose(1, 2).flatten(2))`; return `x + "
        "self.down(F.gelu(self.up(self.norm_mlp(x))))`.",
    ],
}
