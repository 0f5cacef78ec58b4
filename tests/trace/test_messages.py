"""Sends and receives of real traces are matched, on modelled and on measured ranks."""

import pytest

from labkit import Job, local, virtual
from labkit.clusters import Cluster
from labkit.trace.messages import messages

# rank 1 takes the second message first; rank 2 does not communicate
PROGRAM = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == 0:
    works = [dist.isend(torch.zeros(n), 1, tag=n) for n in (1, 2)]
    works.append(dist.isend(torch.zeros(3), 1, tag=3))
    for work in works:
        work.wait()
elif rank == 1:
    for n in (3, 1, 2) if VIRTUAL else (1, 2, 3):
        dist.recv(torch.zeros(n), 0, tag=n)
"""


@pytest.mark.parametrize("cluster", [virtual(nproc_per_node=3), local(3)], ids=["virtual", "local"])
def test_each_receive_finds_its_send(cluster: Cluster) -> None:
    source = f"VIRTUAL = {cluster.kind == 'virtual'}\n{PROGRAM}"
    run = cluster.run(Job(source=source)).raise_if_failed()
    pairs = [(sent.nbytes, received.nbytes) for sent, received in messages(run.trace)]
    assert sorted(pairs) == [(4, 4), (8, 8), (12, 12)]
    assert all(sent.rank == 0 and received.rank == 1 for sent, received in messages(run.trace))
