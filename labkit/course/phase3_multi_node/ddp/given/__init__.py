"""Given parts of exercise 11, `ddp`: argument checks, the bucket, the wrapper's interface, agreement among ranks,
the training step and the checkpoint file."""

from labkit.course.phase3_multi_node.ddp.given.agreement import broadcast_together
from labkit.course.phase3_multi_node.ddp.given.backward_pass import weak
from labkit.course.phase3_multi_node.ddp.given.bucketed_module import BucketedModule
from labkit.course.phase3_multi_node.ddp.given.checkpoint_file import CheckpointFile
from labkit.course.phase3_multi_node.ddp.given.training import Training

__all__ = ["BucketedModule", "CheckpointFile", "Training", "broadcast_together", "weak"]
