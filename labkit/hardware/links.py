"""Links between GPUs and between nodes: bandwidth of one direction, and latency."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """One direction of a full-duplex link, at its stated peak rate."""

    name: str
    gb_per_s: float
    """Bytes, 1e9 a second, in one direction."""
    latency_seconds: float
    """From the first byte sent to the first byte received, software included."""
    source: str

    def __post_init__(self) -> None:
        if self.gb_per_s <= 0 or self.latency_seconds < 0:
            raise ValueError(
                f"link {self.name}: gb_per_s must be above 0 and latency_seconds at least 0, "
                f"got {self.gb_per_s} and {self.latency_seconds}"
            )

    def seconds(self, nbytes: int) -> float:
        """Time of one message on an idle link: latency + bytes / bandwidth."""
        return self.latency_seconds + nbytes / self.bytes_per_second

    @property
    def bytes_per_second(self) -> float:
        return self.gb_per_s * 1e9


_NVLINK = "NVIDIA NVLink product page, per-GPU total / 2 for one direction"
_PCIE = "PCI-SIG specification, 16 lanes, one direction, after encoding"
_TCP = "IEEE 802.3 line rate; latency typical of TCP through one switch"
_IB = "InfiniBand Trade Association roadmap, 4 lanes; latency typical of RDMA through one switch"

# Latencies are round figures for one message between two processes, the order of magnitude that NCCL's and the
# operating system's own benchmarks report; they are assumptions of the model, not measurements of a given machine.
LINKS: dict[str, Link] = {
    link.name: link
    for link in (
        Link("nvlink2", 150.0, 3e-6, f"{_NVLINK} (V100: 300 GB/s)"),
        Link("nvlink3", 300.0, 3e-6, f"{_NVLINK} (A100: 600 GB/s)"),
        Link("nvlink4", 450.0, 3e-6, f"{_NVLINK} (H100: 900 GB/s)"),
        Link("pcie3", 15.75, 5e-6, _PCIE),
        Link("pcie4", 31.5, 5e-6, _PCIE),
        Link("pcie5", 63.0, 5e-6, _PCIE),
        Link("ethernet-10g", 1.25, 25e-6, _TCP),
        Link("ethernet-25g", 3.125, 25e-6, _TCP),
        Link("ethernet-100g", 12.5, 25e-6, _TCP),
        Link("ethernet-400g", 50.0, 25e-6, _TCP),
        Link("ib-hdr", 25.0, 5e-6, f"{_IB} (HDR: 200 Gb/s)"),
        Link("ib-ndr", 50.0, 5e-6, f"{_IB} (NDR: 400 Gb/s)"),
    )
}
