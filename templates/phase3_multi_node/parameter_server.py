"""A parameter server: some ranks keep the weights and the optimizer, the others, the workers, compute gradients.

A worker pulls the weights, computes gradients on its own batch and pushes them; its clock is the number of its pushes.
Each server has a shard of the parameters and handles one request after another, while the gradients of all workers
that push travel at the same time (Li et al. 2014). With `sync` all workers take each step together, as in data
parallelism. With `async` each push is a step of its own, and nobody waits (Dean et al. 2012). With `ssp` it is too, but
no worker may be more than `staleness` clocks ahead of the slowest one (stale synchronous parallel, Ho et al. 2013).
"""

from __future__ import annotations

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
    """Divide the elements of all parameters among the servers; return the pieces of each server.

    `Piece(parameter, start, stop)`: elements `start` to `stop` of parameter number `parameter`, flattened. Each element
    is in one piece, and no piece is empty. All servers have the same bytes, up to one element more or less; elements
    may differ in size. At most `num_servers - 1` parameters are cut, none where it need not be: so there are at most
    `len(parameters) + num_servers - 1` pieces, in the parameters' order.
    """
    given.check_num_servers(num_servers)
    # TODO 1. Lay all parameters end to end, and cut the line of bytes into `num_servers` equal parts: the part of
    # server s ends at byte total * (s + 1) // num_servers. Walk along the parameters. How many whole elements of this
    # one, of `parameter.element_size()` bytes each, fit before the end of the present server's part? They are a piece,
    # unless there are none. The rest goes to the next server, and perhaps to the one after it. A parameter may have no
    # elements.
    # YOUR CODE HERE
    raise NotImplementedError()


class ParameterServer:
    """Keeps a shard of the parameters, and the optimizer's state for it; serves until all workers have left.

    parameters: the same on every rank, in the same order; this server copies its shard's initial values from them. Only
    those that require gradients are served. optimizer: makes one for a list of parameters, such as
    `partial(torch.optim.SGD, lr=0.1, momentum=0.9)`; each element must be updated by itself (Adam: yes, LAMB: no).
    num_servers: the first ranks of `group` are servers, the others are workers. mode: "sync", "async" or "ssp", the
    latter with `staleness`, 0 or more. Raises ValueError, before any message, for an argument that cannot be used.
    """

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
        """Add one push to `totals`, its gradients times its samples, and its samples to `samples`.

        gradients: one flat tensor for each dtype of the shard, as `totals`; means over `samples` samples. Sums are
        computed in the dtypes of `totals`, float32 or wider: 256 + 1 is 256 in bfloat16. A push of 0 samples adds
        nothing, whatever its gradients are.
        """
        # TODO 2. Workers may have unequal numbers of samples, so the mean over all samples is not the mean of the
        # workers' means: it is the sum of (samples x mean) over the sum of samples. Here you collect both sums, in
        # place; `step` divides them. `total.add_(gradient, alpha=number)` adds number x gradient in the dtype of
        # `total`. The mean over 0 samples is NaN, and 0 x NaN is NaN.
        # YOUR CODE HERE
        raise NotImplementedError()

    def step(self) -> None:
        """Take one step of the optimizer with the mean over the samples of all added pushes, and forget these.

        Without any sample there is no step: with momentum even a gradient of 0 would move the weights. A server whose
        shard is empty has no optimizer: `self.optimizer` is None.
        """
        # TODO 3. `self.totals` and `self.samples` are what `add` has collected since the last step. Write the mean into
        # the `grad` of each of `self.parameters`, which are in the same order as `totals`; a `grad` has the dtype of
        # its parameter. Then `self.optimizer.step()`. At the end `totals` and `samples` must be 0 again.
        # YOUR CODE HERE
        raise NotImplementedError()

    def serve(self) -> None:
        """Serve until every worker has finished or died: first come, first served, sleeping while there is no request.

        Receives are posted as soon as a push is announced, however many are posted already: the gradients of several
        workers travel at the same time.

        sync: one step for each clock, when all workers have pushed it. async, ssp: one step for each push. A pull of
        clock c is answered as soon as no worker's clock is below c - staleness (sync: 0, async: infinite); pulls that
        wait are answered in the order of their arrival. A worker that has left counts no more, but its pushes do.
        """
        arriving: dict[int, Arriving] = {}  # by worker: gradients that have been announced
        waiting: list[Request] = []  # pulls without an answer, in order of arrival
        complete: float = 0  # sync: the number of clocks whose step has been taken
        # TODO 4. Until `self.clocks` is empty, take `self.messages.next_request()`. By its `kind`:
        #   Kind.ANNOUNCE: the worker begins to push. `self.messages.receive(request)` posts receives for its gradients
        #       and returns an `Arriving`. Keep it: its `wait()` would now hold up all other workers.
        #   Kind.PUSH: the announced gradients have come, and `wait()` returns them. Add them, with `request.samples`.
        #       The worker's clock is now `request.clock + 1`.
        #   Kind.PULL: it waits for its answer.
        #   Kind.FINISH, Kind.DIED: the worker leaves. Delete its clock.
        # Each of them, a worker that leaves too, may make a step due, and may allow pulls to be answered. Look at the
        # slowest worker's clock after every request; when the last worker has left, there is none. Is a step due? Then:
        # which waiting pulls may be answered now? `self.messages.answer(pull, self.shard.buffers)` answers one.
        # YOUR CODE HERE
        raise NotImplementedError()


