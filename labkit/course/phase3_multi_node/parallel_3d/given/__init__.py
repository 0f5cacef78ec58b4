"""Given parts of the exercise on 3D parallelism: the mesh's sizes, argument checks, and whole layers again."""

from labkit.course.phase3_multi_node.parallel_3d.given.arguments import check_rank, check_trainer
from labkit.course.phase3_multi_node.parallel_3d.given.axes import AXES, Coordinates, MeshSizes
from labkit.course.phase3_multi_node.parallel_3d.given.layers import whole_layer

__all__ = ["AXES", "Coordinates", "MeshSizes", "check_rank", "check_trainer", "whole_layer"]
