"""Right: byte ranges by arithmetic, copies of the gradients of each clock, and pulls in a queue."""

from __future__ import annotations

from collections import defaultdict
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
    total = sum(parameter.nbytes for parameter in parameters)
    borders = [round(total * server / num_servers) for server in range(num_servers + 1)]
    shards: list[list[Piece]] = [[] for _ in range(num_servers)]
    begin = 0
    for index, parameter in enumerate(parameters):
        size, numel = parameter.element_size(), parameter.numel()
        # the number of this parameter's elements that lie before each border
        before = [min(numel, max(0, -(-(border - begin) // size))) for border in borders]
        before[-1] = numel
        for server in range(num_servers):
            if before[server + 1] > before[server]:
                shards[server].append(Piece(index, before[server], before[server + 1]))
        begin += numel * size
    return shards


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
        if samples == 0:
            return
        self.samples += samples
        for i, gradient in enumerate(gradients):
            self.totals[i] += gradient.to(self.totals[i].dtype) * samples

    def step(self) -> None:
        samples, self.samples = self.samples, 0
        if not samples or self.optimizer is None:
            return
        self.optimizer.zero_grad()
        for parameter, total in zip(self.parameters, self.totals, strict=True):
            parameter.grad = torch.zeros_like(parameter)
            parameter.grad.copy_(total / samples)
            total.fill_(0)
        self.optimizer.step()

    def serve(self) -> None:
        arriving: dict[int, Arriving] = {}  # by worker: gradients that have been announced
        waiting: list[Request] = []  # pulls without an answer, in order of arrival
        pushes: dict[int, list[tuple[int, list[Tensor]]]] = defaultdict(list)
        clock = 0
        while True:
            if not self.clocks:
                break
            request = self.messages.next_request()
            worker = request.worker
            if request.kind is Kind.ANNOUNCE:
                arriving[worker] = self.messages.receive(request)
            elif request.kind is Kind.PUSH:
                gradients = arriving[worker].wait()
                self.clocks[worker] += 1
                if self.mode == "sync":
                    pushes[request.clock].append((request.samples, [gradient.clone() for gradient in gradients]))
                else:
                    self.add(gradients, request.samples)
                    self.step()
            elif request.kind is Kind.PULL:
                waiting.append(request)
            else:
                self.clocks.pop(worker)
            while pushes[clock] and min(self.clocks.values(), default=inf) > clock:
                for samples, gradients in pushes.pop(clock):
                    self.add(gradients, samples)
                self.step()
                clock += 1
            for pull in list(waiting):
                if all(pull.clock <= other + self.staleness for other in self.clocks.values()):
                    waiting.remove(pull)
                    self.messages.answer(pull, self.shard.buffers)


class Worker(given.FinishingWorker):
    def __init__(self, parameters: Iterable[Tensor], num_servers: int = 1, group: ProcessGroup | None = None) -> None:
        self.parameters = given.trained_parameters(parameters)
        shards = partition(self.parameters, num_servers)
        self.messages = given.WorkerMessages(num_servers, group, self.parameters[0].device)
        self.shards = [Shard(self.parameters, pieces) for pieces in shards]  # one for each server
        self.clock = 0  # number of pushes
        self.pulled = False

    def pull(self) -> None:
        begun = {}
        for server, shard in enumerate(self.shards):
            begun[server] = self.messages.pull(server, self.clock, shard.buffers)
        for work in begun.values():
            work.wait()
        for shard in self.shards:
            shard.copy_to(self.parameters)
        self.pulled = True

    def push(self, samples: int = 1) -> None:
        given.check_push(samples, self.pulled)
        for shard in self.shards:
            shard.copy_from([p.grad for p in self.parameters])
        begun = [self.messages.push(i, self.clock, samples, shard.buffers) for i, shard in enumerate(self.shards)]
        for work in begun[::-1]:
            work.wait()
        self.clock, self.pulled = self.clock + 1, False
