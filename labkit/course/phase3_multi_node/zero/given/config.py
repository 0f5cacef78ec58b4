"""Configuration of ZeRO: the stage, and which states are kept out of GPU memory."""

from __future__ import annotations

from dataclasses import dataclass

from labkit.course.phase3_multi_node.zero.given.arguments import require_stage


@dataclass(frozen=True)
class ZeROConfig:
    """Which states are sharded, and where shards are. Raises ValueError for a stage or an offload that does not exist.

    stage: 0 nothing is sharded, 1 optimizer state, 2 gradients too, 3 parameters too (Rajbhandari et al. 2020).
    offload_optimizer: optimizer state, and with stages 2 and 3 gradients, are in host memory, where the optimizer
    steps. offload_params: so are parameters; with stage 3 only. overlap_comm: communicate while computing. nvme_path: a
    folder on NVMe drives, where offloaded optimizer state and parameters are instead of in host memory (ZeRO-Infinity,
    Rajbhandari et al. 2021).

    `ZeROTrainer` trains by it with the exercise's own classes, `create_deepspeed_config` makes DeepSpeed's of it.
    """

    stage: int = 3
    offload_optimizer: bool = False
    offload_params: bool = False
    overlap_comm: bool = True
    nvme_path: str | None = None

    def __post_init__(self) -> None:
        require_stage(self.stage, 0, 3)
        if self.offload_params and self.stage < 3:
            raise ValueError(f"offload_params must be False unless stage is 3, got stage={self.stage}")
        if self.offload_optimizer and self.stage < 1:
            raise ValueError(f"offload_optimizer must be False unless stage is 1 or more, got stage={self.stage}")
        if self.nvme_path is not None and not (self.offload_optimizer or self.offload_params):
            raise ValueError(f"nvme_path must be None unless something is offloaded, got {self.nvme_path!r}")
