"""Transformers from their configuration: GPT, Llama, ViT; parameters, FLOPs by convention, bytes of activations.

Activations follow Korthikanti et al. 2022 (arXiv 2205.05198, section 4), tensor by tensor, so that grouped queries,
gated layers, dropout and flash attention follow too; for GPT with dropout the sum is their sbh(34 + 5as/h).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from labkit.predict.describe.conventions import ALL_PAIRS, RECOMPUTED, Convention
from labkit.predict.describe.work import Block, Product

Fusion = Literal["none", "norms", "kernels", "compiled"]
LOSS_PASSES = {"in place": (38, 14), "copied": (38, 14), "eager": (14, 22), "fused": (2, 4)}
"""Bytes that the loss reads and writes per 16-bit logit, forward and backward. In place or copied, as a split
vocabulary requires (Megatron): to fp32 6, maximum 4, difference 8, exponential 8, sum 4, quotient 8; gradient 8, to 16
bits 6. Eager torch: to fp32 6, log-softmax 8; the loss's gradient 4, the softmax's 12, to 16 bits 6. Fused: read 2;
read and written 4."""


@dataclass(frozen=True)
class Transformer:
    """Equal layers between an embedding and a head. Sizes are of the whole model, before any parallelism."""

    name: str
    layers: int
    width: int
    heads: int
    vocab: int = 50_257
    """Size of the head: tokens, or classes of a ViT."""
    sequence: int = 1024
    """Tokens of one sample."""
    kv_heads: int | None = None
    """Number of key-value heads: fewer than `heads` with grouped queries (Ainslie et al. 2023); None: `heads`."""
    ffn: int | None = None
    """Width inside the MLP; None: four times `width`."""
    gated: bool = False
    """Whether the MLP is gated (SwiGLU), with three matrices instead of two."""
    biases: bool = True
    rotary: bool = False
    """Whether positions are rotary, without parameters, instead of learned."""
    rms_norm: bool = False
    """Whether norms have a scale and no shift."""
    tied: bool = False
    """Whether the head shares the embedding's matrix."""
    dropout: bool = False
    """Whether there is dropout, whose masks are kept for backward."""
    causal: bool = True
    experts: int = 1
    """MLPs in each layer; each token passes through `active_experts` of them."""
    active_experts: int = 1
    head_tokens: int | None = None
    """Number of a sample's tokens that reach the head, such as BERT's masked ones; None: all, or a ViT's class
    token."""
    patch_values: int = 0
    """ViT: values of one image patch, embedded by a matrix product instead of a table; the head sees one token."""

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "vocab", "sequence", "experts", "active_experts"):
            if not 1 <= getattr(self, name) < math.inf:  # nor NaN
                raise ValueError(f"{self.name}: {name} must be at least 1, got {getattr(self, name)}")
        if self.width % self.heads:
            raise ValueError(f"{self.name}: width {self.width} is no multiple of {self.heads} heads")
        if self.heads % self.queries_groups:
            raise ValueError(f"{self.name}: {self.heads} heads are no multiple of {self.queries_groups} kv_heads")
        if self.head_tokens is not None and not 1 <= self.head_tokens <= self.sequence:
            raise ValueError(f"{self.name}: head_tokens must be 1 to {self.sequence}, got {self.head_tokens}")
        if self.active_experts > self.experts:
            raise ValueError(f"{self.name}: {self.active_experts} of {self.experts} experts cannot be active")

    # Sizes --------------------------------------------------------------------------------------------------------

    @property
    def queries_groups(self) -> int:
        return self.kv_heads or self.heads

    @property
    def inner(self) -> int:
        return self.ffn or 4 * self.width

    @property
    def kv_width(self) -> int:
        return self.width // self.heads * self.queries_groups

    @property
    def mlp_matrices(self) -> int:
        return 3 if self.gated else 2

    @cached_property
    def attention_parameters(self) -> int:
        h, kv = self.width, self.kv_width
        return 2 * h * h + 2 * h * kv + (2 * h + 2 * kv if self.biases else 0)

    @cached_property
    def mlp_parameters(self) -> int:
        """Number of parameters of one expert."""
        h, f = self.width, self.inner
        bias = (self.mlp_matrices - 1) * f + h if self.biases else 0
        return self.mlp_matrices * h * f + bias

    @cached_property
    def layer_parameters(self) -> int:
        norms = 2 * self.width * (1 if self.rms_norm else 2)
        router = self.width * self.experts if self.experts > 1 else 0
        return self.attention_parameters + self.experts * self.mlp_parameters + norms + router

    @property
    def layer_matrices(self) -> int:
        """Number of parameters in a layer's matrices, without biases and norms."""
        h = self.width
        return 2 * h * h + 2 * h * self.kv_width + self.experts * self.mlp_matrices * h * self.inner

    @cached_property
    def embedding_parameters(self) -> int:
        h = self.width
        if self.patch_values:
            return self.patch_values * h + h + self.sequence * h + h  # includes the class token
        return self.vocab * h + (0 if self.rotary else self.sequence * h)

    def embedding_held(self, tensor: int) -> float:
        """Embedding parameters on one tensor-parallel rank: some tokens' rows, all positions (Shoeybi et al. 2019)."""
        if self.patch_values:
            return self.embedding_parameters / tensor
        return self.embedding_parameters - self.vocab * self.width * (1 - 1 / tensor)

    @cached_property
    def head_parameters(self) -> int:
        """Number of parameters of the last norm, and of the head unless it shares the embedding's matrix."""
        norm = self.width * (1 if self.rms_norm else 2)
        return norm + (0 if self.tied else self.vocab * self.width + (self.vocab if self.patch_values else 0))

    @cached_property
    def parameters(self) -> int:
        return self.layers * self.layer_parameters + self.embedding_parameters + self.head_parameters

    @property
    def units_per_sample(self) -> int:
        """Tokens of a sample; 1 for images."""
        return 1 if self.patch_values else self.sequence

    @property
    def seen_by_head(self) -> int:
        """Tokens of a sample that reach the head."""
        return self.head_tokens or (1 if self.patch_values else self.sequence)

    # FLOPs --------------------------------------------------------------------------------------------------------

    def layer_flops(self, pairs: float = 1.0) -> float:
        """FLOPs of one layer's forward pass for one sample; `pairs`: share of the s x s pairs of attention counted."""
        h, f, s = self.width, self.inner, self.sequence
        per_token = 2 * (2 * h * h + 2 * h * self.kv_width) + 2 * self.active_experts * self.mlp_matrices * h * f
        return s * per_token + 4 * s * s * h * pairs

    @property
    def ends_flops(self) -> float:
        """FLOPs of the embedding's and the head's forward pass for one sample."""
        embedding = 2 * self.sequence * self.patch_values * self.width  # a table costs none
        return embedding + 2 * self.seen_by_head * self.vocab * self.width

    def flops(self, samples: float = 1, convention: Convention = "model", recompute: str = "none") -> float:
        """FLOPs of a step of `samples`, forward and backward, by a convention of `CONVENTIONS`."""
        if convention == "6n":
            return 6.0 * self.parameters * self.sequence * samples
        pairs = 0.5 if self.causal and convention not in ALL_PAIRS else 1.0
        forward = self.layers * self.layer_flops(pairs)
        total = 3 * (forward + self.ends_flops)
        if convention in RECOMPUTED and recompute == "full":
            total += forward
        elif convention in RECOMPUTED and recompute == "selective":
            total += self.layers * 4 * self.sequence**2 * self.width * pairs
        return total * samples

    # Activations --------------------------------------------------------------------------------------------------

    def activation_bytes(
        self,
        samples: float,
        *,
        tensor: int = 1,
        sequence_parallel: bool = False,
        context: int = 1,
        recompute: str = "none",
        flash: bool = False,
        fused: bool = False,
        keep_gathered: bool = False,
        nbytes: int = 2,
        of_products: int | None = None,
    ) -> float:
        """Bytes that one layer keeps for backward, on one GPU of `tensor` x `context`. `nbytes` per value, masks 1.

        `of_products`: bytes per value of the products' inputs, 1 in fp8 if they are kept as they were cast; None:
        `nbytes`. What norms, activations and fused attention read in backward keeps `nbytes`.
        `keep_gathered`: with sequence parallelism, keep the gathered inputs of both parts instead of this rank's share.
        `fused`: a gated MLP's activation is one kernel, which computes the gate's SiLU again in backward (Megatron).
        """
        h, f, kv, t = self.width, self.inner * self.active_experts, self.kv_width, tensor
        tokens = samples * self.sequence / context
        if recompute == "full":
            return tokens * h * nbytes / (t if sequence_parallel else 1)
        mask = 1 if self.dropout else 0
        gathers = keep_gathered and sequence_parallel
        cast = nbytes if of_products is None else of_products
        # inputs of two norms and, unless gathered, of the parts that follow them; masks after both parts
        whole = 2 * h * nbytes + (0 if gathers else 2) * h * cast + 2 * h * mask
        split = (h + 2 * kv) * nbytes + h * cast  # queries, keys, values; the projection's input
        if flash and cast != nbytes:
            split += h * nbytes  # which fused attention keeps too, as its output
        # around the activation: its input, gated also its SiLU unless fused, and up; and the product's input
        split += ((2 if fused else 3) if self.gated else 1) * f * nbytes + f * cast
        if flash:
            split += 4 * self.heads  # one fp32 per row and head
        elif recompute != "selective":
            split += self.heads * self.sequence * ((2 * nbytes + mask) if self.dropout else nbytes)
        gathered = 2 * h * cast if gathers else 0
        return tokens * (gathered + whole / (t if sequence_parallel else 1) + split / t)

    def backward_bytes(
        self,
        samples: float,
        *,
        tensor: int = 1,
        sequence_parallel: bool = False,
        context: int = 1,
        flash: bool = False,
        nbytes: int = 2,
    ) -> float:
        """Peak bytes of one layer's backward beyond what forward kept, which is freed as it is used.

        In the MLP: the gradient of the activation's output, and with a gate those of both halves. In unfused attention,
        after the MLP's tensors are freed: the gradient of the scores. Plus the incoming gradient, for the residual.
        With sequence parallelism the gradient of the MLP's output is gathered, and then its input, whose gradient is
        summed over the ranks.
        """
        h, f, t = self.width, self.inner * self.active_experts, tensor
        widest = (2 if self.gated else 1) * f / t
        if not flash:
            widest = max(widest, self.heads * self.sequence / t - (4 if self.gated else 2) * f / t)
        if sequence_parallel:
            widest = max(widest, f / t + h, 2 * h)
        values = widest + (h / t if sequence_parallel else h)
        return samples * self.sequence / context * nbytes * values

    def weight_bytes(
        self, samples: float, *, tensor: int = 1, sequence_parallel: bool = False, context: int = 1, nbytes: int = 2
    ) -> float:
        """Bytes that one layer holds for deferred weight gradients (Qi et al. 2024): inputs of its products and
        gradients of their outputs, 32sbh for GPT in 16 bits."""
        h, f, t = self.width, self.inner * self.active_experts, tensor
        whole = 2 * h + 2 * h  # inputs of both parts, gradients of their outputs
        split = (h + f) + (h + 2 * self.kv_width + (2 if self.gated else 1) * f)
        return samples * self.sequence / context * nbytes * (whole / (t if sequence_parallel else 1) + split / t)

    def head_activation_bytes(self, samples: float, *, context: int = 1, nbytes: int = 2) -> float:
        """Bytes of the inputs that the last norm and the head keep."""
        tokens = samples * self.seen_by_head / (1 if self.patch_values else context)
        return 2 * nbytes * tokens * self.width

    def logits(self, samples: float, *, tensor: int = 1, context: int = 1) -> float:
        """Number of logits that the head computes on one GPU."""
        return samples * self.seen_by_head / (1 if self.patch_values else context) * self.vocab / tensor

    # Work ---------------------------------------------------------------------------------------------------------

    def block(
        self,
        samples: float,
        *,
        tensor: int = 1,
        sequence_parallel: bool = False,
        context: int = 1,
        flash: bool = False,
        fusion: Fusion = "kernels",
        nbytes: int = 2,
    ) -> Block:
        """Work of one layer's forward pass, on one GPU of `tensor` x `context`.

        Bytes through memory are those of each pass of Megatron's kernels: `fusion` "kernels" fuses bias with GELU, and
        bias with dropout and the residual; with "none" each is a kernel of its own. "norms" fuses only norms and
        rotations: gate and product are separate, queries, keys and values are copied into order (nanotron).
        """
        h, f, kv, t, s = self.width, self.inner, self.kv_width, tensor, self.sequence
        tokens = samples * s / context
        head_width = h // self.heads
        routed = tokens * self.active_experts
        products = [Product(tokens, (h + 2 * kv) / t, h), Product(tokens, h, h / t)]
        if self.experts == 1:
            products += [Product(tokens, (f * (2 if self.gated else 1)) / t, h), Product(tokens, h, f / t)]
        else:
            each = max(1.0, routed / self.experts)
            products += [
                Product(each, f * (2 if self.gated else 1) / t, h, min(self.experts, routed)),
                Product(each, h, f / t, min(self.experts, routed)),
            ]
        whole = tokens * h * nbytes / (t if sequence_parallel else 1)
        mask = 0.5 if self.dropout else 0.0
        # norm: read, write; residual: read two, write one (and the mask). Backward: norm reads three times, writes once
        forward = whole * 2 * (2 + 3 + mask)
        backward = whole * 2 * (4 + 3 + mask)
        inner = routed * f / t * nbytes
        forward += inner * (3 if self.gated else 2)
        backward += inner * (5 if self.gated else 3)
        moved = tokens * (h + 2 * kv) / t * nbytes
        if self.rotary:
            forward += 2 * moved
            backward += 2 * moved
        kernels = 14
        if fusion == "norms":
            forward, backward = forward + 2 * (inner + moved), backward + 2 * (2 * inner + moved)
            kernels += 16  # 12 more in nanotron's source; gradients that a hook adds to fp32 count as 4
        elif fusion == "none" and self.rms_norm:
            # norms in fp32 step by step; bias, dropout and residual separate; gate and product separate
            forward += whole * 2 * 12 + inner * 2
            backward += whole * 2 * 14 + inner * 4
            forward, backward = (forward + 6 * moved, backward + 6 * moved) if self.rotary else (forward, backward)
            kernels += 20
        elif fusion == "none":
            # gradients of queries, keys and values are concatenated in the projection's order; each bias gradient is a
            # sum that reads its input; dropout is separate from the residual. Biases are added in the products
            apart = 2 * 2 * whole if self.dropout else 0.0
            forward += apart
            backward += apart + 4 * moved + (moved + inner + 2 * tokens * h * nbytes if self.biases else 0.0)
            kernels += 10
        flash_flops = attention_bytes = 0.0
        if flash:
            flash_flops = 4 * tokens * s * h / t * (0.5 if self.causal else 1.0)
        else:
            scores = samples * self.heads / t * s * s / context
            batch = samples * self.heads / t
            products += [
                Product(s / context, s, head_width, batch, weight=False),
                Product(s / context, head_width, s, batch, weight=False),
            ]
            # scale, mask and softmax in one pass, dropout in another; transposes around the products
            attention_bytes = scores * nbytes * (2 + (2 + mask if self.dropout else 0)) + 2 * moved
            forward += attention_bytes
            backward += scores * nbytes * (3 + (2 + mask if self.dropout else 0)) + 2 * moved
            if fusion == "none":
                attention_bytes += scores * nbytes * 4
                forward += scores * nbytes * 4
                backward += scores * nbytes * 2
            kernels += 8
        return Block(tuple(products), forward, backward, kernels, flash_flops, attention_bytes)

    def ends(
        self, samples: float, *, tensor: int = 1, context: int = 1, loss: str = "in place", nbytes: int = 2
    ) -> tuple[Block, Block]:
        """Forward work of the embedding, and of the head with its loss (a key of `LOSS_PASSES`), on one GPU."""
        tokens = samples * self.sequence / context
        wide = tokens * self.width * nbytes
        if self.patch_values:
            first = Block((Product(tokens, self.width, self.patch_values),), 2 * wide, 2 * wide, 3)
            return first, Block((Product(samples, self.vocab, self.width),), wide, 2 * wide, 6)
        seen = samples * self.seen_by_head / context
        logits = seen * self.vocab / tensor
        first = Block((), 2 * wide, 3 * wide, 3)
        forward, backward = LOSS_PASSES[loss]
        product = Product(seen, self.vocab / tensor, self.width)
        return first, Block((product,), logits * forward + 2 * wide, logits * backward + 4 * wide, 12)
