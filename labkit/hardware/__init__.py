"""GPUs, links and clusters as data, each with its source."""

from labkit.hardware.gpus import GPU, GPUS
from labkit.hardware.links import LINKS, Link
from labkit.hardware.presets import PRESETS, topology
from labkit.hardware.storage import STORAGE, Storage
from labkit.hardware.topology import Hop, Topology

__all__ = ["GPU", "GPUS", "LINKS", "PRESETS", "STORAGE", "Hop", "Link", "Storage", "Topology", "topology"]
