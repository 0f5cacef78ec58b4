"""GPUs, links and clusters as data, each with its source."""

from labkit.hardware.gpus import GPU, GPUS
from labkit.hardware.links import LINKS, Link
from labkit.hardware.topology import PRESETS, Topology, topology

__all__ = ["GPU", "GPUS", "LINKS", "PRESETS", "Link", "Topology", "topology"]
