"""Right: no given class; buckets of its own, and a set of all gradients that have come."""

import contextlib
import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn

from labkit.course.phase3_multi_node.ddp.given import CheckpointFile, Training
from labkit.course.phase3_multi_node.ddp.given.backward_pass import parameters_in_graph
from labkit.exercises import data_loader, process_group, trainer

__all__ = ["DDPCheckpointer", "DDPTrainer", "DistributedDataParallel"]
MB = 2**20


class GradBucket:
    def __init__(self, index, parameters, last):
        self._index, self._parameters, self._last = index, parameters, last
        self._buffer = torch.zeros(sum(p.numel() for p in parameters), dtype=parameters[0].dtype)
        self._views = [
            part.view_as(p)
            for part, p in zip(self._buffer.split([p.numel() for p in parameters]), parameters, strict=False)
        ]
        self.future = None

    def index(self):
        return self._index

    def is_last(self):
        return self._last

    def buffer(self):
        return self._buffer

    def parameters(self):
        return self._parameters

    def gradients(self):
        return self._views


class DistributedDataParallel(nn.Module):
    def __init__(
        self,
        module,
        group=None,
        bucket_cap_mb=25,
        gradient_as_bucket_view=False,
        find_unused_parameters=False,
        broadcast_buffers=True,
    ):
        super().__init__()
        self.parameters_used = [p for p in module.parameters() if p.requires_grad]
        if not self.parameters_used:
            raise ValueError("module has no parameters that are trained")
        if bucket_cap_mb <= 0:
            raise ValueError(f"bucket_cap_mb must be above 0, got {bucket_cap_mb}")
        self.module, self.group, self.cap = module, group, bucket_cap_mb * MB
        self.size, self.first = dist.get_world_size(group), dist.get_process_group_ranks(group)[0]
        self.view, self.unused, self.send_buffers = gradient_as_bucket_view, find_unused_parameters, broadcast_buffers
        self.in_no_sync = self.syncing = False
        self.hook = None
        self.came = None
        self.rebuilt = find_unused_parameters
        self._equal([*module.parameters(), *module.buffers()])
        self._cut(self.parameters_used[::-1])
        for p in self.parameters_used:
            p.register_post_accumulate_grad_hook(self._arrived)

    def _equal(self, tensors):
        alike = sorted((tensor.data for tensor in tensors), key=lambda tensor: -tensor.itemsize)
        flat = torch.cat([tensor.reshape(-1).view(torch.uint8) for tensor in alike])
        dist.broadcast(flat, self.first, self.group)
        for tensor, part in zip(alike, flat.split([tensor.nbytes for tensor in alike]), strict=True):
            tensor.copy_(part.view(tensor.dtype).view(tensor.shape))

    def assign(self, parameters, cap, first_cap):
        done, current, limit = [], {}, {}
        for p in parameters:
            current.setdefault(p.dtype, []).append(p)
            if sum(q.nbytes for q in current[p.dtype]) >= limit.get(p.dtype, first_cap):
                done.append(current.pop(p.dtype))
                limit[p.dtype] = cap
        return [*done, *current.values()]

    def _cut(self, order):
        done = self.assign(order, self.cap, min(MB, self.cap))
        self.buckets, self.place = [], {}  # the old ones' memory is free before there are new ones
        self.buckets = [GradBucket(i, bucket, i == len(done) - 1) for i, bucket in enumerate(done)]
        self.place = {p: (b, v) for b in self.buckets for p, v in zip(b.parameters(), b.gradients(), strict=False)}
        self._reset()

    def _reset(self):
        self.ready, self.next, self.order, self.used, self.open = set(), 0, [], set(), False

    def forward(self, *args, **kwargs):
        if self.ready:
            self._reset_with_error()
        if not torch.is_grad_enabled():
            return self.module(*args, **kwargs)
        self.syncing = not self.in_no_sync
        if self.syncing:
            if self.came and not self.rebuilt:
                index = {p: i for i, p in enumerate(self.parameters_used)}
                numbers = torch.tensor([index[p] for p in self.came])
                dist.broadcast(numbers, self.first, self.group)
                self._cut([self.parameters_used[i] for i in numbers.tolist()])
                self.rebuilt = True
            if self.send_buffers and list(self.module.buffers()):
                self._equal(list(self.module.buffers()))
            self.open = True
        outputs = self.module(*args, **kwargs)
        if self.syncing and self.unused:
            self.used |= parameters_in_graph(outputs)
        return outputs

    def _reset_with_error(self):
        left = [n for n, p in self.module.named_parameters() if p.requires_grad and p not in self.ready]
        self._reset()
        raise RuntimeError(f"no gradient came for {', '.join(left)}")

    def _arrived(self, p):
        _, view = self.place[p]
        if not self.syncing:
            if self.view and p.grad is not view:
                view.copy_(p.grad)
                p.grad = view
            return
        if not self.order and self.unused:
            for other in self.parameters_used:
                if other not in self.used:
                    self._ready(other)
        self.order.append(p)
        self.open = True
        torch.autograd.Variable._execution_engine.queue_callback(self._ended)
        self._ready(p)

    def _ready(self, p):
        _, view = self.place[p]
        if p.grad is None:
            view.zero_()
        elif p.grad is not view:
            view.copy_(p.grad)
            if self.view:
                p.grad = view
        self.ready.add(p)
        while self.next < len(self.buckets) and self.ready.issuperset(self.buckets[self.next].parameters()):
            bucket = self.buckets[self.next]
            if self.hook is not None:
                bucket.future = self.hook[1](self.hook[0], bucket)
            else:
                bucket.future = dist.all_reduce(bucket.buffer(), group=self.group, async_op=True)
            self.next += 1

    def _ended(self):
        if self.open and (self.unused or self.next == len(self.buckets)):
            if len(self.order) == len(self.parameters_used) and not self.came:
                self.came = self.order
            self.finish_gradient_synchronization()

    def finish_gradient_synchronization(self):
        if not self.open:
            return
        late = [p for p in self.parameters_used if p not in self.ready]
        if late and not self.unused:
            self._reset_with_error()
        for p in late:
            self._ready(p)
        has = torch.tensor([float(p.grad is not None) for p in self.parameters_used])
        if self.unused:
            dist.all_reduce(has, group=self.group)
        for bucket in self.buckets:
            result = bucket.future.wait()
            if self.hook is None:
                bucket.buffer().div_(self.size)
            else:
                bucket.buffer().copy_(result)
        for p, count in zip(self.parameters_used, has.tolist(), strict=True):
            if count:
                p.grad = self.place[p][1] if self.view else self.place[p][1].clone()
        self._reset()

    @contextlib.contextmanager
    def no_sync(self):
        self.in_no_sync = True
        yield
        self.in_no_sync = False

    def register_comm_hook(self, state, hook):
        self.hook = state, hook

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
        folder = os.path.dirname(os.path.abspath(self.path))
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            try:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
            except BaseException:
                os.unlink(file.name)
                raise
        os.replace(file.name, self.path)
