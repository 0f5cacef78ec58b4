"""A plan: how a model is laid out over ranks and trained. Contradictory plans raise ValueError with the constraint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from labkit.hardware import Topology
from labkit.predict.describe.transformer import Fusion, Transformer

Schedule = Literal["gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v"]
Recompute = Literal["none", "selective", "full"]
Attention = Literal["parts", "flash1", "flash2", "flash3"]
Precision = Literal["fp32", "tf32", "fp16", "bf16", "fp8"]
Offload = Literal["none", "optimizer", "optimizer+parameters"]
Compression = Literal["none", "fp16", "8-bit", "1-bit", "top-k", "powersgd"]


@dataclass(frozen=True)
class Plan:
    """Layout and training options. Rank order: tensor (adjacent ranks), then context, data, pipeline (as in
    Megatron)."""

    batch: int
    """Samples (sequences, images) per step, over all ranks."""
    microbatch: int = 1
    """Samples per forward pass of a rank."""
    data: int = 1
    """Ranks that each compute a part of the batch with a copy of the model, or a shard of it with `zero`."""
    tensor: int = 1
    """Ranks that share every matrix of a layer (Shoeybi et al. 2019)."""
    pipeline: int = 1
    """Stages that the layers are cut into."""
    context: int = 1
    """Ranks that share a sequence; ring attention (Liu et al. 2023)."""
    expert: int = 1
    """Number of ranks of a data-parallel group over which a layer's experts are spread."""
    sequence_parallel: bool = False
    """Whether norms and dropout are split over the tensor ranks too (Korthikanti et al. 2022)."""
    schedule: Schedule = "1f1b"
    """Order of the pipeline's microbatches."""
    chunks: int = 1
    """Model chunks per rank, with `interleaved` (Narayanan et al. 2021). Chunks may differ by a layer."""
    microbatch_group: int | None = None
    """With `interleaved`: microbatches that a rank passes through a chunk before it turns to the next one. Larger
    groups hide more gradients and hold more activations (Llama Team 2024, section 3.3.2). None: as many as stages."""
    zero: int = 0
    """ZeRO stage; shards 1: optimizer state, 2: gradients too, 3: parameters too (FSDP). With a pipeline 2 scatters the
    gradients, and 3 also gathers the parameters, in every microbatch."""
    zero_ranks: int | None = None
    """Hybrid sharding: size of the groups to shard over, with replicas between them; None: all data ranks."""
    recompute: Recompute = "none"
    """Full: everything in a layer but its input. Selective: only attention's scores (Korthikanti et al. 2022)."""
    recomputed_layers: float = 1.0
    """Share of the layers that are recomputed."""
    early_stop: bool = False
    """Whether full recomputation stops at the last tensor that backward needs, which skips a layer's last product, as
    torch's non-reentrant checkpoints do."""
    precision: Precision = "bf16"
    """Number format of the matrix products; fp8 keeps activations and parameters in 16 bits beside them, and is cast by
    Transformer Engine if `fusion` is "kernels", else by torch."""
    fp8_activations: bool = False
    """With fp8: whether products' inputs are kept for backward in 8 bits, as forward cast them (Transformer Engine),
    instead of in 16."""
    fp8_transfers: bool = False
    """With fp8: whether the layers' parameters (ZeRO's and FSDP's gathers), what sequence parallelism gathers and the
    tokens on their way to experts travel in 8 bits. Sums keep their precision: gradients, experts' results."""
    attention: Attention = "flash2"
    """Unfused ("parts"), with the scores in memory; or one kernel that never writes them (Dao et al. 2022, 2023, Shah
    et al. 2024)."""
    fusion: Fusion = "kernels"
    """How passes over memory are fused: by hand-written kernels (Megatron), only in norms and rotations (nanotron), by
    torch.compile, or not at all (eager torch)."""
    channels_last: bool = True
    """Whether images have the layout that tensor cores read; otherwise each convolution transposes input and output."""
    overlap: bool = True
    """Whether gradients and shards are sent while backward (and forward) computes."""
    overlap_tensor: bool = False
    """Whether tensor-parallel traffic overlaps matrix products."""
    run_ahead: bool = True
    """Whether the host launches ahead of the GPU. False: a pipeline whose hosts read the sizes of received tensors from
    the GPU, microbatch by microbatch (nanotron), so that tensor-parallel ranks proceed at the pace of their hosts."""
    cuda_graphs: bool = False
    """Whether hosts replay recorded CUDA graphs instead of launching kernels one by one, so that no GPU waits for its
    host."""
    offload: Offload = "none"
    """What is kept in the host's memory instead of the GPU's (Ren et al. 2021)."""
    compression: Compression = "none"
    """How gradients are compressed before they are sent: exercise 13's compressors, the largest 1 % for top-k, rank 4
    for PowerSGD. Messages of 8 bits, 1 bit and top-k do not add up: every rank receives one from every other rank."""
    gradients: Literal["fp32", "16-bit"] = "16-bit"
    """Precision in which gradients are kept and accumulated."""
    gradient_copies: bool = False
    """Whether autograd's gradients and DDP's buckets, both in the compute precision, are held besides the accumulated
    gradients (nanotron); otherwise gradients are accumulated in place (Megatron, FSDP)."""
    adam: Literal["fused", "foreach"] = "fused"
    """Adam in one kernel, or as elementwise operations over all parameters with an fp32 copy of them."""
    balance: Literal["layers", "cost", "ends", "matrices"] = "layers"
    """Stages have equally many layers; or those with embedding and head have fewer, according to these parts' cost, and
    those with slower GPUs; or those at the ends one fewer; or each is filled until its share of all matrices'
    parameters is passed, including the head's (nanotron)."""
    loss: Literal["in place", "copied", "eager", "fused"] = "in place"
    """The loss modifies its fp32 logits in place (Megatron), or works on a copy of them (nanotron), or writes out every
    step (eager torch), or is one kernel that reads the logits and writes their gradients (flash-attn)."""
    keep_gathered: bool = False
    """Whether, with sequence parallelism, gathered inputs are kept for backward instead of gathered again."""

    def __post_init__(self) -> None:
        for name in _WHOLE:
            value = getattr(self, name)
            if not (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
                raise ValueError(f"{name} must be a whole number from 1 up, got {value!r}")
        for name, choices in _CHOICES.items():
            if (value := getattr(self, name)) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
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
        if self.microbatch_group is not None:
            self._check_group(self.microbatch_group)
        elif self.schedule == "interleaved" and self.pipeline > 1 and self.microbatches % self.pipeline:
            raise ValueError(
                f"interleaved: {self.microbatches} microbatches must be a multiple of pipeline = {self.pipeline}, or "
                "have a microbatch_group"
            )

    def _check_group(self, group: int) -> None:
        if self.schedule != "interleaved" or self.pipeline == 1:
            raise ValueError("microbatch_group is of chunks: it needs schedule 'interleaved' and pipeline above 1")
        if not isinstance(group, int) or not self.pipeline <= group <= self.microbatches:
            raise ValueError(
                f"microbatch_group must be from pipeline = {self.pipeline} to {self.microbatches} microbatches, got "
                f"{group!r}"
            )
        if 0 < self.microbatches % group < self.pipeline:
            raise ValueError(
                f"microbatch_group {group} leaves {self.microbatches % group} of {self.microbatches} microbatches for "
                f"the last group, fewer than the pipeline's {self.pipeline} stages"
            )

    def _check_sharding(self) -> None:
        if self.zero_ranks is not None:
            if not isinstance(self.zero_ranks, int) or self.zero_ranks < 1 or self.shared_by % self.zero_ranks:
                raise ValueError(f"zero_ranks {self.zero_ranks!r} must divide data x context = {self.shared_by}")
            if self.zero == 0:
                raise ValueError("zero_ranks needs zero 1, 2 or 3")
        if self.zero and self.compression != "none":
            raise ValueError(
                f"compression is of gradients that all ranks hold whole: with zero {self.zero} it must be 'none'"
            )
        if self.sequence_parallel and self.tensor == 1:
            raise ValueError("sequence_parallel splits over the tensor ranks: it needs tensor above 1")
        for name in ("fp8_activations", "fp8_transfers"):
            if getattr(self, name) and self.precision != "fp8":
                raise ValueError(f"{name} are of products in 8 bits: they need precision 'fp8', not {self.precision!r}")
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
        """Number of microbatches per rank and step."""
        return self.batch // (self.microbatch * self.data)

    @property
    def group(self) -> int:
        """Number of microbatches that pass through a chunk in turn."""
        return self.microbatch_group or self.pipeline

    @property
    def shared_by(self) -> int:
        """Number of ranks that hold the same parameters and reduce their gradients: data and context ranks."""
        return self.data * self.context

    @property
    def sharded_over(self) -> int:
        """Number of ranks over which ZeRO shards."""
        return 1 if self.zero == 0 else self.zero_ranks or self.shared_by

    @property
    def flash(self) -> bool:
        return self.attention != "parts"

    @property
    def value_bytes(self) -> int:
        """Bytes of one parameter or activation in the compute precision."""
        return 4 if self.precision in ("fp32", "tf32") else 2

    @property
    def kept_bytes(self) -> int:
        """Bytes of one value that is kept for backward as the input of a product."""
        return 1 if self.fp8_activations else self.value_bytes

    @property
    def gathered_bytes(self) -> int:
        """Bytes of one value of a layer that is gathered as the input of a product: a parameter or an activation."""
        return 1 if self.fp8_transfers else self.value_bytes

    @property
    def gradient_bytes(self) -> int:
        return 4 if self.value_bytes == 4 or self.gradients == "fp32" else 2

    @property
    def dtype(self) -> str:
        """Name of the compute dtype, as `GPU.seconds` takes it."""
        return {"fp32": "float32", "tf32": "tf32", "fp16": "float16", "bf16": "bfloat16", "fp8": "float8_e4m3fn"}[
            self.precision
        ]

    def check(self, model: object, cluster: Topology | None = None) -> None:
        """Raise ValueError if `model` cannot be laid out like this, or if `cluster` has another number of GPUs."""
        if cluster is not None and cluster.world_size != self.ranks:
            raise ValueError(
                f"data x tensor x pipeline x context = {self.data} x {self.tensor} x {self.pipeline} x "
                f"{self.context} = {self.ranks} ranks, but the cluster has {cluster.world_size} GPUs"
            )
        for gpu in () if cluster is None or self.precision != "fp8" else cluster.gpus or (cluster.gpu,):
            if gpu.name.split("-")[0] in _WITHOUT_FP8:
                raise ValueError(f"fp8 needs tensor cores that have it (Ada, Hopper and later), not {gpu.name}")
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
        if self.context > 1 and model.sequence % (2 * self.context):
            raise ValueError(f"2 x context = {2 * self.context} must divide the sequence of {model.sequence} tokens")
        if self.expert > 1 and model.experts == 1:
            raise ValueError(f"expert {self.expert}: {model.name} has no experts to spread over ranks")
        if self.expert > 1 and model.experts % self.expert:
            raise ValueError(f"expert {self.expert} must divide {model.name}'s {model.experts} experts")


_WITHOUT_FP8 = {"v100", "t4", "a100"}
"""Volta, Turing and Ampere, by the first part of a GPU's name."""
_WHOLE = ("batch", "microbatch", "data", "tensor", "pipeline", "context", "expert", "chunks")


def _choices() -> dict[str, tuple[Any, ...]]:
    hints = get_type_hints(Plan)
    return {name: get_args(hint) for name, hint in hints.items() if get_origin(hint) is Literal}


_CHOICES = _choices()
