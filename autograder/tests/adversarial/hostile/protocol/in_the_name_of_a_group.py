# Joins groups under false names, a thousand of them, and with members that do not exist.
# marks: 0
# feedback: at phase1_data_parallel/pass_around.py, line 1
import torch.distributed as dist

from labkit.clusters.virtual.isolation.current import here

__all__ = ["pass_around"]


def pass_around(tensor):
    endpoint, size = here.endpoint, dist.get_world_size()
    for number in range(1000):
        endpoint.join_group(f"<b>{number}</b>" * 100, tuple(range(size)), "gloo")
    endpoint.join_group("0", (endpoint.rank,), "gloo")
    endpoint.join_group("others", (size + 5, endpoint.rank), "gloo")
    return tensor
