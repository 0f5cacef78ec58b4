"""Right: byte ranges by arithmetic, one total for each clock, and pulls in a queue by the clock that they wait for."""

from __future__ import annotations

from collections import defaultdict
from math import inf

import torch
from torch import nn

from labkit.course.phase3_multi_node.parameter_server import given
from labkit.course.phase3_multi_node.parameter_server.given import Kind, Piece, Shard

__all__ = ["ParameterServer", "Piece", "Worker", "partition"]


def partition(parameters, num_servers):
    given.check_num_servers(num_servers)
    parameters = list(parameters)
    total = sum(p.numel() * p.element_size() for p in parameters)
    borders = [round(total * server / num_servers) for server in range(num_servers + 1)]
    shards = [[] for _ in range(num_servers)]
    begin = 0
    for index, p in enumerate(parameters):
        size, numel = p.element_size(), p.numel()
        # the number of this parameter's elements that lie before each border
        before = [min(numel, max(0, -(-(border - begin) // size))) for border in borders]
        before[-1] = numel
        for server in range(num_servers):
            if before[server + 1] > before[server]:
                shards[server].append(Piece(index, before[server], before[server + 1]))
        begin += numel * size
    return shards


class ParameterServer:
    def __init__(self, parameters, optimizer, num_servers=1, mode="sync", staleness=None, group=None):
        trained = given.trained_parameters(parameters)
        self.bound = given.check_mode(mode, staleness)
        self.sync = mode == "sync"
        pieces = partition(trained, num_servers)
        self.messages = given.ServerMessages(trained, pieces, num_servers, group)
        self.shard = Shard(trained, pieces[self.messages.index])
        self.shard.copy_from(trained)
        # a parameter and a total for each piece, in the buffers' memory
        self.parameters = [nn.Parameter(view) for view in self.shard.views]
        self.optimizer = optimizer(self.parameters) if self.parameters else None
        self.totals = [p.detach().to(torch.promote_types(p.dtype, torch.float32)) * 0 for p in self.parameters]
        self.samples = 0
        self.clocks = dict.fromkeys(self.messages.workers, 0)

    def step(self):
        samples, self.samples = self.samples, 0
        if not samples or self.optimizer is None:
            return
        for parameter, total in zip(self.parameters, self.totals, strict=True):
            parameter.grad = (total / samples).to(parameter.dtype)
            total.zero_()
        self.optimizer.step()

    def step_with(self, parts):
        for count, gradients in parts:
            taken = dict.fromkeys((gradient.dtype for gradient in gradients), 0)
            whole = {gradient.dtype: gradient for gradient in gradients}
            for parameter, total in zip(self.parameters, self.totals, strict=True):
                dtype, begin = parameter.dtype, taken[parameter.dtype]
                total.add_(whole[dtype][begin : begin + parameter.numel()], alpha=count)
                taken[dtype] += parameter.numel()
            self.samples += count
        self.step()

    def serve(self):
        pulls, pushes, clock = [], defaultdict(list), 0
        while True:
            if not self.clocks:
                break
            request = self.messages.next_request()
            if request.kind is Kind.PUSH:
                part = request.samples, [gradient.clone() for gradient in request.gradients]
                self.clocks[request.worker] += 1
                if self.sync:
                    pushes[request.clock].append(part)
                else:
                    self.step_with([part])
            elif request.kind is Kind.PULL:
                pulls.append(request)
            else:
                self.clocks.pop(request.worker)
            while self.sync and pushes[clock] and min(self.clocks.values(), default=inf) > clock:
                self.step_with(pushes.pop(clock))
                clock += 1
            for pull in list(pulls):
                if all(pull.clock <= other + self.bound for other in self.clocks.values()):
                    pulls.remove(pull)
                    self.messages.answer(pull, self.shard.buffers)


class Worker(given.FinishingWorker):
    def __init__(self, parameters, num_servers=1, group=None):
        self.parameters = given.trained_parameters(parameters)
        pieces = partition(self.parameters, num_servers)
        self.messages = given.WorkerMessages(num_servers, group, self.parameters[0].device)
        self.shards = [Shard(self.parameters, part) for part in pieces]
        self.clock, self.pulled = 0, False

    def pull(self):
        begun = {}
        for server, shard in enumerate(self.shards):
            begun[server] = self.messages.pull(server, self.clock, shard.buffers)
        for work in begun.values():
            work.wait()
        for shard in self.shards:
            shard.copy_to(self.parameters)
        self.pulled = True

    def push(self, samples=1):
        given.check_push(samples, self.pulled)
        for shard in self.shards:
            shard.copy_from([p.grad for p in self.parameters])
        begun = [self.messages.push(server, self.clock, samples, s.buffers) for server, s in enumerate(self.shards)]
        for work in begun[::-1]:
            work.wait()
        self.clock += 1
        self.pulled = False
