"""Model descriptions against known answers: published parameter counts, FLOPs and bytes of activations."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from labkit.models import GPT, GPTConfig
from labkit.predict import MLP, MODELS, Transformer, count, model, resnet
from labkit.predict.describe import Convolutional
from labkit.predict.describe.transformer import LOSS_PASSES


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("vgg16", 138_357_544),  # torchvision
        ("resnet50", 25_557_032),
        ("resnet101", 44_549_160),
        ("resnet152", 60_192_808),
        ("resnext101-32x4d", 44_177_704),  # timm
        ("se-resnext101-32x4d", 48_955_416),
        ("vit-b16", 86_567_656),
        ("vit-l16", 304_326_632),
        ("vit-h14", 632_045_800),
        ("gpt2-small", 124_439_808),  # Hugging Face
        ("gpt2-xl", 1_557_611_200),
        ("llama2-7b", 6_738_415_616),
        ("llama2-13b", 13_015_864_320),
        ("llama2-70b", 68_976_648_192),
        ("llama3-405b", 405_853_388_800),
        ("mixtral-8x7b", 46_702_792_704),
        ("mixtral-8x22b", 140_630_071_296),
        ("llama3-8b", 8_030_261_248),
        ("llama3-70b", 70_553_706_496),
    ],
)
def test_parameters_are_the_published_ones(name: str, parameters: int) -> None:
    assert model(name).parameters == parameters


def test_a_gpt_is_counted_as_its_module_is() -> None:
    config = GPTConfig(layers=3, heads=4, width=64, vocab=97, context=32)
    described = Transformer("tiny", 3, 64, 4, 97, 32)
    with torch.device("meta"):
        module = GPT(config)
    counted = count(module, torch.zeros(2, 32, dtype=torch.long))
    assert described.parameters == counted.parameters == config.parameters
    # attention by torch's counter: all s x s pairs, as PaLM counts
    assert counted.forward_flops == pytest.approx(described.flops(1, "palm") / 3, rel=1e-6)
    assert counted.flops(1) == pytest.approx(described.flops(1)) and counted.flops(1) < counted.flops(1, "palm")


def test_model_flops_are_those_of_the_pairs_that_the_mask_leaves() -> None:
    """Pair by pair: a score and a weighted value of 2 FLOPs for each number of a head; backward twice as much."""
    layers, width, s, vocab = 3, 64, 32, 97
    sizes = {"vocab": vocab, "sequence": s}
    allowed = sum(key <= query for query in range(s) for key in range(s))
    products = 6 * s * (layers * 12 * width**2 + vocab * width)
    for causal, pairs in ((True, allowed), (False, s * s)):
        gpt = Transformer("tiny", layers, width, 4, causal=causal, **sizes)
        assert gpt.flops() == pytest.approx(products + 3 * layers * pairs * 4 * width, rel=0.005), causal
        assert gpt.flops(1, "palm") == products + 3 * layers * s * s * 4 * width
    # at 524,288 tokens Llama 3 8B needs little more than half of what is counted with masked pairs
    long = replace(MODELS["llama3-8b"], sequence=524_288)
    assert isinstance(long, Transformer)
    assert long.flops(1, "palm") / long.flops(1) == pytest.approx(1.9, abs=0.02)


def test_what_a_module_moves_is_counted_operator_by_operator() -> None:
    layers, width, vocab, tokens = 3, 64, 16_384, 32
    with torch.device("meta"):
        module = GPT(GPTConfig(layers=layers, heads=4, width=width, vocab=vocab, context=tokens))
    counted = count(module, torch.zeros(2, tokens, dtype=torch.long))
    work, table = counted.work, 4 * vocab * width
    assert work.flash_flops == layers * 4 * tokens**2 * width / 2, "one kernel, without the masked half"
    assert 2 * work.flash_flops + sum(one.flops for one in work.products) == counted.forward_flops
    assert 9 * layers < work.kernels < 14 * layers, "norms, products, GELU, attention and residuals; no views"
    # the table's gradient is written once for all samples, its rows are looked up by each
    assert counted.fixed_bytes[1] > table > work.backward_bytes
    assert counted.block(2).forward_bytes < 2.01 * counted.block(1).forward_bytes
    saved = count(module, torch.zeros(8, tokens, dtype=torch.long)).saved_bytes
    assert saved == counted.saved_bytes, "of one sample, whatever the example's batch"


def test_dropout_and_attention_count_as_the_kernels_of_a_gpu() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.dropout(functional.scaled_dot_product_attention(x * self.scale, x, x), 0.1)

    counted = count(Attention(), torch.zeros(1, 2, 16, 8))
    assert counted.work.kernels == 3 and not counted.work.products
    assert counted.work.flash_flops == 4 * 2 * 16 * 16 * 8 == counted.forward_flops
    # the product reads two and writes one; dropout reads, writes, and writes its mask of one byte
    assert counted.work.forward_bytes == 256 * (4 * 2 + 4 * 2 + 1)


def test_flops_follow_megatrons_equation() -> None:
    """SC21, equation 3: 96 B s l h^2 (1 + s/6h + V/16lh) with full recomputation of all layers."""
    gpt = model("gpt-39b")
    assert isinstance(gpt, Transformer)
    batch, s, layers, h, vocab = 1536, gpt.sequence, gpt.layers, gpt.width, gpt.vocab
    equation = 96 * batch * s * layers * h**2 * (1 + s / (6 * h) + vocab / (16 * layers * h))
    assert gpt.flops(batch, "megatron", "full") == pytest.approx(equation, rel=1e-9)
    assert gpt.flops(1, "6n") == 6 * gpt.parameters * s


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("vgg16", 15.47),
        ("resnet50", 4.089),  # torchvision, image of 224 x 224; a multiply-add counts as one
        ("resnet101", 7.801),
        ("resnet152", 11.514),
        ("vit-b16", 17.564),
        ("vit-l16", 61.555),
    ],
)
def test_images_take_the_published_flops(name: str, billions: float) -> None:
    assert model(name).flops() / 6 == pytest.approx(billions * 1e9, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "tokens", "flops"),
    [
        ("gpt-175b", 300e9, 3.14e23),  # Brown et al. 2020, table D.1
        ("llama3-405b", 15.6e12, 3.8e25),  # Llama team 2024, section 3.2
    ],
)
def test_whole_trainings_take_the_published_flops(name: str, tokens: float, flops: float) -> None:
    described = model(name)
    assert isinstance(described, Transformer)
    assert described.flops(tokens / described.sequence, "6n") == pytest.approx(flops, rel=0.005)


class Passes(TorchDispatchMode):
    """Adds up the bytes that operators read and write, except views, products and fused attention."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types for it
        self.nbytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        name = function._schema.name
        others = ("mm", "attention", "empty", "_unsafe_view", "device")
        if not function.is_view and not any(other in name for other in others):
            self.nbytes += sum(part.nbytes for part in tree_leaves((args, result)) if isinstance(part, torch.Tensor))
        return result


