"""Right: a handler for each kind of request; the slowest clock is kept; servers from the last one to the first."""

from __future__ import annotations

from collections import Counter
from math import inf

import torch
from torch import nn

from labkit.course.phase3_multi_node.parameter_server import given
from labkit.course.phase3_multi_node.parameter_server.given import Kind, Piece, Shard

__all__ = ["ParameterServer", "Piece", "Worker", "partition"]


def partition(parameters, num_servers):
    given.check_num_servers(num_servers)
    left = sum(p.nbytes for p in parameters)
    shards, room = [[]], 0
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
    def __init__(self, parameters, optimizer, num_servers=1, mode="sync", staleness=None, group=None):
        trained = given.trained_parameters(parameters)
        self.bound = given.check_mode(mode, staleness)
        self.mode = mode
        pieces = partition(trained, num_servers)
        self.messages = given.ServerMessages(trained, pieces, num_servers, group)
        self.shard = Shard(trained, pieces[self.messages.index])
        self.shard.copy_from(trained)
        self.parameters = [nn.Parameter(buffer) for buffer in self.shard.buffers]
        self.optimizer = optimizer(self.parameters) if self.parameters else None
        self.samples, self.waiting, self.round = 0, {}, 0
        self.clocks = dict.fromkeys(self.messages.workers, 0)
        self.at = Counter(self.clocks.values())  # number of workers at each clock
        for weight in self.parameters:
            weight.total = torch.zeros_like(weight, dtype=torch.promote_types(weight.dtype, torch.float32))
        self.totals = [weight.total for weight in self.parameters]

    @property
    def slowest(self):
        return min((clock for clock, count in self.at.items() if count), default=inf)

    def on_pull(self, pull):
        self.waiting[pull.worker] = pull  # a dict keeps the order of arrival

    def on_push(self, push):
        if push.samples:
            for weight, gradient in zip(self.parameters, push.gradients, strict=True):
                weight.total += gradient.to(weight.total.dtype) * push.samples
        self.samples += push.samples
        self.move(push.worker, self.clocks[push.worker] + 1)
        if self.mode != "sync":
            self.step()

    def on_leave(self, request):
        self.move(request.worker, None)

    def move(self, worker, clock):
        self.at[self.clocks.pop(worker)] -= 1
        if clock is not None:
            self.clocks[worker] = clock
            self.at[clock] += 1

    def step(self):
        if self.samples and self.optimizer:
            for weight in self.parameters:
                weight.grad = weight.total.div_(self.samples).to(weight.dtype, copy=True)
                weight.total.zero_()
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.samples = 0

    def serve(self):
        handlers = {Kind.PULL: self.on_pull, Kind.PUSH: self.on_push}
        while self.clocks:
            request = self.messages.next_request()
            handlers.get(request.kind, self.on_leave)(request)
            if self.slowest > self.round:
                self.round = self.slowest
                self.step()
            for worker, pull in list(self.waiting.items()):
                if pull.clock - self.slowest <= self.bound:
                    self.messages.answer(self.waiting.pop(worker), [weight.detach() for weight in self.parameters])


class Worker(given.FinishingWorker):
    def __init__(self, parameters, num_servers=1, group=None):
        self.parameters = given.trained_parameters(parameters)
        self.messages = given.WorkerMessages(num_servers, group, self.parameters[0].device)
        self.shards = [Shard(self.parameters, pieces) for pieces in partition(self.parameters, num_servers)]
        self.clock, self.pulled = 0, False

    def all_servers(self, begin):
        for work in [begin(server, shard) for server, shard in reversed(list(enumerate(self.shards)))]:
            work.wait()

    def pull(self):
        self.all_servers(lambda server, shard: self.messages.pull(server, self.clock, shard.buffers))
        for shard in self.shards:
            shard.copy_to(self.parameters)
        self.pulled = True

    def push(self, samples=1):
        given.check_push(samples, self.pulled)
        gradients = [parameter.grad for parameter in self.parameters]
        for shard in self.shards:
            shard.copy_from(gradients)
        self.all_servers(lambda server, shard: self.messages.push(server, self.clock, samples, shard.buffers))
        self.clock, self.pulled = self.clock + 1, False
