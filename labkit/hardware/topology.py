"""A cluster as data: racks, nodes, GPUs, and the links inside a node, to its host and between nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, NamedTuple

from labkit.hardware.gpus import GPU
from labkit.hardware.links import LINKS, Link
from labkit.hardware.storage import STORAGE, Storage


class Hop(NamedTuple):
    """One direction of one link on a message's path: its unique name and its rate."""

    name: str
    bytes_per_second: float


@dataclass(frozen=True)
class Topology:
    """`nnodes` nodes of `nproc_per_node` GPUs, equal but for their GPUs if `gpus` says so. Ranks fill node after node,
    nodes fill rack after rack.

    Inside a node every GPU has one port, `intra_node`, to a switch that is non-blocking unless `switch_gb_per_s` limits
    its total rate. A node has `nics_per_node` network cards, each an `inter_node` link shared by an equal, contiguous
    part of the GPUs. The network between nodes is non-blocking; between racks of `nodes_per_rack` it blocks if
    `oversubscription` is above 1: a rack's uplink carries its cards' total divided by that factor, in each direction.
    """

    nnodes: int
    nproc_per_node: int
    gpu: GPU
    intra_node: Link
    inter_node: Link
    nics_per_node: int = 1
    name: str = "custom"
    switch_gb_per_s: float | None = None
    """Rate between all GPUs of a node together, in 1e9 bytes per second; None: limited only by their ports."""
    nodes_per_rack: int | None = None
    """Number of nodes in a rack; None: all nodes are in one rack."""
    oversubscription: float = 1.0
    host_link: Link = LINKS["pcie4"]
    """Link of each GPU to host memory."""
    host_memory_gb_per_s: float = 200.0
    """Host memory bandwidth of a node, shared by the copies of all its GPUs."""
    storage: Storage = STORAGE["nvme-a100"]
    """Storage of each node."""
    constants: tuple[tuple[str, float], ...] = ()
    """Constants of predictions that this cluster overrides (names: `labkit.predict.Constants`)."""
    gpus: tuple[GPU, ...] = ()
    """Kinds of GPU that the nodes have in turn, node 0 the first; empty: all have `gpu`."""

    def __post_init__(self) -> None:
        for option in ("nnodes", "nproc_per_node", "nics_per_node", "nodes_per_rack"):
            value = getattr(self, option)
            if option == "nodes_per_rack" and value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{option} must be a whole number from 1 up, got {value!r}")
        if self.switch_gb_per_s is not None and self.switch_gb_per_s <= 0:
            raise ValueError(f"switch_gb_per_s must be above 0, got {self.switch_gb_per_s!r}")
        if self.host_memory_gb_per_s <= 0:
            raise ValueError(f"host_memory_gb_per_s must be above 0, got {self.host_memory_gb_per_s!r}")
        if self.oversubscription < 1:
            raise ValueError(f"oversubscription must be at least 1, got {self.oversubscription!r}")

    def to_plain(self) -> dict[str, Any]:
        """Convert to plain data, for `from_plain`."""
        return asdict(self)

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Topology:
        made: dict[str, Any] = {name: Link(**data[name]) for name in ("intra_node", "inter_node", "host_link")}
        made["gpu"], made["storage"] = GPU(**data["gpu"]), Storage(**data["storage"])
        made["constants"] = tuple((name, value) for name, value in data["constants"])
        made["gpus"] = tuple(GPU(**one) for one in data["gpus"])
        return cls(**{**data, **made})

    # Positions ----------------------------------------------------------------------------------------------------

    @property
    def world_size(self) -> int:
        return self.nnodes * self.nproc_per_node

    def node_of(self, rank: int) -> int:
        return rank // self.nproc_per_node

    def gpu_of(self, rank: int) -> GPU:
        """Return the GPU of a rank."""
        return self.gpus[self.node_of(rank) % len(self.gpus)] if self.gpus else self.gpu

    @cached_property
    def kinds(self) -> tuple[GPU, ...]:
        """The kinds of GPU that the nodes have, each once."""
        return tuple(dict.fromkeys(self.gpus[: self.nnodes])) or (self.gpu,)

    @cached_property
    def kind_of_nodes(self) -> tuple[int, ...]:
        """Index in `kinds` of each node's GPUs, until they repeat."""
        return tuple(self.kinds.index(gpu) for gpu in self.gpus[: self.nnodes]) or (0,)

    def nic_of(self, rank: int) -> tuple[int, int]:
        """Return the (node, card) that carries this rank's traffic to other nodes."""
        return self.node_of(rank), rank % self.nproc_per_node * self.nics_per_node // self.nproc_per_node

    def rack_of(self, node: int) -> int:
        return 0 if self.nodes_per_rack is None else node // self.nodes_per_rack

    # How fast it is -----------------------------------------------------------------------------------------------

    def link_between(self, a: int, b: int) -> Link:
        """Return the kind of link that a message from rank `a` to rank `b` takes."""
        return self.intra_node if self.node_of(a) == self.node_of(b) else self.inter_node

    @property
    def switch_bytes_per_second(self) -> float | None:
        """Total rate between the GPUs of a node; None: limited only by their ports."""
        return None if self.switch_gb_per_s is None else self.switch_gb_per_s * 1e9

    @property
    def uplink_bytes_per_second(self) -> float | None:
        """Rate of a rack's uplink in each direction; None: limited only by its cards."""
        if self.nodes_per_rack is None or self.oversubscription == 1:
            return None
        return self.nodes_per_rack * self.nics_per_node * self.inter_node.bytes_per_second / self.oversubscription

    def port(self, rank: int) -> tuple[Hop, Hop]:
        """Return a GPU's port to its node's switch, out and in."""
        rate = self.intra_node.bytes_per_second
        return Hop(f"port of rank {rank}, out", rate), Hop(f"port of rank {rank}, in", rate)

    def nic(self, node: int, card: int) -> tuple[Hop, Hop]:
        """Return a network card, out and in."""
        rate = self.inter_node.bytes_per_second
        return (
            Hop(f"network card {card} of node {node}, out", rate),
            Hop(f"network card {card} of node {node}, in", rate),
        )

    def switch(self, node: int) -> Hop:
        """Return a node's switch, if it blocks."""
        rate = self.switch_bytes_per_second
        return Hop(f"switch of node {node}", math.inf if rate is None else rate)

    def uplink(self, rack: int) -> tuple[Hop, Hop]:
        """Return a rack's uplink, out and in, if it blocks."""
        rate = math.inf if self.uplink_bytes_per_second is None else self.uplink_bytes_per_second
        return Hop(f"uplink of rack {rack}, out", rate), Hop(f"uplink of rack {rack}, in", rate)

    def path(self, a: int, b: int) -> tuple[list[Hop], list[Hop]]:
        """Return the hops of a message from rank `a` to rank `b`: the sender's side, then the receiver's side.

        Inside a node: port, switch if it blocks; port. Between nodes: port, card, the rack's uplink if it blocks; then
        the same in reverse.
        """
        leaving, arriving = [self.port(a)[0]], [self.port(b)[1]]
        home, away = self.node_of(a), self.node_of(b)
        if home == away:
            if self.switch_bytes_per_second is not None:
                leaving.append(self.switch(home))
            return leaving, arriving
        leaving.append(self.nic(*self.nic_of(a))[0])
        arriving.append(self.nic(*self.nic_of(b))[1])
        racks = self.rack_of(home), self.rack_of(away)
        if racks[0] != racks[1] and self.uplink_bytes_per_second is not None:
            leaving.append(self.uplink(racks[0])[0])
            arriving.append(self.uplink(racks[1])[1])
        return leaving, arriving[::-1]
