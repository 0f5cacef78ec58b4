"""Models by name, with the sizes given in their papers."""

from __future__ import annotations

import difflib
import re
from dataclasses import replace

from labkit.predict.describe.convolutional import Convolutional, resnet, vgg16
from labkit.predict.describe.counting import ModuleCosts
from labkit.predict.describe.dense import MLP
from labkit.predict.describe.transformer import Transformer

Description = Transformer | Convolutional | MLP | ModuleCosts


def _gpt(name: str, layers: int, width: int, heads: int, sequence: int = 2048, vocab: int = 51_200) -> Transformer:
    return Transformer(name, layers, width, heads, vocab, sequence, tied=True, dropout=True)


def _llama(
    name: str, layers: int, width: int, heads: int, kv_heads: int, ffn: int, vocab: int, sequence: int
) -> Transformer:
    return Transformer(
        name, layers, width, heads, vocab, sequence, kv_heads, ffn, gated=True, biases=False, rotary=True, rms_norm=True
    )


def _mixtral(name: str, layers: int, width: int, heads: int, ffn: int, vocab: int, sequence: int) -> Transformer:
    return replace(_llama(name, layers, width, heads, 8, ffn, vocab, sequence), experts=8, active_experts=2)


def _vit(name: str, layers: int, width: int, heads: int, patch: int) -> Transformer:
    tokens = (224 // patch) ** 2 + 1
    return Transformer(name, layers, width, heads, 1000, tokens, causal=False, patch_values=3 * patch * patch)


# GPT: Brown et al. 2020 (table 2.1) and Narayanan et al. 2021 (SC21, table 1); Llama: Touvron et al. 2023 and the Llama
# team 2024; Mixtral: Jiang et al. 2024; ViT: Dosovitskiy et al. 2021; BERT: Devlin et al. 2019, whose head
# sees the masked tokens, 80 of 512 in NVIDIA's data sets. `gpt-13b` is Brown et al.'s with 40 heads.
MODELS: dict[str, Description] = {
    model.name: model
    for model in (
        _gpt("gpt2-small", 12, 768, 12, 1024, 50_257),
        _gpt("gpt2-medium", 24, 1024, 16, 1024, 50_257),
        _gpt("gpt2-large", 36, 1280, 20, 1024, 50_257),
        _gpt("gpt2-xl", 48, 1600, 25, 1024, 50_257),
        _gpt("gpt-1.3b", 24, 2048, 16),
        _gpt("gpt-1.7b", 24, 2304, 24),
        _gpt("gpt-3.6b", 30, 3072, 32),
        _gpt("gpt-6.7b", 32, 4096, 32),
        _gpt("gpt-7.5b", 36, 4096, 32),
        _gpt("gpt-13b", 40, 5120, 40),
        _gpt("gpt-18b", 40, 6144, 48),
        _gpt("gpt-39b", 48, 8192, 64),
        _gpt("gpt-76b", 60, 10240, 80),
        _gpt("gpt-145b", 80, 12288, 96),
        _gpt("gpt-175b", 96, 12288, 96),
        _gpt("gpt-310b", 96, 16384, 128),
        _gpt("gpt-530b", 105, 20480, 128),
        _gpt("gpt-1t", 128, 25600, 160),
        _llama("llama2-7b", 32, 4096, 32, 32, 11008, 32_000, 4096),
        _llama("llama2-13b", 40, 5120, 40, 40, 13824, 32_000, 4096),
        _llama("llama2-70b", 80, 8192, 64, 8, 28672, 32_000, 4096),
        _llama("llama3-8b", 32, 4096, 32, 8, 14336, 128_256, 8192),
        _llama("llama3-70b", 80, 8192, 64, 8, 28672, 128_256, 8192),
        _llama("llama3-405b", 126, 16384, 128, 8, 53248, 128_256, 8192),
        _mixtral("mixtral-8x7b", 32, 4096, 32, 14336, 32_000, 4096),
        _mixtral("mixtral-8x22b", 56, 6144, 48, 16384, 32_768, 4096),
        _vit("vit-b16", 12, 768, 12, 16),
        _vit("vit-l16", 24, 1024, 16, 16),
        _vit("vit-h14", 32, 1280, 16, 14),
        vgg16(),
        resnet(50),
        resnet(101),
        resnet(152),
        resnet(101, groups=32, group_width=4),
        resnet(101, groups=32, group_width=4, squeeze=16),
        Transformer("bert-large", 24, 1024, 16, 30_528, 512, tied=True, dropout=True, causal=False, head_tokens=80),
    )
}
"""Models by name."""


def model(name: str, *, sequence: int | None = None) -> Description:
    """Look up a model by name, optionally with another sequence length.

    Raises ValueError for an unknown name, listing similar ones.
    """
    sizes = re.fullmatch(r"mlp-(\d+(?:x\d+)+)", name)
    if sizes and sequence is not None:
        raise ValueError(f"{name} has no sequence length to change")
    if sizes:
        return MLP(name, tuple(int(size) for size in sizes[1].split("x")))
    if name.startswith("mlp"):
        raise ValueError(f"unknown model {name!r}; an MLP is named by its sizes from input to output: mlp-784x256x10")
    if name not in MODELS:
        near = difflib.get_close_matches(name, MODELS, n=3, cutoff=0.4)
        offer = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(MODELS)}, mlp-784x256x10"
        raise ValueError(f"unknown model {name!r}; {offer}")
    description = MODELS[name]
    if sequence is None:
        return description
    if not isinstance(description, Transformer) or description.patch_values:
        raise ValueError(f"{name} has no sequence length to change")
    return replace(description, sequence=sequence)