class Worker(given.FinishingWorker):
    """Computes gradients for the servers of `group`, its first `num_servers` ranks. Each step is one pull and one push.

    parameters: as on the servers; the first pull makes them equal to those. With `with Worker(...) as worker:` the
    worker finishes at the end. Raises ValueError, before any message, for an argument that cannot be used.
    """

    def __init__(self, parameters: Iterable[Tensor], num_servers: int = 1, group: ProcessGroup | None = None) -> None:
        self.parameters = given.trained_parameters(parameters)
        shards = partition(self.parameters, num_servers)
        self.messages = given.WorkerMessages(num_servers, group, self.parameters[0].device)
        self.shards = [Shard(self.parameters, pieces) for pieces in shards]  # one for each server
        self.clock = 0  # number of pushes
        self.pulled = False

    def pull(self) -> None:
        """Wait for the values of clock `self.clock` from all servers, and write them into the parameters.

        Asks all servers at once. Raises ServerStopped, which names the server, if one has stopped serving.
        """
        # TODO 5. `self.shards` has one shard for each server. `self.messages.pull(server, self.clock, shard.buffers)`
        # asks server number `server` and returns at once. After `wait()` on what it returns, the values are in
        # `shard.buffers`, and `shard.copy_to(self.parameters)` writes them into the parameters. All servers must work
        # at the same time: what belongs into a first loop, and what into a second one?
        # YOUR CODE HERE
        raise NotImplementedError()
        self.pulled = True

    def push(self, samples: int = 1) -> None:
        """Send each server its part of the gradients, the parameters' `grad`; return when they have left.

        Sends to all servers at once. samples: how many have the mean loss that the gradients belong to; 0 changes
        nothing but the clock. A `grad` that is None counts as zeros. Raises RuntimeError without a pull before it,
        ServerStopped as `pull`.
        """
        given.check_push(samples, self.pulled)
        # TODO 6. `shard.copy_from(tensors)` fills `shard.buffers` from a list with one tensor, or None, for each
        # parameter. `self.messages.push(server, self.clock, samples, shard.buffers)` announces them to server number
        # `server`, begins to send them, and returns at once. `wait()` on what it returns ends when they have left, and
        # tells the server so. As in `pull`, all servers work at the same time.
        # YOUR CODE HERE
        raise NotImplementedError()
        self.clock, self.pulled = self.clock + 1, False
