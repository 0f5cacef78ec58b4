"""A cluster as data: nodes of GPUs, the links inside a node and between nodes; presets by name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from labkit.hardware.gpus import GPU, GPUS
from labkit.hardware.links import LINKS, Link

T = TypeVar("T")


@dataclass(frozen=True)
class Topology:
    """`nnodes` equal nodes of `nproc_per_node` GPUs. Ranks fill node after node.

    Inside a node every GPU has one port, `intra_node`, to a switch that never blocks. A node has `nics_per_node`
    network cards, each an `inter_node` link shared by its GPUs in equal, contiguous parts; between nodes the network
    never blocks.
    """

    nnodes: int
    nproc_per_node: int
    gpu: GPU
    intra_node: Link
    inter_node: Link
    nics_per_node: int = 1
    name: str = "custom"

    def __post_init__(self) -> None:
        for option in ("nnodes", "nproc_per_node", "nics_per_node"):
            value = getattr(self, option)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{option} must be a whole number from 1 up, got {value!r}")

    def to_plain(self) -> dict[str, Any]:
        """Plain data that `from_plain` reads."""
        return asdict(self)

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Topology:
        return cls(
            **{
                **data,
                "gpu": GPU(**data["gpu"]),
                "intra_node": Link(**data["intra_node"]),
                "inter_node": Link(**data["inter_node"]),
            }
        )

    @property
    def world_size(self) -> int:
        return self.nnodes * self.nproc_per_node

    def node_of(self, rank: int) -> int:
        return rank // self.nproc_per_node

    def nic_of(self, rank: int) -> tuple[int, int]:
        """(node, card) that carries this rank's traffic to other nodes."""
        return self.node_of(rank), rank % self.nproc_per_node * self.nics_per_node // self.nproc_per_node

    def link_between(self, a: int, b: int) -> Link:
        """The kind of link that a message from rank `a` to rank `b` takes."""
        return self.intra_node if self.node_of(a) == self.node_of(b) else self.inter_node


def _preset(gpu: str, intra: str, inter: str, gpus_per_node: int, nics: int, name: str) -> Topology:
    return Topology(1, gpus_per_node, GPUS[gpu], LINKS[intra], LINKS[inter], nics, name)


PRESETS: dict[str, Topology] = {
    preset.name: preset
    for preset in (
        _preset("v100-32gb", "nvlink2", "ethernet-100g", 8, 4, "dgx-1"),
        _preset("a100-80gb", "nvlink3", "ib-hdr", 8, 8, "dgx-a100"),
        _preset("h100-80gb", "nvlink4", "ib-ndr", 8, 8, "dgx-h100"),
        _preset("t4", "pcie3", "ethernet-25g", 4, 1, "cloud-t4"),
    )
}
_DEFAULT = _preset("a100-80gb", "nvlink3", "ib-hdr", 2, 1, "custom")


def topology(preset: str | None = None, **options: Any) -> Topology:
    """A preset, or the default (A100s, NVLink 3, one HDR card a node), with fields replaced by `options`.

    `gpu`, `intra_node` and `inter_node` are names of the tables or objects of one's own. Options that are None are left
    as they are. Raises ValueError that names what is unknown and what is near it.
    """
    base = _DEFAULT if preset is None else _look_up("preset", preset, PRESETS)
    chosen = {name: value for name, value in options.items() if value is not None}
    tables: dict[str, Mapping[str, Any]] = {"gpu": GPUS, "intra_node": LINKS, "inter_node": LINKS}
    for name, table in tables.items():
        if isinstance(chosen.get(name), str):
            chosen[name] = _look_up(name, chosen[name], table)
    return replace(base, **chosen)


def _look_up(what: str, name: str, table: Mapping[str, T]) -> T:
    if name in table:
        return table[name]
    near = difflib.get_close_matches(name, table, n=3, cutoff=0.4)
    offer = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(table)}"
    raise ValueError(f"unknown {what} {name!r}; {offer}")
