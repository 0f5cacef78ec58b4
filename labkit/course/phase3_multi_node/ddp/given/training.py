"""Base of exercise 11's `DDPTrainer`: the training step, and the options of its `DistributedDataParallel`."""

from __future__ import annotations

from typing import Any

from labkit.course.training_step import TrainingStep


class Training(TrainingStep):
    """Base of `DDPTrainer`. See there for the arguments."""

    def __init__(self, config: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(config, *arguments, **options)
        names = "gradient_as_bucket_view", "find_unused_parameters", "broadcast_buffers"
        self.ddp_options = {name: getattr(config, name) for name in names}
