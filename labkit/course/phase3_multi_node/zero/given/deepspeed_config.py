"""Configurations of DeepSpeed: written from the arguments of `ZeROConfig`, and checked for what DeepSpeed lets pass.

DeepSpeed validates most values itself, but ignores entries that it does not know, so that a misspelt one has no effect;
takes any name for an optimizer, until it makes one; and leaves its own defaults in place of `"auto"`, which other
libraries replace by their values (deepspeed.ai/docs/config-json). Nothing here needs the package.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch

from labkit.course.arguments import instance_of, integer, multiple_of, number, one_of, optional, positive, require

_ENTRIES = """
activation_checkpointing aio autotuning bf16 bfloat16 checkpoint comet comms_logger communication_data_type compile
csv_monitor data_efficiency data_parallel_size data_types dataloader_drop_last datastates_ckpt disable_allgather
disable_python_gc dump_state expert_parallel flops_profiler fp16 gradient_accumulation_steps gradient_allreduce_op
gradient_clipping gradient_predivide_factor hybrid_engine log_level managed_gradient_accumulation memory_breakdown
optimizer pipeline prescale_gradients scheduler seq_parallel_communication_data_type sequence_parallel_size
steps_per_print tensor_parallel tensorboard timers torch_autocast train_batch_size train_micro_batch_size_per_gpu
use_data_before_expert_parallelism vocabulary_size wall_clock_breakdown wandb weight_quantization
zero_allow_untested_optimizer zero_force_ds_cpu_optimizer zero_optimization
"""
ENTRIES = frozenset(_ENTRIES.split())
"""Top-level entries that DeepSpeed 0.19.8 reads."""
_ZERO_ENTRIES = """
allgather_bucket_size allgather_partitions compute_grad_norm contiguous_gradients cpu_offload cpu_offload_param
cpu_offload_use_pin_memory elastic_checkpoint enable_sanity_checks ignore_unused_parameters leaf_module legacy_stage1
load_from_fp32_weights log_trace_cache_warnings memory_efficient_linear offload_optimizer offload_param overlap_comm
override_module_apply parameter_alignment pipeline_loading_checkpoint reduce_bucket_size reduce_scatter
round_robin_gradients save_muon_momentum_buffer_in_memory stage stage3_allgather_sequential
stage3_gather_16bit_weights_on_model_save stage3_gather_fp16_weights_on_model_save stage3_max_live_parameters
stage3_max_reuse_distance stage3_model_persistence_threshold stage3_module_granularity_threshold
stage3_param_persistence_threshold stage3_prefetch_bucket_size stage3_use_all_reduce_for_fetch_params sub_group_size
use_multi_rank_bucket_allreduce zenflow zero_hpz_partition_size zero_quantized_gradients
zero_quantized_nontrainable_weights zero_quantized_weights
"""
_OFFLOAD_ENTRIES = "buffer_count device nvme_path pin_memory"
SECTIONS = {
    ("zero_optimization",): frozenset(_ZERO_ENTRIES.split()),
    ("zero_optimization", "offload_optimizer"): frozenset(
        f"{_OFFLOAD_ENTRIES} cpuadam_cores_perc fast_init pipeline_read pipeline_write ratio super_offload".split()
    ),
    ("zero_optimization", "offload_param"): frozenset(f"{_OFFLOAD_ENTRIES} buffer_size max_in_cpu".split()),
}
"""Entries that DeepSpeed 0.19.8 takes in its sections on ZeRO. It refuses others, but only on the ranks."""
OPTIMIZERS = ("ASGD", "Adadelta", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD")
"""Classes of torch.optim that update each element by itself, as the shards of ZeRO require."""
_COMPILED = ("adagrad", "adam", "adamw", "lamb", "lion", "muadam", "muadamw", "musgd", "muon")
"""DeepSpeed's own optimizers, in lower case; DeepSpeed accepts any case."""
_TESTED = ("Adam", "AdamW")
"""Names in `OPTIMIZERS` that DeepSpeed shards without `zero_allow_untested_optimizer`."""