def test_passes_over_memory_are_those_of_eager_torch() -> None:
    """Each operator of one layer, counted; large enough for the parameters' own bytes to be negligible."""
    gpt = Transformer("gpt", 1, 256, 4, 50, 1024)
    with FakeTensorMode():
        block = GPT(GPTConfig(1, 4, 256, 50, 1024)).blocks[0]
        x = torch.empty(8, 1024, 256, requires_grad=True)
        with Passes() as forward:
            y = block(x)
        with Passes() as backward:
            y.backward(torch.empty_like(y))
    described = gpt.block(8, flash=True, fusion="none", nbytes=4)
    assert described.forward_bytes == pytest.approx(forward.nbytes, rel=0.02)
    # on GPUs a norm's scale and shift gradients are a separate pass, which reads twice
    assert described.backward_bytes == pytest.approx(backward.nbytes + 2 * x.nbytes, rel=0.02)


def test_passes_of_a_loss_are_those_of_its_operators() -> None:
    tokens, vocab = 256, 512
    with FakeTensorMode():
        logits = torch.empty(tokens, vocab, dtype=torch.bfloat16, requires_grad=True)
        targets = torch.zeros(tokens, dtype=torch.int64)
        with Passes() as forward:
            loss = nn.functional.cross_entropy(logits.float(), targets)
        with Passes() as backward:
            loss.backward()
        with torch.no_grad(), Passes() as in_place:  # as in Megatron's split vocabulary
            work = logits.float()
            work.sub_(work.max(-1, keepdim=True).values).exp_()
            work.div_(work.sum(-1, keepdim=True))
        with torch.no_grad(), Passes() as gradients:
            work.mul_(0.5).to(torch.bfloat16)
    logit = tokens * vocab
    # nll_loss is given all logarithms, and reads one per row forward, only their shape backward
    eager = [passes.nbytes / logit - 4 for passes in (forward, backward)]
    assert eager == pytest.approx(LOSS_PASSES["eager"], rel=0.05)
    assert [passes.nbytes / logit for passes in (in_place, gradients)] == pytest.approx(
        LOSS_PASSES["in place"], rel=0.05
    )


@pytest.mark.parametrize(
    ("options", "per_token_and_width"),
    [
        ({}, lambda a, s, h, t: 34 + 5 * a * s / h),
        ({"tensor": 8}, lambda a, s, h, t: 10 + 24 / t + 5 * a * s / (h * t)),
        ({"tensor": 8, "sequence_parallel": True}, lambda a, s, h, t: (34 + 5 * a * s / h) / t),
        ({"tensor": 8, "recompute": "selective"}, lambda a, s, h, t: 10 + 24 / t),
        ({"tensor": 8, "sequence_parallel": True, "recompute": "selective"}, lambda a, s, h, t: 34 / t),
        ({"tensor": 8, "recompute": "full"}, lambda a, s, h, t: 2),
    ],
)
def test_activations_are_those_of_korthikantis_table(options: dict[str, object], per_token_and_width: object) -> None:
    """arXiv 2205.05198, table 2, in bytes of one layer."""
    gpt = model("gpt-175b")
    assert isinstance(gpt, Transformer) and callable(per_token_and_width)
    a, s, h = gpt.heads, gpt.sequence, gpt.width
    expected = s * 2 * h * per_token_and_width(a, s, h, 8)
    assert gpt.activation_bytes(2, **options) == pytest.approx(expected)  # type: ignore[arg-type]


