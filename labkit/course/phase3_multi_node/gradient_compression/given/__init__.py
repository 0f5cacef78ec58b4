"""Given parts of exercise 13, gradient compression: state by parameter, packing into bytes, buckets and rounds.

compressor           base of the compressors; a state for each parameter, saved and restored
integer_packing      integers of 1, 2, 4 or 8 bits, packed into bytes
blocks               a tensor in rows of equal length, and as a matrix
random_choices       random indices and matrices that are equal on every rank
buckets              gradients in buckets, and a bucket as one tensor
rounds               the messages of a bucket, round by round
hook_buckets         buckets of DDP: names for their parameters, and their futures
node_reduction       sums inside nodes, and which rank of a node sends which bucket to other nodes
arguments            argument checks
"""

from labkit.course.phase3_multi_node.gradient_compression.given.arguments import kept
from labkit.course.phase3_multi_node.gradient_compression.given.blocks import from_blocks, in_blocks, matrix_shape
from labkit.course.phase3_multi_node.gradient_compression.given.buckets import Bucket, Gradients, Group, buckets
from labkit.course.phase3_multi_node.gradient_compression.given.compressor import Compressor, Message, Rounds
from labkit.course.phase3_multi_node.gradient_compression.given.hook_buckets import CommHook, HookBuckets
from labkit.course.phase3_multi_node.gradient_compression.given.integer_packing import pack, unpack, unpack_signs
from labkit.course.phase3_multi_node.gradient_compression.given.node_reduction import NodeReduction
from labkit.course.phase3_multi_node.gradient_compression.given.random_choices import random_indices, random_matrix
from labkit.course.phase3_multi_node.gradient_compression.given.rounds import BucketRounds, Pending, Works, finish

__all__ = [
    "Bucket",
    "BucketRounds",
    "CommHook",
    "Compressor",
    "Gradients",
    "Group",
    "HookBuckets",
    "Message",
    "NodeReduction",
    "Pending",
    "Rounds",
    "Works",
    "buckets",
    "finish",
    "from_blocks",
    "in_blocks",
    "kept",
    "matrix_shape",
    "pack",
    "random_indices",
    "random_matrix",
    "unpack",
    "unpack_signs",
]
