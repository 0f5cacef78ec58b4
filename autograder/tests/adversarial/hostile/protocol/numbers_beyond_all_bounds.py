# Asks for messages of 10**400 elements with tags of as many digits, and computes 10**400 operators.
# marks: 0
# feedback: ProtocolError at | timeout
import torch.distributed as dist

from labkit.clusters.virtual.isolation.current import here

__all__ = ["pass_around"]


def pass_around(tensor):
    ask, rank, size = here.endpoint._ask, dist.get_rank(), dist.get_world_size()
    huge = 10**400
    ask("tick", 1e308)
    ask("tick", 1e308)
    here.endpoint._say("post", 8001, ("receive", "0", "recv", "", (rank - 1) % size, huge, "float32", huge), None)
    here.endpoint._say("post", 8002, ("send", "0", "send", "", (rank + 1) % size, huge, "float32", huge, None), None)
    ask("wait", 8001, True, 1.0)
    ask("wait", 8002, True, 1.0)
    return tensor