def test_grouped_queries_and_flash_attention_keep_less() -> None:
    llama = model("llama3-8b")
    assert isinstance(llama, Transformer)
    kept = llama.activation_bytes(1, flash=True)
    assert kept < llama.activation_bytes(1)
    h, kv, f, s = 4096, 1024, 14336, 8192
    assert kept == s * (2 * (4 * h + 2 * h + 2 * kv + 4 * f) + 4 * 32)


def test_any_module_can_be_counted_and_stays_as_it_was() -> None:
    net = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    counted = count(net, torch.zeros(16, 784))
    described = MLP("mlp", (784, 256, 10))
    assert counted.parameters == described.parameters == 203_530
    assert counted.flops(16) == described.flops(16) == 6 * 16 * (784 * 256 + 256 * 10)
    assert counted.saved_bytes == 4 * (784 + 256), (
        "the inputs of both layers; ReLU keeps its output, which is one of them"
    )
    assert next(net.parameters()).device.type == "cpu"


def test_convolutions_are_counted_as_described() -> None:
    layers = [nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1)]
    counted = count(nn.Sequential(*layers), torch.zeros(2, 3, 10, 10))
    assert counted.forward_flops == 2 * 100 * (27 * 8 + 8 * 4)
    assert counted.block(5).flops == 5 * counted.forward_flops


def test_berts_head_sees_the_masked_tokens_only() -> None:
    bert = model("bert-large")
    assert isinstance(bert, Transformer)
    whole = replace(bert, head_tokens=None)
    assert whole.flops() - bert.flops() == 3 * 2 * (512 - 80) * 30_528 * 1024
    assert bert.parameters == whole.parameters
    assert bert.head_activation_bytes(1) == whole.head_activation_bytes(1) * 80 / 512


@pytest.mark.parametrize(
    ("module", "shapes"),
    [
        (nn.LSTM(16, 32, batch_first=True), [(2, 10, 16)]),
        (nn.MultiheadAttention(64, 4, batch_first=True), [(2, 10, 64)] * 3),
        (nn.ConvTranspose2d(8, 16, 4, stride=2), [(2, 8, 8, 8)]),
        (nn.Conv1d(8, 16, 3), [(2, 8, 8)]),
        (nn.Conv2d(8, 8, 3, groups=8), [(2, 8, 9, 9)]),
        (nn.Transformer(32, 4, 1, 1, 64, batch_first=True), [(2, 5, 32), (2, 6, 32)]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_products_of_a_module_have_its_flops(module: nn.Module, shapes: list[tuple[int, ...]]) -> None:
    counted = count(module, *map(torch.zeros, shapes))
    assert (
        sum(one.flops for one in counted.work.products) == pytest.approx(counted.forward_flops) and counted.saved_bytes
    )
    assert counted.block(6).flops == pytest.approx(6 * counted.forward_flops)


def test_every_tensor_parallel_rank_has_all_positions() -> None:
    gpt = Transformer("gpt", 2, 16, 4, 100, 32)
    assert gpt.embedding_held(4) == 25 * 16 + 32 * 16
    assert gpt.embedding_held(1) == gpt.embedding_parameters
    assert replace(gpt, rotary=True).embedding_held(4) == 25 * 16


def test_tied_weights_count_once() -> None:
    tied = Transformer("t", 2, 64, 4, 1000, 16, tied=True)
    assert Transformer("u", 2, 64, 4, 1000, 16).parameters - tied.parameters == 64 * 1000


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Transformer("t", 2, 65, 4), "width 65 is no multiple of 4 heads"),
        (lambda: Transformer("t", 2, 64, 4, kv_heads=3), "4 heads are no multiple of 3 kv_heads"),
        (lambda: Transformer("t", 1, 64, 4, sequence=8, head_tokens=9), "head_tokens must be 1 to 8, got 9"),
        (lambda: Transformer("t", 0, 64, 4), "layers must be at least 1"),
        (lambda: Transformer("t", 2, 64, 4, sequence=math.nan), "sequence must be at least 1, got nan"),  # type: ignore[arg-type]
        (lambda: resnet(18), "50, 101 or 152, not 18"),
        (lambda: model("gpt-13"), "did you mean gpt-13b"),
        (lambda: model("resnet50", sequence=5), "no sequence length"),
        (lambda: MLP("m", (5,)), "two sizes or more"),
        (lambda: count(nn.Linear(2, 2)), "an example input"),
        (
            lambda: count(nn.Linear(2, 2), torch.zeros(2)),
            "Linear cannot be counted on shapes alone, for 1 and 2 batches",
        ),
    ],
)
def test_what_cannot_be_is_refused(make: object, said: str) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=said):
        make()


def test_all_models_have_work_and_activations() -> None:
    for name, described in MODELS.items():
        assert described.flops() > 0 and described.activation_bytes(1) > 0, name
        if isinstance(described, Convolutional):
            assert described.block(1).flops == pytest.approx(described.flops() / 3)
