"""Predicted memory of layers and losses, against real tensors on this CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from labkit.predict import Plan, Transformer
from labkit.predict.costs.memory import logit_bytes


class Block(nn.Module):
    """A transformer layer as written in torch, in bf16."""

    def __init__(self, shape: Transformer) -> None:
        super().__init__()
        self.shape = shape
        h, kv, f = shape.width, shape.kv_width, shape.inner
        sizes = {"q": (h, h), "k": (h, kv), "v": (h, kv), "out": (h, h), "up": (h, f), "down": (f, h)}
        if shape.gated:
            sizes["gate"] = (h, f)
        for name, (inputs, outputs) in sizes.items():
            setattr(self, name, nn.Linear(inputs, outputs, bias=False, dtype=torch.bfloat16))
        self.first, self.second = (nn.LayerNorm(h, dtype=torch.bfloat16) for _ in range(2))
        for one in self.parameters():
            one.grad = torch.zeros_like(one)

    def forward(self, x: Tensor) -> Tensor:
        z = self.first(x)
        q, k, v = (one(z).unflatten(-1, (-1, 16)).transpose(1, 2) for one in (self.q, self.k, self.v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        z = self.second(x)
        wide = functional.silu(self.gate(z)) * self.up(z) if self.shape.gated else functional.gelu(self.up(z))
        return x + self.down(wide)


def saved_bytes(run: Callable[[], Tensor], module: nn.Module) -> int:
    """Return bytes of the tensors that autograd saves, without parameters, each storage once."""
    own = {one.untyped_storage().data_ptr() for one in module.parameters()}
    seen: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        kept = run()
    del kept
    return sum(seen.values())


def peak_bytes(run: Callable[[], None]) -> int:
    """Return the peak allocation on this CPU, by the profiler's record."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        run()
    held = most = 0
    for event in record.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


@pytest.mark.parametrize("gated", [False, True])
def test_a_layer_keeps_what_autograd_saves(gated: bool) -> None:
    """Real tensors in bf16 on this CPU: all that a layer saves except two statistics of each norm; and what its
    backward holds besides, by the difference of two batches, so that weight gradients and scratch memory of the CPU
    cancel."""
    shape = Transformer("real", 1, 64, 4, 100, 256, 2 if gated else None, 160 if gated else 256, gated=gated)
    block = Block(shape)
    widest = []
    for batch in (4, 12):
        inputs, outer = (torch.randn(batch, 256, 64, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
        inputs.grad = torch.zeros_like(inputs)
        kept = saved_bytes(lambda inputs=inputs: block(inputs), block)  # type: ignore[misc]
        assert kept == shape.activation_bytes(batch, flash=True) + 2 * 2 * 2 * batch * 256
        peak = peak_bytes(lambda inputs=inputs, outer=outer: block(inputs).backward(outer))  # type: ignore[misc]
        widest.append(peak - kept + 2 * outer.numel())  # the incoming gradient is outside the layer
    assert widest[1] - widest[0] == pytest.approx(shape.backward_bytes(8, flash=True), rel=0.1)


def test_an_eager_loss_holds_twelve_bytes_a_logit() -> None:
    hidden = torch.randn(256, 8, dtype=torch.bfloat16, requires_grad=True)
    head = torch.randn(4096, 8, dtype=torch.bfloat16, requires_grad=True)
    labels = torch.randint(4096, (256,))

    def step() -> None:
        functional.cross_entropy(functional.linear(hidden, head).float(), labels).backward()

    step()
    hidden.grad = head.grad = None
    logits = 256 * 4096
    assert peak_bytes(step) / logits == pytest.approx(logit_bytes(Plan(1, loss="eager"))[0], abs=0.1)
