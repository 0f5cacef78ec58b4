"""Mutants of parameter_server: what is wrong in each, what it earns, and the checks that it loses."""

from __future__ import annotations

from autograder.mutants import Mutant

RUNS = {
    "sync", "dtypes", "each_push", "uneven", "bound", "prompt", "fair", "messages", "at_once", "divides", "state",
    "death", "named", "real_processes",
}  # fmt: skip
"""Everything that needs servers and workers."""
EVERYTHING = RUNS | {"balanced", "cut"}

MUTANTS = {
    "all_reduces": Mutant(3, loses=RUNS).edited("""
        The workers all-reduce their gradients; all push the same mean, so that the server has nothing to add up.

          import torch
        + import torch.distributed as dist
          from torch import Tensor, nn

              self.clock = 0  # number of pushes
        +     first = dist.get_process_group_ranks(group)[num_servers:]
        +     self.peers = dist.new_group(first, use_local_synchronization=True)

          given.check_push(samples, self.pulled)
        + flat = torch.cat([parameter.grad.reshape(-1).double() for parameter in self.parameters]) * samples
        + flat = torch.cat([flat, torch.tensor([float(samples)]).double()])
        + dist.all_reduce(flat, group=self.peers)
        + samples = int(flat[-1])
        + parts = (flat[:-1] / flat[-1]).split([parameter.numel() for parameter in self.parameters])
        + for parameter, part in zip(self.parameters, parts, strict=True):
        +     parameter.grad = part.view(parameter.shape).to(parameter.dtype)
    """),
    "unbounded_staleness": Mutant(23, loses={"bound"}).edited("""
        ssp answers every pull at once, as async does.

        - ready = [pull for pull in waiting if pull.clock - self.staleness <= slowest]
        + ready = [pull for pull in waiting if self.mode != "sync" or pull.clock <= slowest]
    """),
    "one_clock_too_far": Mutant(23, loses={"bound"}).edited("""
        ssp lets a worker run one clock further ahead than `staleness`.

        - ready = [pull for pull in waiting if pull.clock - self.staleness <= slowest]
        + bound = self.staleness + (self.mode == "ssp")
        + ready = [pull for pull in waiting if pull.clock - bound <= slowest]
    """),
    "ssp_is_sync": Mutant(23, loses={"prompt"}).edited("""
        ssp holds workers at the same clock, whatever its staleness.

        - ready = [pull for pull in waiting if pull.clock - self.staleness <= slowest]
        + bound = self.staleness if self.mode == "async" else 0
        + ready = [pull for pull in waiting if pull.clock - bound <= slowest]
    """),
    "async_waits_for_the_slowest": Mutant(23, loses={"prompt"}).edited("""
        Nobody is more than five clocks ahead with async.

        - ready = [pull for pull in waiting if pull.clock - self.staleness <= slowest]
        + ready = [pull for pull in waiting if pull.clock - min(self.staleness, 3) <= slowest]
    """),
    "one_server_takes_all": Mutant(18, loses={"balanced", "messages", "at_once", "divides", "state"}).edited("""
        The first server has all parameters, the others have none.

        - room = total * (server + 1) // num_servers - position
        + room = total - position
    """),
    "whole_tensors": Mutant(19, loses={"balanced", "cut", "divides", "state"}).edited("""
        Each tensor goes whole to the server that has the fewest bytes so far.

          start = 0
        - while start < parameter.numel():
        + if parameter.numel():
        +     loads = [sum(p.numel * parameters[p.parameter].element_size() for p in shard) for shard in shards]
        +     shards[loads.index(min(loads))].append(Piece(index, 0, parameter.numel()))
        + while False:
    """),
    "cuts_every_tensor": Mutant(22, loses={"balanced", "cut"}).edited("""
        Each tensor is cut into one piece for each server.

          start = 0
        - while start < parameter.numel():
        + for server in range(num_servers):
        +     first, last = (parameter.numel() * n // num_servers for n in (server, server + 1))
        +     if last > first:
        +         shards[server].append(Piece(index, first, last))
        + while False:
    """),
    "balances_elements": Mutant(23, loses={"balanced"}).edited("""
        Servers have the same number of elements, not of bytes.

        - total = sum(parameter.nbytes for parameter in parameters)
        + total = sum(parameter.numel() for parameter in parameters)

        -     stop = min(parameter.numel(), start + room // parameter.element_size())
        +     stop = min(parameter.numel(), start + room)

        -     position += (stop - start) * parameter.element_size()
        +     position += stop - start
    """),
    "asks_again": Mutant(10, loses=EVERYTHING - {"balanced", "cut", "sync", "dtypes", "state", "named"}).edited("""
        Each pull asks twice: polling, in case the first answer was old.

        - works = [self.messages.pull(server, self.clock, shard.buffers) for server, shard in enumerate(self.shards)]
        + for _ in range(2):
        +     works = [self.messages.pull(server, self.clock, shard.buffers) for server, shard in enumerate(self.shards)]
        +     for work in works:
        +         work.wait()
          for work, shard in zip(works, self.shards, strict=True):
        -     work.wait()
              shard.copy_to(self.parameters)
    """),
    "looks_every_10_ms": Mutant(19, loses={"prompt", "divides", "death"}).edited("""
        The server looks for pulls that it may answer every ten milliseconds, not when a request comes.

          import torch
        + import time
          from torch import Tensor, nn

              self.messages.answer(pull, self.shard.buffers)
        + time.sleep(0.01)
    """),
    "in_order_of_ranks": Mutant(24, loses={"fair"}).edited("""
        Pulls that have waited are answered in the order of ranks: the last one always waits longest.

        - for pull in ready:
        + for pull in sorted(ready, key=lambda pull: pull.worker):
    """),
    "last_come_first_served": Mutant(24, loses={"fair"}).edited("""
        Of the pulls that have waited, the latest one is answered first.

        - for pull in ready:
        + for pull in reversed(ready):
    """),
    "sync_applies_each_push": Mutant(
        15, loses={"sync", "dtypes", "uneven", "fair", "death", "real_processes"}
    ).edited("""
        With sync, too, each push is a step on its arrival.

        - if self.mode != "sync" or slowest > complete:
        -     self.step()
        -     complete = slowest
        + self.step()
    """),
    "divides_by_those_at_the_start": Mutant(19, loses={"sync", "uneven", "death"}).edited("""
        The mean is over as many samples as ever came together, although some of the workers have left.

          self.samples = 0  # whose gradients are in the totals
        + self.most = 0

        - parameter.grad = (total / self.samples).to(parameter.dtype)
        + self.most = max(self.most, self.samples)
        + parameter.grad = (total / self.most).to(parameter.dtype)
    """),
    "counts_workers": Mutant(20, loses={"sync", "uneven", "real_processes"}).edited("""
        The mean is over workers, whatever the number of their samples.

          given.check_push(samples, self.pulled)
        + samples = min(samples, 1)
    """),
    "steps_without_samples": Mutant(24, loses={"uneven"}).edited("""
        A push of no samples is a step with a gradient of zero, which moves weights that have momentum.

        - if self.samples and self.optimizer is not None:
        + if self.pushed and self.optimizer is not None:
        +     self.pushed = False

        - parameter.grad = (total / self.samples).to(parameter.dtype)
        + parameter.grad = (total / max(1, self.samples)).to(parameter.dtype)

          self.samples = 0  # whose gradients are in the totals
        + self.pushed = False

          self.add(arriving.pop(request.worker).wait(), request.samples)
        + self.pushed = True
    """),
    "an_optimizer_for_each_worker": Mutant(21, loses={"each_push", "uneven", "state"}).edited("""
        Momentum belongs to the worker, as if the optimizer were there.

        - self.optimizer = optimizer(self.parameters) if self.parameters else None
        + self.optimizer = True
        + self.optimizers = {worker: optimizer(self.parameters) for worker in self.messages.workers}

        -     self.optimizer.step()
        +     self.optimizers[self.latest].step()

          self.add(arriving.pop(request.worker).wait(), request.samples)
        + self.latest = request.worker
    """),
    "forgets_the_optimizers_state": Mutant(
        17, loses={"sync", "each_push", "uneven", "state", "real_processes"}
    ).edited("""
        A new optimizer for each step: no momentum, no moments.

        - self.optimizer = optimizer(self.parameters) if self.parameters else None
        + self.optimizer = True

        -     self.optimizer.step()
        +     self.make(self.parameters).step()

          trained = given.trained_parameters(parameters)
        + self.make = optimizer
    """),
    "one_push_at_a_time": Mutant(23, loses={"divides"}).edited("""
        The server waits for a worker's gradients as soon as they are announced, and posts the next receive then.

        - arriving[request.worker] = self.messages.receive(request)
        + arriving[request.worker] = self.messages.receive(request)
        + arriving[request.worker].wait()
    """),
    "posts_too_late": Mutant(3, loses=RUNS).edited("""
        Receives are posted when the worker says that its gradients have left: they cannot leave without.

        - arriving[request.worker] = self.messages.receive(request)
        + arriving[request.worker] = request

        - self.add(arriving.pop(request.worker).wait(), request.samples)
        + self.add(self.messages.receive(arriving.pop(request.worker)).wait(), request.samples)
    """),
    "nan_of_no_samples": Mutant(24, loses={"uneven"}).edited("""
        Gradients of 0 samples are multiplied by 0 and added: those that are NaN stay.

        - if samples:
        + if True:
    """),
    "skips_missing_gradients": Mutant(24, loses={"uneven"}).edited("""
        A gradient that is None is left as it was in the step before.

        - shard.copy_from(gradients)
        + for piece, view in zip(shard.pieces, shard.views, strict=True):
        +     gradient = gradients[piece.parameter]
        +     if gradient is not None:
        +         view.copy_(gradient.reshape(-1)[piece.start : piece.stop])
    """),
    "empty_pieces": Mutant(24, loses={"cut"}).edited("""
        A server whose part is full gets a piece of no elements of the next parameter.

        - if stop > start:
        -     shards[server].append(Piece(index, start, stop))
        + shards[server].append(Piece(index, start, stop))
    """),
    "from_the_last_parameter": Mutant(22, loses={"balanced", "cut"}).edited("""
        The pieces of each server are in the opposite order of the parameters.

        - return shards
        + return [shard[::-1] for shard in shards]
    """),
    "forgets_the_rest": Mutant(16, loses={"balanced", "cut", "sync", "dtypes", "messages"}).edited("""
        The last element of each parameter that is cut belongs to no server.

        - start = stop
        + start = stop + 1
    """),
    "push_one_server_after_the_other": Mutant(22, loses={"at_once", "divides"}).edited("""
        A worker pushes to the next server when its gradients have left for the one before.

              shard.copy_from(gradients)
        -     works.append(self.messages.push(server, self.clock, samples, shard.buffers))
        - for work in works:
        -     work.wait()
        +     self.messages.push(server, self.clock, samples, shard.buffers).wait()
    """),
    "sums_in_bfloat16": Mutant(23, loses={"dtypes"}).edited("""
        Gradients are added up in their own dtype, which may have three digits.

        - wide = [torch.promote_types(buffer.dtype, torch.float32) for buffer in self.shard.buffers]
        + wide = [buffer.dtype for buffer in self.shard.buffers]
    """),
    "never_ends": Mutant(3, loses=RUNS).edited("""
        The server waits for more requests when all workers have left.

        - while self.clocks:
        + while True:
    """),
    "leaving_allows_nothing": Mutant(23, loses={"death"}).edited("""
        When a worker leaves, those that have waited for it wait for the next request.

              del self.clocks[request.worker]
        +     if self.clocks:
        +         continue
    """),
    "the_dead_count": Mutant(23, loses={"death"}).edited("""
        A worker that has died is waited for, as if it would push again.

        - case Kind.FINISH | Kind.DIED:
        + case Kind.FINISH:
              del self.clocks[request.worker]
    """),
    "one_server_after_the_other": Mutant(22, loses={"at_once", "divides"}).edited("""
        A worker asks the next server when the one before has answered.

        - works = [self.messages.pull(server, self.clock, shard.buffers) for server, shard in enumerate(self.shards)]
        - for work, shard in zip(works, self.shards, strict=True):
        -     work.wait()
        + for server, shard in enumerate(self.shards):
        +     self.messages.pull(server, self.clock, shard.buffers).wait()
              shard.copy_to(self.parameters)
    """),
    "copies_before_it_arrives": Mutant(
        9, loses=EVERYTHING - {"balanced", "cut", "messages", "at_once", "divides", "state", "named"}
    ).edited("""
        The values are copied before they have arrived: those of the pull before.

          for work, shard in zip(works, self.shards, strict=True):
        -     work.wait()
        -     shard.copy_to(self.parameters)
        +     shard.copy_to(self.parameters)
        +     work.wait()
    """),
    "hides_which_server": Mutant(24, loses={"named"}).edited("""
        A worker says that something went wrong, but not which server has stopped.

          for work, shard in zip(works, self.shards, strict=True):
        -     work.wait()
        +     try:
        +         work.wait()
        +     except given.ServerStopped:
        +         raise RuntimeError("a server has stopped serving") from None

        - for work in works:
        -     work.wait()
        + try:
        +     for work in works:
        +         work.wait()
        + except given.ServerStopped:
        +     raise RuntimeError("a server has stopped serving") from None
    """),
}
