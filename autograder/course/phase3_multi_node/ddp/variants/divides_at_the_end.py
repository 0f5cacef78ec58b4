"""Right: counts the gradients that are missing, sums first and divides when all have arrived, one copy for each."""

import os
from collections import defaultdict

import torch
import torch.distributed as dist

from labkit.course.phase3_multi_node.ddp.given import CheckpointFile, Training
from labkit.course.phase3_multi_node.ddp.given.agreement import broadcast_together
from labkit.course.phase3_multi_node.ddp.given.backward_pass import weak
from labkit.course.phase3_multi_node.ddp.given.bucketed_module import BucketedModule
from labkit.exercises import data_loader, process_group, trainer

__all__ = ["DDPCheckpointer", "DDPTrainer", "DistributedDataParallel"]


class DistributedDataParallel(BucketedModule):
    def __init__(
        self,
        module,
        group=None,
        bucket_cap_mb=25,
        gradient_as_bucket_view=False,
        find_unused_parameters=False,
        broadcast_buffers=True,
    ):
        super().__init__(
            module, group, bucket_cap_mb, gradient_as_bucket_view, find_unused_parameters, broadcast_buffers
        )
        with torch.no_grad():
            broadcast_together([*module.buffers(), *module.parameters()], group)
        hook = weak(self.gradient_arrived)
        for parameter in reversed(self.trained):
            parameter.register_post_accumulate_grad_hook(hook)

    def assign(self, parameters, cap, first_cap):
        open_buckets, done, limits = {}, [], defaultdict(lambda: first_cap)
        for parameter in parameters:
            kind = (parameter.device, parameter.dtype)
            bucket = open_buckets.pop(kind, [])
            bucket.append(parameter)
            if sum(p.nbytes for p in bucket) >= limits[kind]:
                done.append(bucket)
                limits[kind] = cap
            else:
                open_buckets[kind] = bucket
        # as `pop` moves a bucket to the end, sort by the first parameter
        place = {parameter: number for number, parameter in enumerate(parameters)}
        return done + sorted(open_buckets.values(), key=lambda bucket: place[bucket[0]])

    def collect(self, parameter):
        bucket = self.bucket_of[parameter]
        view, grad = bucket.view(parameter), parameter.grad
        view.zero_() if grad is None else view.copy_(grad)
        if grad is not None and self.as_view:
            parameter.grad = view
        if self.synchronizing:
            bucket.missing -= {parameter}
            for waiting in self.buckets[self.launched :]:
                if waiting.missing:
                    break
                waiting.pending = (
                    self.comm_hook(waiting)
                    if self.comm_hook
                    else dist.all_reduce(waiting.buffer(), group=self.group, async_op=True)
                )
                self.launched += 1

    def finish_gradient_synchronization(self):
        if not self.expecting:
            return
        for parameter in self.late():
            self.collect(parameter)
        present = self.present()
        for bucket in self.buckets:
            bucket.wait()
            if self.comm_hook is None:
                bucket.buffer().div_(dist.get_world_size(self.group))
            for parameter, mean in zip(bucket.parameters(), bucket.gradients(), strict=False):
                if parameter in present:
                    parameter.grad = mean if self.as_view else mean.clone()
        self.start_over()


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
