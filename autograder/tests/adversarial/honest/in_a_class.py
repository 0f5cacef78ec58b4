# Written with a class and a generator, with a thread-free queue of tensors in transit.
# marks: 6
# feedback: 6 of 6 points
import torch
import torch.distributed as dist

__all__ = ["pass_around"]


class Ring:
    def __init__(self):
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def rounds(self, tensor):
        for _ in range(self.size - 1):
            incoming = torch.zeros_like(tensor)
            works = [dist.irecv(incoming, self.rank - 1 if self.rank else self.size - 1)]
            works += [dist.isend(tensor, (self.rank + 1) % self.size)]
            [work.wait() for work in works]
            yield incoming
            tensor = incoming


def pass_around(tensor):
    parts = list(Ring().rounds(tensor.clone()))
    for part in parts:
        tensor += part
    return tensor