def create_deepspeed_config(
    stage: int = 3,
    *,
    batch_size: int | None = None,
    micro_batch_size: int | None = None,
    gradient_accumulation_steps: int = 1,
    learning_rate: float = 1e-3,
    optimizer: str = "AdamW",
    optimizer_params: Mapping[str, Any] | None = None,
    gradient_clipping: float = 0.0,
    offload_optimizer: bool = False,
    offload_params: bool = False,
    overlap_comm: bool = True,
    nvme_path: str | None = None,
    zero_optimization: Mapping[str, Any] | None = None,
    param_persistence_threshold: int | None = None,
    bf16: bool = False,
    **entries: Any,
) -> dict[str, Any]:
    """Return a configuration for `initialize_deepspeed` or `deepspeed.initialize`.

    stage: what is sharded: 0 nothing, 1 the optimizer's state, 2 gradients, too, 3 parameters, too. batch_size: samples
    of all ranks in a step; micro_batch_size: of one rank in a forward pass; one of the two is enough. optimizer: a name
    of `OPTIMIZERS`; it is torch's, so that nothing is compiled; optimizer_params: its further arguments.
    gradient_clipping: the largest norm of all gradients together; 0: any. offload_optimizer: state and step are on the
    CPU; offload_params (stage 3): parameters, too. nvme_path: a folder where they are instead of in host memory; needs
    DeepSpeed's `async_io`, which it compiles. overlap_comm: gradients are reduced during the backward pass.
    zero_optimization: more entries of DeepSpeed's section of this name, such as `reduce_bucket_size`,
    `contiguous_gradients`, or `offload_optimizer` with a `buffer_count`; merged with what the other arguments say.
    param_persistence_threshold (stage 3): smaller parameters, in elements, stay on all ranks once they are gathered;
    None: DeepSpeed's own, 100,000. bf16: compute in bfloat16, which inputs must have. entries: others of DeepSpeed's.
    Raises ValueError, with its name and value, for an argument that cannot be used.
    """
    require("stage", stage, integer(at_least=0, below=4))
    require("gradient_accumulation_steps", gradient_accumulation_steps, integer(at_least=1))
    require("batch_size", batch_size, optional(integer(at_least=1)))
    require("micro_batch_size", micro_batch_size, optional(integer(at_least=1)))
    if batch_size is None and micro_batch_size is None:
        raise ValueError("batch_size or micro_batch_size must be given, got None for both")
    if batch_size:
        each = gradient_accumulation_steps * (micro_batch_size or 1)
        require("batch_size", batch_size, multiple_of(each, "the samples that one rank takes"))
    require("param_persistence_threshold", param_persistence_threshold, optional(integer(at_least=0)))
    require("learning_rate", learning_rate, positive)
    require("gradient_clipping", gradient_clipping, number(at_least=0))
    require("optimizer", optimizer, one_of(*OPTIMIZERS))
    if offload_optimizer and stage == 0:
        raise ValueError(f"offload_optimizer needs stage 1, 2 or 3, got stage={stage}")
    if (offload_params or param_persistence_threshold is not None) and stage != 3:
        name = "offload_params" if offload_params else "param_persistence_threshold"
        raise ValueError(f"{name} needs stage 3, got stage={stage}")

    if nvme_path is not None and not (offload_optimizer or offload_params):
        raise ValueError(f"nvme_path must be None unless something is offloaded, got {nvme_path!r}")

    zero: dict[str, Any] = {"stage": stage, "overlap_comm": bool(overlap_comm)}
    place = {"device": "cpu"} if nvme_path is None else {"device": "nvme", "nvme_path": str(nvme_path)}
    if offload_optimizer:
        zero["offload_optimizer"] = dict(place)
    if offload_params:
        zero["offload_param"] = dict(place)
    if param_persistence_threshold is not None:
        zero["stage3_param_persistence_threshold"] = param_persistence_threshold
    zero = _merged(zero, zero_optimization or {}, "zero_optimization")
    _require_offload(zero)
    params: dict[str, Any] = {"lr": learning_rate, **(optimizer_params or {})}
    if optimizer in _TESTED:
        # else DeepSpeed compiles its own; and without adam_w_mode its "Adam" is AdamW
        params = {"torch_adam": True, "adam_w_mode": optimizer == "AdamW", **params}
    config: dict[str, Any] = {
        "gradient_accumulation_steps": gradient_accumulation_steps,
        "gradient_clipping": float(gradient_clipping),
        "zero_optimization": zero,
        "optimizer": {"type": optimizer, "params": params},
    }
    if batch_size is not None:
        config["train_batch_size"] = batch_size
    if micro_batch_size is not None:
        config["train_micro_batch_size_per_gpu"] = micro_batch_size
    if optimizer not in _TESTED:
        config["zero_allow_untested_optimizer"] = True
    if bf16:
        config["bf16"] = {"enabled": True}
    if repeated := sorted(config.keys() & entries.keys()):
        raise ValueError(f"entries must not repeat what other arguments say, got {', '.join(repeated)}")
    config |= entries
    require_deepspeed_config(config)
    return config


