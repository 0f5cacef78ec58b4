"""Right: a handler for each kind of request; the number of workers at each clock; servers from last to first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import inf

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from labkit.course.phase3_multi_node.parameter_server import given
from labkit.course.phase3_multi_node.parameter_server.given import Arriving, Kind, Piece, Request, Shard

__all__ = ["ParameterServer", "Piece", "Worker", "partition"]


def partition(parameters: Sequence[Tensor], num_servers: int) -> list[list[Piece]]:
    given.check_num_servers(num_servers)
    left = sum(p.nbytes for p in parameters)
    shards: list[list[Piece]] = [[]]
    room = left // num_servers
    for index, p in enumerate(parameters):
        start, size = 0, p.element_size()
        while start < p.numel():
            last = len(shards) == num_servers
            take = p.numel() - start if last else min(p.numel() - start, room // size)
            if take:
                shards[-1].append(Piece(index, start, start + take))
                start, room, left = start + take, room - take * size, left - take * size
            elif not last:
                # what is left is divided anew among the other servers
                shards.append([])
                room = left // (num_servers - len(shards) + 1)
    return shards + [[] for _ in range(num_servers - len(shards))]


class ParameterServer:
    def __init__(
        self,
        parameters: Iterable[Tensor],
        optimizer: Callable[[list[nn.Parameter]], Optimizer],
        num_servers: int = 1,
        mode: str = "sync",
        staleness: int | None = None,
        group: ProcessGroup | None = None,
    ) -> None:
        trained = given.trained_parameters(parameters)
        self.staleness, self.mode = given.check_mode(mode, staleness), mode
        pieces = partition(trained, num_servers)
        self.messages = given.ServerMessages(trained, pieces, num_servers, group)
        self.shard = Shard(trained, pieces[self.messages.index])
        self.shard.copy_from(trained)
        # they share the memory of the shard's buffers: a step changes those
        self.parameters = [nn.Parameter(buffer) for buffer in self.shard.buffers]
        self.optimizer = optimizer(self.parameters) if self.parameters else None
        wide = [torch.promote_types(buffer.dtype, torch.float32) for buffer in self.shard.buffers]
        self.totals = [b.new_zeros(b.shape, dtype=dtype) for b, dtype in zip(self.shard.buffers, wide, strict=True)]
        self.samples = 0  # whose gradients are in the totals
        self.clocks = dict.fromkeys(self.messages.workers, 0)  # of the workers that have not left

    def add(self, gradients: Sequence[Tensor], samples: int) -> None:
        for total, gradient in zip(self.totals, gradients, strict=True):
            total += gradient.to(total.dtype) * samples if samples else 0
        self.samples += samples

    def step(self) -> None:
        if self.samples > 0 and self.optimizer:
            for weight, total in zip(self.parameters, self.totals, strict=True):
                weight.grad = total.div_(self.samples).to(weight.dtype, copy=True)
                total.zero_()
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.samples = 0

    def serve(self) -> None:
        arriving: dict[int, Arriving] = {}  # by worker: gradients that have been announced
        waiting: list[Request] = []  # pulls without an answer, in order of arrival
        complete: float = 0  # sync: the number of clocks whose step has been taken
        at = Counter(self.clocks.values())  # number of workers at each clock

        def move(worker: int, clock: int | None) -> None:
            at[self.clocks.pop(worker)] -= 1
            if clock is not None:
                self.clocks[worker] = clock
                at[clock] += 1

        def on_announce(request: Request) -> None:
            arriving[request.worker] = self.messages.receive(request)

        def on_push(request: Request) -> None:
            self.add(arriving.pop(request.worker).wait(), request.samples)
            move(request.worker, self.clocks[request.worker] + 1)
            if self.mode != "sync":
                self.step()

        handlers = {Kind.ANNOUNCE: on_announce, Kind.PUSH: on_push, Kind.PULL: waiting.append}
        while self.clocks:
            request = self.messages.next_request()
            handlers.get(request.kind, lambda leaves: move(leaves.worker, None))(request)
            slowest = min((clock for clock, count in at.items() if count), default=inf)
            if slowest > complete:
                complete = slowest
                self.step()
            for pull in waiting[:]:
                if pull.clock - slowest <= self.staleness:
                    waiting.remove(pull)
                    self.messages.answer(pull, [weight.detach() for weight in self.parameters])


class Worker(given.FinishingWorker):
    def __init__(self, parameters: Iterable[Tensor], num_servers: int = 1, group: ProcessGroup | None = None) -> None:
        self.parameters = given.trained_parameters(parameters)
        shards = partition(self.parameters, num_servers)
        self.messages = given.WorkerMessages(num_servers, group, self.parameters[0].device)
        self.shards = [Shard(self.parameters, pieces) for pieces in shards]  # one for each server
        self.clock = 0  # number of pushes
        self.pulled = False

    def pull(self) -> None:
        works = [self.messages.pull(i, self.clock, self.shards[i].buffers) for i in reversed(range(len(self.shards)))]
        for work in works:
            work.wait()
        for shard in self.shards:
            shard.copy_to(self.parameters)
        self.pulled = True

    def push(self, samples: int = 1) -> None:
        given.check_push(samples, self.pulled)
        gradients = [parameter.grad for parameter in self.parameters]
        for shard in self.shards:
            shard.copy_from(gradients)
        works = []
        for server in reversed(range(len(self.shards))):
            works.append(self.messages.push(server, self.clock, samples, self.shards[server].buffers))
        for work in works:
            work.wait()
        self.clock, self.pulled = self.clock + 1, False
