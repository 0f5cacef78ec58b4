# Sends the scheduler invalid calls: wrong types, names, numbers, and a length beyond all limits.
# marks: 0
# feedback: at phase1_data_parallel/pass_around.py
import math
import struct

import torch.distributed as dist

from labkit.clusters.virtual.isolation.current import here

__all__ = ["pass_around"]

CALLS = [
    None,
    [],
    [["post"]],
    [["post", 1, ["send", "0", "isend", "", -1, 0, "float32", 1, b""], 0.0]],
    [["wait", 10**30, True, math.nan]],
    [["compute", math.nan, 1]],
    [["tick", -1.0]],
    [["sleep", math.inf]],
    [["end", None], ["end"], [["end"]]],
]


def pass_around(tensor):
    line = here.endpoint._connection
    line.send(CALLS[(dist.get_rank() + tensor.numel()) % len(CALLS)])
    line._socket.sendall(struct.pack("<IQ", 1 << 31, 1 << 63))
    line.receive()
    return here.endpoint._ask("sleep", 0.0)
