"""Torch's DistributedDataParallel does the work."""

import os

import torch
from torch import nn

from labkit.course.phase3_multi_node.ddp.given import CheckpointFile, Training
from labkit.exercises import data_loader, process_group, trainer

__all__ = ["DDPCheckpointer", "DDPTrainer", "DistributedDataParallel"]


class DistributedDataParallel(nn.parallel.DistributedDataParallel):
    def __init__(
        self,
        module,
        group=None,
        bucket_cap_mb=25,
        gradient_as_bucket_view=False,
        find_unused_parameters=False,
        broadcast_buffers=True,
    ):
        if not any(parameter.requires_grad for parameter in module.parameters()):
            raise ValueError("module must have a parameter that is trained")
        if bucket_cap_mb <= 0:
            raise ValueError(f"bucket_cap_mb must be above 0, got {bucket_cap_mb}")
        super().__init__(
            module,
            process_group=group,
            bucket_cap_mb=bucket_cap_mb,
            gradient_as_bucket_view=gradient_as_bucket_view,
            find_unused_parameters=find_unused_parameters,
            broadcast_buffers=broadcast_buffers,
        )

    def finish_gradient_synchronization(self):
        pass

    def state_dict(self, *args, **kwargs):
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args, **kwargs):
        return self.module.load_state_dict(*args, **kwargs)


class DDPTrainer(Training):
    all_reduce_metrics = staticmethod(process_group.all_reduce_metrics)
    barrier = staticmethod(process_group.barrier)
    cleanup = staticmethod(process_group.cleanup)
    is_main_process = staticmethod(process_group.is_main_process)

    def setup_distributed(self):
        self.device = process_group.setup_distributed(self.config)
        return self.device

    def wrap_model(self, model, make_optimizer):
        self.model = wrapped = DistributedDataParallel(model.to(self.device), **self.ddp_options)
        self.optimizer = make_optimizer(wrapped.parameters(), lr=self.learning_rate)
        return wrapped

    def create_distributed_sampler(self, dataset_size, shuffle=True, seed=0):
        ranks = self.config.world_size, self.config.rank
        return data_loader.ShardedSampler(dataset_size, *ranks, shuffle=shuffle, seed=seed, drop_last=True)

    def learning_rate_now(self):
        step = self.global_batch_size, self.steps
        return float(trainer.scaled_learning_rate(self.learning_rate, *step, **self.schedule))


class DDPCheckpointer(CheckpointFile):
    def write(self, state):
        temporary = f"{self.path}.{os.getpid()}"
        with open(temporary, "wb") as file:
            try:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
                os.replace(temporary, self.path)
            except BaseException:
                os.remove(temporary)
                raise
