"""What is given of exercise 11, `ddp`: argument checks, the bucket, the wrapper's surface, what ranks agree on,
the training step and the checkpoint's file."""

from labkit.parallel.ddp.agreement import broadcast_together
from labkit.parallel.ddp.backward_pass import weak
from labkit.parallel.ddp.bucketed_module import BucketedModule
from labkit.parallel.ddp.checkpoint_file import CheckpointFile
from labkit.parallel.ddp.training import Training

__all__ = ["BucketedModule", "CheckpointFile", "Training", "broadcast_together", "weak"]