def require_deepspeed_config(config: Any) -> None:
    """Raise `ValueError` for what DeepSpeed would ignore: unknown entries, unknown optimizers, and "auto"."""
    require("config", config, instance_of(dict, "a dict"))
    _require_known("config", config, ENTRIES)
    for names, known in SECTIONS.items():
        section: Any = config
        for name in names:
            section = section.get(name, {}) if isinstance(section, Mapping) else {}
        if isinstance(section, Mapping):
            _require_known("config" + "".join(f"[{name!r}]" for name in names), section, known)
    for place in _places_of_auto(config):
        raise ValueError(f"config[{place}] must be a value, got 'auto', which DeepSpeed ignores")
    if "optimizer" in config:
        _require_optimizer(config["optimizer"])


def _require_known(place: str, section: Mapping[str, Any], known: Collection[str]) -> None:
    for entry in section.keys() - known:
        similar = difflib.get_close_matches(str(entry), known, n=1)
        advice = f"; did you mean {similar[0]!r}?" if similar else ""
        raise ValueError(f"{place} must have entries that DeepSpeed knows, got {entry!r}{advice}")


def _merged(own: dict[str, Any], more: Any, place: str) -> dict[str, Any]:
    """Return the section `own` with the entries of `more`, which may say nothing else than `own` does."""
    require(place, more, instance_of(Mapping, "a dict"))
    merged = dict(own)
    for name, value in more.items():
        if isinstance(own.get(name), dict):
            merged[name] = _merged(own[name], value, f"{place}[{name!r}]")
        elif name in own and own[name] != value:
            raise ValueError(f"{place}[{name!r}] must be {own[name]!r}, as another argument says, got {value!r}")
        else:
            merged[name] = dict(value) if isinstance(value, Mapping) else value
    return merged


def _require_offload(zero: Mapping[str, Any]) -> None:
    """Raise `ValueError` for an offload that DeepSpeed would ignore, or refuse only once ranks have started."""
    for name, least in (("offload_optimizer", 1), ("offload_param", 3)):
        section = zero.get(name)
        if not isinstance(section, Mapping) or section.get("device", "none") == "none":
            continue
        if zero["stage"] < least:
            raise ValueError(f"zero_optimization[{name!r}] needs stage {least} or more, got stage={zero['stage']}")
        if section["device"] == "nvme" and not section.get("nvme_path"):
            raise ValueError(f"zero_optimization[{name!r}] must have an nvme_path with device 'nvme', got none")


def compiles_optimizer(config: Mapping[str, Any]) -> bool:
    """Return whether DeepSpeed compiles this config's optimizer when it creates it on a CPU."""
    entry = config.get("optimizer", {"type": ""})
    name = entry["type"].lower()
    return name in ("lamb", "lion") or (
        name in ("adam", "adamw", "muon") and not entry.get("params", {}).get("torch_adam")
    )


def _require_optimizer(entry: Any) -> None:
    if not isinstance(entry, dict) or not isinstance(name := entry.get("type"), str):
        raise ValueError(f"config['optimizer'] must be a dict with a type, got {entry!r}"[:200])
    if unknown := sorted(entry.keys() - {"type", "params", "legacy_fusion"}):
        raise ValueError(f"config['optimizer'] must have no entries but type and params, got {unknown[0]!r}")
    known = getattr(torch.optim, name, None)
    is_torchs = isinstance(known, type) and issubclass(known, torch.optim.Optimizer)
    if name.lower() not in _COMPILED and not is_torchs:
        similar = difflib.get_close_matches(name, OPTIMIZERS, n=1)
        advice = f"; did you mean {similar[0]!r}?" if similar else ""
        raise ValueError(f"config['optimizer']['type'] must be DeepSpeed's or torch's, got {name!r}{advice}")


def _places_of_auto(value: Any, place: str = "") -> Iterator[str]:
    """Yield where "auto" is, such as `'bf16']['enabled'`."""
    inner: Iterator[tuple[Any, Any]] = iter(())
    if isinstance(value, Mapping):
        inner = iter(value.items())
    elif isinstance(value, (list, tuple)):
        inner = iter(enumerate(value))
    elif value == "auto":
        yield place
    for key, each in inner:
        yield from _places_of_auto(each, f"{place}][{key!r}" if place else repr(key))
