"""A plan: how a model is laid out over ranks and trained. Contradictions are refused by name."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from labkit.hardware import Topology
from labkit.predict.describe.transformer import Fusion, Transformer

Schedule = Literal["gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v"]
Recompute = Literal["none", "selective", "full"]
Attention = Literal["parts", "flash1", "flash2", "flash3"]
Precision = Literal["fp32", "tf32", "fp16", "bf16", "fp8"]
Offload = Literal["none", "optimizer", "optimizer+parameters"]
Compression = Literal["none", "fp16", "8-bit", "1-bit"]

COMPRESSION_RATIO: dict[Compression, float] = {"none": 1.0, "fp16": 0.5, "8-bit": 0.25, "1-bit": 1 / 32}
"""Of fp32 gradients' bytes: Seide et al. 2014 for 1 bit, Dettmers 2016 for 8."""


@dataclass(frozen=True)
class Plan:
    """Ranks are laid out tensor, then context, then data, then pipeline, the first being neighbours (as in
    Megatron)."""

    batch: int
    """Samples (sequences, images) of one step, over all ranks."""
    microbatch: int = 1
    """Samples that pass a rank at once."""
    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    """Ranks that share a sequence; ring attention (Liu et al. 2023)."""
    expert: int = 1
    """Ranks of a data-parallel group over which a layer's experts are spread."""
    sequence_parallel: bool = False
    """Norms and dropout split over the tensor ranks too (Korthikanti et al. 2022)."""
    schedule: Schedule = "1f1b"
    chunks: int = 1
    """Model chunks of a rank, with `interleaved` (Narayanan et al. 2021)."""
    zero: int = 0
    """ZeRO's stage: 1 optimizer, 2 gradients too, 3 parameters too (FSDP)."""
    zero_ranks: int | None = None
    """Hybrid: shard over groups of so many ranks, keep copies between them; None: over all data ranks."""
    recompute: Recompute = "none"
    """Full: all of a layer but its input. Selective: attention's scores only (Korthikanti et al. 2022)."""
    recomputed_layers: float = 1.0
    """Share of the layers of which that is so."""
    early_stop: bool = False
    """Full recomputation ends with the last tensor that backward needs, which leaves out a layer's last product:
    torch's checkpoints that are not reentrant."""
    precision: Precision = "bf16"
    attention: Attention = "flash2"
    """In parts, with the scores in memory; or in one kernel that never writes them (Dao et al. 2022, 2023, Shah et
    al. 2024)."""
    fusion: Fusion = "kernels"
    """Passes over memory joined: by hand-written kernels (Megatron), only in norms and rotations (nanotron), by
    torch.compile, or not at all (eager torch)."""
    channels_last: bool = True
    """Images are laid out as tensor cores read them; else each convolution transposes what it reads and writes."""
    overlap: bool = True
    """Gradients and shards travel while backward (and forward) computes."""
    overlap_tensor: bool = False
    """Tensor-parallel traffic travels while products compute."""
    run_ahead: bool = True
    """The host launches ahead of the GPU. False: a pipeline whose hosts read from the GPU what comes, microbatch by
    microbatch (nanotron), so that tensor-parallel ranks meet at the pace of their hosts."""
    offload: Offload = "none"
    compression: Compression = "none"
    gradients: Literal["fp32", "16-bit"] = "16-bit"
    """In which gradients are kept and summed up."""
    gradient_copies: bool = False
    """Autograd's gradients stand beside their sums, as do DDP's buckets, both in the precision that computes
    (nanotron); else they are added where they are made (Megatron, FSDP)."""
    adam: Literal["fused", "foreach"] = "fused"
    """Adam in one kernel; or tensor by tensor operations over all parameters, with an fp32 copy of them."""
    balance: Literal["layers", "cost", "ends", "matrices"] = "layers"
    """Stages have equally many layers; or those with embedding and head so many fewer as these cost; or one fewer; or
    each is filled until its share of all matrices' parameters is passed, the head's included (nanotron)."""
    loss: Literal["in place", "copied", "eager", "fused"] = "in place"
    """The loss works on its fp32 logits in place (Megatron); or on a copy of them (nanotron); or writes out every
    step, as eager torch does; or is a kernel that reads the logits and writes their gradients (flash-attn's)."""
    keep_gathered: bool = False
    """With sequence parallelism: gathered inputs are kept for backward, not gathered again."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _WHOLE and not (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
                raise ValueError(f"{field.name} must be a whole number from 1 up, got {value!r}")
            if field.name in _CHOICES and value not in _CHOICES[field.name]:
                raise ValueError(f"{field.name} must be one of {', '.join(_CHOICES[field.name])}, got {value!r}")
        if self.zero not in (0, 1, 2, 3):
            raise ValueError(f"zero must be 0, 1, 2 or 3, got {self.zero!r}")
        if not 0 < self.recomputed_layers <= 1:
            raise ValueError(f"recomputed_layers is a share above 0 and at most 1, got {self.recomputed_layers!r}")
        self._check_batch()
        self._check_schedule()
        self._check_sharding()

    def _check_batch(self) -> None:
        per_round = self.microbatch * self.data
        if self.batch % per_round:
            raise ValueError(
                f"batch {self.batch} must be a multiple of microbatch x data = "
                f"{self.microbatch} x {self.data} = {per_round}"
            )

    def _check_schedule(self) -> None:
        if self.chunks > 1 and self.schedule != "interleaved":
            raise ValueError(f"chunks = {self.chunks} need schedule 'interleaved', not {self.schedule!r}")
        if self.chunks > 1 and self.pipeline == 1:
            raise ValueError(f"chunks = {self.chunks} are turns of a pipeline's ranks: they need pipeline above 1")
        if self.schedule == "interleaved" and self.pipeline > 1 and self.chunks == 1:
            raise ValueError("schedule 'interleaved' needs chunks of 2 or more; with one it is '1f1b'")
        if self.schedule == "interleaved" and self.pipeline > 1 and self.microbatches % self.pipeline:
            raise ValueError(
                f"interleaved: {self.microbatches} microbatches must be a multiple of pipeline = {self.pipeline}"
            )

    def _check_sharding(self) -> None:
        if self.zero_ranks is not None:
            if not isinstance(self.zero_ranks, int) or self.zero_ranks < 1 or self.shared_by % self.zero_ranks:
                raise ValueError(f"zero_ranks {self.zero_ranks!r} must divide data x context = {self.shared_by}")
            if self.zero == 0:
                raise ValueError("zero_ranks needs zero 1, 2 or 3")
        if self.zero >= 2 and self.pipeline > 1:
            raise ValueError(
                f"zero {self.zero} with pipeline {self.pipeline}: gradients and parameters would be gathered anew for "
                "every microbatch; use zero 1 with pipelines"
            )
        if self.zero == 3 and self.compression != "none":
            raise ValueError("compression is of gradients that all ranks hold whole: with zero 3 it must be 'none'")
        if self.sequence_parallel and self.tensor == 1:
            raise ValueError("sequence_parallel splits over the tensor ranks: it needs tensor above 1")
        if self.expert > 1 and self.data % self.expert:
            raise ValueError(f"expert {self.expert} must divide data = {self.data}")
        if self.offload == "optimizer+parameters" and self.zero != 3:
            raise ValueError("offload of parameters needs zero 3 (ZeRO-Infinity)")

    # What follows -------------------------------------------------------------------------------------------------

    @property
    def ranks(self) -> int:
        return self.data * self.tensor * self.pipeline * self.context

    @property
    def microbatches(self) -> int:
        """Of one rank and step."""
        return self.batch // (self.microbatch * self.data)

    @property
    def shared_by(self) -> int:
        """Ranks that hold the same parameters and add up their gradients: data and context ranks."""
        return self.data * self.context

    @property
    def sharded_over(self) -> int:
        """Ranks over which ZeRO splits."""
        return 1 if self.zero == 0 else self.zero_ranks or self.shared_by

    @property
    def flash(self) -> bool:
        return self.attention != "parts"

    @property
    def value_bytes(self) -> int:
        """Of one parameter or activation as it computes."""
        return 4 if self.precision in ("fp32", "tf32") else 2

    @property
    def gradient_bytes(self) -> int:
        return 4 if self.value_bytes == 4 or self.gradients == "fp32" else 2

    @property
    def dtype(self) -> str:
        """As `GPU.seconds` names it."""
        return {"fp32": "float32", "tf32": "tf32", "fp16": "float16", "bf16": "bfloat16", "fp8": "float8_e4m3fn"}[
            self.precision
        ]

    def check(self, model: object, cluster: Topology | None = None) -> None:
        """Raise ValueError when `model` cannot be laid out like this, or `cluster` has another number of GPUs."""
        if cluster is not None and cluster.world_size != self.ranks:
            raise ValueError(
                f"data x tensor x pipeline x context = {self.data} x {self.tensor} x {self.pipeline} x "
                f"{self.context} = {self.ranks} ranks, but the cluster has {cluster.world_size} GPUs"
            )
        if cluster is not None and self.precision == "fp8" and cluster.gpu.name.split("-")[0] in _WITHOUT_FP8:
            raise ValueError(f"fp8 needs tensor cores that have it (Ada, Hopper and later), not {cluster.gpu.name}")
        if not isinstance(model, Transformer):
            for axis in ("tensor", "pipeline", "context", "expert"):
                if getattr(self, axis) > 1:
                    raise ValueError(f"{axis} parallelism is predicted for transformers; this model needs {axis} = 1")
            return
        self._check_transformer(model)

    def _check_transformer(self, model: Transformer) -> None:
        if model.heads % self.tensor:
            raise ValueError(f"tensor {self.tensor} must divide {model.name}'s {model.heads} heads")
        if model.queries_groups % self.tensor and self.tensor % model.queries_groups:
            raise ValueError(f"tensor {self.tensor} must divide {model.name}'s {model.queries_groups} kv_heads")
        if model.inner % self.tensor:
            raise ValueError(f"tensor {self.tensor} must divide {model.name}'s ffn width {model.inner}")
        places = model.layers + {"layers": 0, "cost": 1, "ends": 2, "matrices": 1}[self.balance]
        if self.pipeline * self.chunks > places:
            raise ValueError(
                f"pipeline x chunks = {self.pipeline} x {self.chunks} stages need as many layers; "
                f"{model.name} has {model.layers}"
            )
        if (
            self.schedule == "interleaved"
            and self.balance in ("layers", "ends")
            and places % (self.pipeline * self.chunks)
        ):
            raise ValueError(
                f"interleaved: pipeline x chunks = {self.pipeline * self.chunks} must divide {model.layers} layers"
                + (" and the two that the ends have fewer" if self.balance == "ends" else "")
            )
        if self.context > 1 and model.sequence % (2 * self.context):
            raise ValueError(f"2 x context = {2 * self.context} must divide the sequence of {model.sequence} tokens")
        if self.expert > 1 and model.experts == 1:
            raise ValueError(f"expert {self.expert}: {model.name} has no experts to spread over ranks")
        if self.expert > 1 and model.experts % self.expert:
            raise ValueError(f"expert {self.expert} must divide {model.name}'s {model.experts} experts")


_WITHOUT_FP8 = {"v100", "t4", "a100"}
"""Volta, Turing and Ampere, by the first part of a GPU's name."""
_WHOLE = {"batch", "microbatch", "data", "tensor", "pipeline", "context", "expert", "chunks"}


def _choices() -> dict[str, tuple[Any, ...]]:
    hints = get_type_hints(Plan)
    return {name: get_args(hint) for name, hint in hints.items() if get_origin(hint) is Literal}


_CHOICES = _choices()
