"""Using a tensor that an unfinished operation fills or sends raises an error naming the operation and its line."""

from __future__ import annotations

import pytest

from labkit import Job, virtual

HEAD = """\
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
peer = 1 - rank
x, y = torch.zeros(8), torch.full((8,), float(rank))
"""


def error(source: str) -> str:
    run = virtual(nproc_per_node=2).run(Job(source=HEAD + source, filename="Cell In[3]"))
    found = run.first_failure
    assert found is not None and found.error is not None and found.error.type == "UsedBeforeWait", run.diagnosis()
    return found.error.message


MISUSES = {
    "a receive's buffer is read": ("w = dist.irecv(x, peer); dist.isend(y, peer)\nz = x + 1\nw.wait()", "is read"),
    "its handle is dropped": ("dist.irecv(x, peer); dist.isend(y, peer)\nz = x * 2", "is read"),
    "a view of it is read": ("w = dist.irecv(x, peer); dist.isend(y, peer)\nz = x.view(2, 4)[1].sum()", "is read"),
    "a column of it is read": ("w = dist.irecv(x, peer); dist.isend(y, peer)\nz = x.view(2, 4)[:, 1].sum()", "is read"),
    "it is printed": ("w = dist.irecv(x, peer); dist.isend(y, peer)\nprint('got', x)", "is read"),
    "it is formatted": ("w = dist.irecv(x, peer); dist.isend(y, peer)\nz = f'{x}'", "is read"),
    "its list is made": ("w = dist.irecv(x, peer); dist.isend(y, peer)\nz = x.tolist()", "is read"),
    "a receive's buffer is written": ("w = dist.irecv(x, peer); dist.isend(y, peer)\nx.zero_()", "is written"),
    "a send's buffer is written": ("w = dist.isend(y, peer); dist.irecv(x, peer)\ny += 1", "is written"),
    "an all_reduce's tensor is read": ("w = dist.all_reduce(x, async_op=True)\nz = x.sum()", "is read"),
    "an all_gather's output is read": (
        "parts = [torch.zeros(8), torch.zeros(8)]\nw = dist.all_gather(parts, y, async_op=True); z = torch.cat(parts)",
        "is read",
    ),
    "an all_gather's input is written": (
        "parts = [torch.zeros(8), torch.zeros(8)]\nw = dist.all_gather(parts, y, async_op=True); y.mul_(2)",
        "is written",
    ),
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_use_before_wait_is_named(misuse: str) -> None:
    source, how = MISUSES[misuse]
    message = error(source)
    assert how in message and "at Cell In[3], line 7" in message and "call wait()" in message
    assert "of Cell In[3], line 6" in message or "all_gather" in message


FINE = """
w = dist.irecv(x, peer); s = dist.isend(y, peer)
seen = (y + 1).sum(), x.shape, x.view(2, 4).stride(), torch.empty_like(x).numel()
big = torch.zeros(16)
half = dist.irecv(big[:8], peer, tag=1); sent = dist.isend(big[8:], peer, tag=1)
big[8:].sum(); str(big[8:]), y.tolist(), [y]; z = big.view(2, 8)[1] + 1; even = torch.zeros(8).view(4, 2)
into = dist.irecv(even.view(-1)[2:4], peer, tag=2); dist.isend(y[:2], peer, tag=2).wait()
even[0].add_(1); even[2:].fill_(3)
for work in (w, s, half, sent, into): work.wait()
x += 1; y.zero_()
into, polled = dist.irecv(torch.empty(8), peer), dist.isend(y, peer)
while not polled.is_completed(): pass
y.zero_(); into.wait()
handle = dist.all_reduce(x, async_op=True)
while not handle.is_completed(): pass
total = x.sum().item()
ops = [dist.P2POp(dist.isend, y, peer), dist.P2POp(dist.irecv, x, peer)]
for work in dist.batch_isend_irecv(ops): work.wait()
import torch.distributed._functional_collectives as functional
gathered = functional.all_gather_tensor(torch.ones(2), 0, dist.group.WORLD)
total, x.tolist(), (gathered + 1).sum().item()
"""


def test_right_use_is_never_in_the_way() -> None:
    run = virtual(nproc_per_node=2).run(Job(source=HEAD + FINE)).raise_if_failed()
    assert run.values == [(24.0, [0.0] * 8, 8.0)] * 2
