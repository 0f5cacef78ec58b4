"""A receive from any rank takes the message whose send was posted first, on the virtual clock."""

from __future__ import annotations

import pytest
from waiting import BROKEN_SECONDS

from labkit import Job, virtual

SOURCE = """\
import torch, torch.distributed as dist
dist.init_process_group()
rank, x = dist.get_rank(), torch.ones(2)
busy = {0: 0.02, 1: 0.015, 2: 0.005, 3: 0.01}[rank]
dist.distributed_c10d._get_default_group().endpoint.compute(busy)
[dist.recv(x) for _ in range(3)] if rank == 0 else dist.send(x, 0)
"""


@pytest.mark.parametrize("how", ["threads", "processes"])
def test_a_busy_rank_receives_in_the_order_of_time_although_ranks_have_run_ahead(how: str) -> None:
    run = virtual(nproc_per_node=4, ranks=how).run(Job(source=SOURCE, timeout=BROKEN_SECONDS)).raise_if_failed()  # type: ignore[arg-type]
    assert run.ranks[0].value == [2, 3, 1]
