"""Given parts of the exercise on 3D parallelism: the mesh's sizes, argument checks, and whole layers again."""

from labkit.parallel.parallel_3d.arguments import check_rank, check_trainer
from labkit.parallel.parallel_3d.axes import AXES, Coordinates, MeshSizes
from labkit.parallel.parallel_3d.layers import whole_layer

__all__ = ["AXES", "Coordinates", "MeshSizes", "check_rank", "check_trainer", "whole_layer"]
