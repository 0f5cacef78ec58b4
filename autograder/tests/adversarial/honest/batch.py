# Both messages of a round are posted at once.
# marks: 6
# feedback: 6 of 6 points
import torch
import torch.distributed as dist

__all__ = ["pass_around"]


def pass_around(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    buffers = [tensor.clone(), torch.empty_like(tensor)]
    for _ in range(size - 1):
        to_the_right = dist.P2POp(dist.isend, buffers[0], (rank + 1) % size)
        from_the_left = dist.P2POp(dist.irecv, buffers[1], (rank - 1) % size)
        for work in dist.batch_isend_irecv([to_the_right, from_the_left]):
            work.wait()
        tensor.add_(buffers[1])
        buffers.reverse()
    return tensor
