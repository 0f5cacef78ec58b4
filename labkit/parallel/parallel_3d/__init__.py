"""Given parts of the exercise on 3D parallelism: the mesh's sizes, layers that are made late, argument checks."""

from labkit.parallel.parallel_3d.arguments import check_rank, check_trainer
from labkit.parallel.parallel_3d.axes import AXES, Coordinates, MeshSizes
from labkit.parallel.parallel_3d.layers import Embedding, Head, LayerPlan, gpt_layers, share, whole_layer

__all__ = [
    "AXES",
    "Coordinates",
    "Embedding",
    "Head",
    "LayerPlan",
    "MeshSizes",
    "check_rank",
    "check_trainer",
    "gpt_layers",
    "share",
    "whole_layer",
]
