"""Memory that torch takes when a rank computes for the first time: it is not the submission's.

Data that a rank shares with the process that it was forked from is copied when it is first written to, workspaces of
operators stay, and how much that is depends on the processor: some 10 MB, here more, there less.
"""


def first_use() -> None:
    """On a rank, take two training steps and an all-reduce, of tensors up to a megabyte. Draws no random number."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.functional import cross_entropy

    with torch.random.fork_rng(devices=[]):
        net = nn.Sequential(nn.LayerNorm(256), nn.Linear(256, 512), nn.GELU(), nn.Tanh(), nn.Linear(512, 256))
    for optimizer in (torch.optim.SGD(net.parameters(), lr=0.1), torch.optim.Adam(net.parameters())):
        cross_entropy(net(torch.ones(256, 256)), torch.zeros(256, dtype=torch.long)).backward()
        flat = torch.cat([parameter.grad.flatten() for parameter in net.parameters() if parameter.grad is not None])
        dist.all_reduce(flat)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
