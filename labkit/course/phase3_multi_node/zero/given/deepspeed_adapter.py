"""Training by the package DeepSpeed, on the ranks of a cell: the peer of your own ZeRO (Rajbhandari et al. 2020).

The package is an optional extra of labkit, as of version 0.19.8. On ranks it compiles nothing and sends its messages
through torch.distributed, real or virtual: labkit/clusters/deepspeed_shared_memory.py.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import nn

from labkit.course.arguments import require, trained_module
from labkit.course.phase3_multi_node.zero.given.deepspeed_config import compiles_optimizer, require_deepspeed_config
from labkit.installing import how_to_install

VERSION = "0.19.8"
"""The version that pyproject.toml names."""


def initialize_deepspeed(model: nn.Module, config: dict[str, Any], **options: Any) -> Any:
    """Return DeepSpeed's engine, which trains `model` on all ranks of the process group. All ranks call it.

    A step: `loss = loss_fn(engine(inputs), targets)`, `engine.backward(loss)`, `engine.step()`, for each micro batch:
    the optimizer's step follows the last of `gradient_accumulation_steps`. `engine.destroy()` ends it, not the group.
    Parameters start as the first rank has them, and buffers as each rank has its own.
    config: as `create_deepspeed_config` makes it. options: further arguments of `deepspeed.initialize`, such as
    `optimizer`, `lr_scheduler` or `model_parameters`; without it, all trained parameters.
    Raises ModuleNotFoundError without the package; ValueError, before any message is sent, for a config with something
    that DeepSpeed would ignore or, on CPUs, with an optimizer that it would compile; RuntimeError without a process
    group; and DeepSpeed's own errors.
    """
    require_deepspeed_config(config)
    require("model", model, trained_module)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if "optimizer" not in config and options.get("optimizer") is None:
        raise ValueError("config must have an optimizer, unless it is an argument of its own")
    deepspeed = _package()
    if not dist.is_initialized():
        raise RuntimeError("initialize_deepspeed needs a process group: call setup_distributed(config) first")
    on_cpu = deepspeed.get_accelerator().device_name() == "cpu"
    if on_cpu and options.get("optimizer") is None and compiles_optimizer(config):
        name = config["optimizer"]["type"]
        raise ValueError(
            f"config['optimizer'] must be torch's, got DeepSpeed's own {name!r}, which it compiles first: "
            "set torch_adam in its params, or call deepspeed.initialize"
        )
    engine, *_ = deepspeed.initialize(model=model, config=config, **{"model_parameters": trained, **options})
    return engine


def validate_deepspeed_config(config: dict[str, Any], world_size: int = 1) -> Any:
    """Let DeepSpeed validate the config for that many ranks, without starting any; return its `DeepSpeedConfig`.

    Raises ModuleNotFoundError without the package, ValueError as `initialize_deepspeed`, and DeepSpeed's own errors:
    AssertionError for batch sizes that do not fit `world_size`, pydantic's ValidationError, a ValueError, for values.
    """
    require_deepspeed_config(config)
    _package()
    from deepspeed.runtime.config import DeepSpeedConfig

    class ForRanks(DeepSpeedConfig):  # type: ignore[misc]  # a class without types
        def _configure_train_batch_size(self) -> None:
            self.world_size = world_size  # instead of the process group's, or 1
            super()._configure_train_batch_size()

    return ForRanks(config)


def _package() -> Any:
    try:
        import deepspeed
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "deepspeed":
            raise
        raise ModuleNotFoundError(
            f"training by DeepSpeed needs the package `deepspeed` {VERSION}: "
            f"{how_to_install(f'deepspeed=={VERSION}', 'testing')}; then restart the notebook's kernel",
            name="deepspeed",
        ) from None
    return deepspeed
