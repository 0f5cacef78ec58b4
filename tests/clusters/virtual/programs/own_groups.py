"""Groups that a program makes itself, as torchft does, and the methods that it calls on them directly.

First a group of all ranks, in another order, then one of all but the last. The value: what each call left in the
rank's tensors.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

dist.init_process_group("gloo")
me, n = dist.get_rank(), dist.get_world_size()
server = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False) if me == 0 else None
port = [server and server.port]
dist.broadcast_object_list(port)
store = dist.TCPStore("localhost", port[0], is_master=False, wait_for_workers=False)
seconds = timedelta(seconds=9)


def group_of(ranks: list[int]) -> Any:
    where = dist.PrefixStore(str(ranks), store), ranks.index(me), len(ranks)
    group: Any = dist.ProcessGroup(*where)
    group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    backend: Any = dist.ProcessGroupGloo(*where, timedelta(seconds=60))
    backend._set_sequence_number_for_group()
    backend.options.global_ranks_in_group = ranks
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
    return group


def use(group: Any) -> list[Any]:
    found: list[Any] = []
    mine, size = group.rank(), group.size()

    def call(start: Callable[[Tensor, list[Tensor]], Any]) -> None:
        x, parts = torch.arange(3.0) + me, [torch.full((3,), 10.0 * me + i) for i in range(size)]
        start(x, parts).wait()
        found.append([x.tolist(), [part.tolist() for part in parts]])

    call(lambda x, parts: group.allreduce([x]))
    call(lambda x, parts: group.allreduce([x], dist.ReduceOp.MAX))
    call(lambda x, parts: group.allreduce(x, op=dist.ReduceOp.MIN, timeout=seconds))
    call(lambda x, parts: group.allreduce([x], dist.AllreduceOptions()))
    call(lambda x, parts: group.broadcast(x, 1))
    call(lambda x, parts: group.broadcast(x, root=0, timeout=seconds))
    call(lambda x, parts: group.allgather(parts, x))
    call(lambda x, parts: group.allgather([parts], [x]))
    call(lambda x, parts: group.scatter(x, parts if mine == 1 else [], 1))
    call(lambda x, parts: group.gather(parts if mine == 0 else [], x, 0))
    call(lambda x, parts: group.barrier(timeout=seconds))
    if mine < 2:
        call(lambda x, parts: group.send([x], 1, 5) if mine == 0 else group.recv([x], 0, 5))
    return [mine, size, found]


[use(group_of(ranks)) for ranks in ([*range(1, n), 0], [*range(n - 1)]) if me in ranks]
