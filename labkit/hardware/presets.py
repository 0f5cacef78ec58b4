"""Machines by name, and `topology()`, which builds a cluster of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from labkit.hardware import files
from labkit.hardware.gpus import GPUS
from labkit.hardware.links import LINKS
from labkit.hardware.settings import TABLES, look_up, nodes_with, part, with_settings
from labkit.hardware.storage import STORAGE
from labkit.hardware.topology import Topology


def _node(
    name: str, gpu: str, gpus: int, intra: str, inter: str, nics: int, storage: str, switch: float | None = None
) -> Topology:
    """Build one node; the link to the host is the GPU's."""
    return Topology(
        1,
        gpus,
        GPUS[gpu],
        LINKS[intra],
        LINKS[inter],
        nics,
        name,
        switch_gb_per_s=switch,
        host_link=LINKS[GPUS[gpu].host_link],
        storage=STORAGE[storage],
    )


# Counts of GPUs, cards and links: NVIDIA's DGX user guides, AWS's instance pages (g4dn.12xlarge, g6.48xlarge,
# p4d.24xlarge, p5.48xlarge). A DGX-1's NVLink is a mesh, not a switch: the total per port is right, a single pair is
# slower than modelled. On p5 a GPU has four EFA cards of 100 Gb/s, here one of 400. Consumer cards have no
# peer-to-peer: on the workstation all traffic passes through host memory, here a switch of 40 GB/s (assumed).
PRESETS: dict[str, Topology] = {
    preset.name: preset
    for preset in (
        _node("dgx-1", "v100-32gb", 8, "nvlink2", "ib-edr", 4, "nvme-1"),
        _node("dgx-a100", "a100-80gb", 8, "nvlink3", "ib-hdr", 8, "nvme-a100"),
        _node("dgx-h100", "h100-80gb", 8, "nvlink4", "ib-ndr", 8, "nvme-h100"),
        _node("dgx-h200", "h200-141gb", 8, "nvlink4", "ib-ndr", 8, "nvme-h100"),
        _node("dgx-b200", "b200-180gb", 8, "nvlink5", "ib-ndr", 8, "nvme-h100"),
        _node("cloud-t4", "t4", 4, "pcie3", "ethernet-50g", 1, "cloud-disk"),
        _node("cloud-l4", "l4", 8, "pcie4", "ethernet-100g", 1, "cloud-disk"),
        _node("p4d", "a100-40gb", 8, "nvlink3", "efa-100g", 4, "nvme-a100"),
        _node("p5", "h100-80gb", 8, "nvlink4", "efa-400g", 8, "nvme-h100"),
        _node("workstation-4090", "rtx-4090", 4, "pcie4", "ethernet-10g", 1, "nvme-1", switch=40.0),
    )
}
"""Clusters by name: `topology("dgx-a100", nnodes=4)` scales one of them."""
_DEFAULT = _node("custom", "a100-80gb", 2, "nvlink3", "ib-hdr", 1, "nvme-a100")


def topology(preset: str | None = None, *, settings: Mapping[str, Any] | None = None, **options: Any) -> Topology:
    """Return a preset, or the default (A100s, NVLink 3, one HDR card per node), with fields replaced by `options`.

    `preset` is a name, or a file (`mine.json`) written by hand or by `labkit calibrate`. `gpu`, `intra_node`,
    `inter_node`, `host_link` and `storage` are names in the tables, or objects; another `gpu` also brings its own link
    to the host. Several GPUs, `"a100-80gb,v100-32gb"`, are what the nodes have in turn; there is then at least a node
    of each. Options that are None have no effect. `settings` replace fields of these parts: `{"gpu.memory_gb": 40}`.
    Raises ValueError for an unknown name, listing similar ones.
    """
    if preset is None:
        base = _DEFAULT
    elif not isinstance(preset, str):
        hint = f"; {preset} GPUs in a node are nproc_per_node={preset}" if type(preset) is int else ""
        raise ValueError(f"preset must be a cluster's name, such as 'dgx-a100', got {preset!r}{hint}")
    elif preset.isdigit():
        raise ValueError(
            f"preset must be a cluster's name, such as dgx-a100, got {preset}; {preset} GPUs in a node are "
            f"--nproc-per-node {preset}"
        )
    elif files.is_file(preset):
        base = files.cluster(preset, PRESETS, _DEFAULT)
    else:
        base = look_up("preset", preset, PRESETS)
    chosen = {name: value for name, value in options.items() if value is not None}
    if "gpu" in chosen:
        chosen.update(nodes_with(chosen["gpu"]))
        chosen.setdefault("host_link", chosen["gpu"].host_link)
        chosen.setdefault("nnodes", max(base.nnodes, len(chosen["gpus"])))
    chosen = {name: part(name, value) if name in TABLES else value for name, value in chosen.items()}
    return with_settings(replace(base, **chosen), settings or {})
