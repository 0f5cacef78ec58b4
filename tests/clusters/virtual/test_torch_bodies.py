"""Bodies of torch's own `DistributedTest`, unmodified, pass on virtual ranks if they pass on local ones."""

from __future__ import annotations

import pytest

from labkit import virtual
from tests.clusters.virtual import torch_bodies

EXCEPTIONS = {
    "test_get_rank": "names files by os.getpid(): the ranks are threads of one process",
    "test_post_localSGD_optimizer_step_reload": "rank 0 deletes a file that others have yet to read: real ranks race",
}


@pytest.mark.slow
def test_bodies_that_pass_on_local_ranks_pass_on_virtual_ones() -> None:
    wanted = [name for name in torch_bodies.pass_locally() if name not in EXCEPTIONS]
    found = torch_bodies.outcomes(virtual(nproc_per_node=torch_bodies.RANKS), wanted, seconds=600)
    assert {name: outcome for name, outcome in found.items() if not torch_bodies.passes(outcome)} == {}
