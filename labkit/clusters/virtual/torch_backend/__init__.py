"""torch.distributed on virtual ranks: process group, collectives, work, store."""
