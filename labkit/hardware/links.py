"""Links between GPUs, to the host and between nodes: bandwidth per direction, latency, share that NCCL reaches."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """One direction of a full-duplex link, at its stated peak rate."""

    name: str
    gb_per_s: float
    """Peak rate in one direction, in 1e9 bytes per second."""
    latency_seconds: float
    """Seconds from the first byte sent to the first byte received, software included."""
    source: str
    collective_efficiency: float = 1.0
    """Share of the peak that a large library collective reaches. Single messages run at the peak."""
    reduction_efficiency: float = 0.0
    """Share of the peak that collectives reach if the switch reduces (NVLink SHARP); 0: it cannot."""
    collective_ranks: int = 8
    """Number of ranks in a node for which `collective_efficiency` was measured; with fewer it is slightly lower."""
    library: str = "nccl"
    """Library whose collectives run on it: `nccl` chooses among three protocols, `gloo` has one."""

    def __post_init__(self) -> None:
        if self.gb_per_s <= 0 or self.latency_seconds < 0:
            raise ValueError(
                f"link {self.name}: gb_per_s must be above 0 and latency_seconds at least 0, "
                f"got {self.gb_per_s} and {self.latency_seconds}"
            )
        if self.library not in ("nccl", "gloo"):
            raise ValueError(f"link {self.name}: library must be nccl or gloo, got {self.library!r}")
        if self.collective_ranks < 2:
            raise ValueError(f"link {self.name}: collective_ranks must be at least 2, got {self.collective_ranks}")
        if not (0 < self.collective_efficiency <= 1 and 0 <= self.reduction_efficiency <= 1):
            raise ValueError(
                f"link {self.name}: efficiencies are shares of the peak, at most 1, "
                f"got {self.collective_efficiency} and {self.reduction_efficiency}"
            )

    def seconds(self, nbytes: float) -> float:
        """Seconds of one message on an idle link: latency + bytes / bandwidth."""
        return self.latency_seconds + nbytes / self.bytes_per_second

    @property
    def bytes_per_second(self) -> float:
        return self.gb_per_s * 1e9


_NVLINK = "NVIDIA NVLink product page, per-GPU total / 2 for one direction"
_PCIE = "PCI-SIG specification, 16 lanes, one direction, after encoding"
_TCP = "IEEE 802.3 line rate; latency typical of TCP through one switch"
_IB = "InfiniBand Trade Association roadmap, 4 lanes; latency typical of RDMA through one switch"
_EFA = "AWS instance pages (p4d: 4 x 100 Gb/s, p5: 3,200 Gb/s for 8 GPUs); latency typical of SRD"

# Latencies are round figures for one message between two processes. Those of NVLink, PCIe and InfiniBand are near the
# hop latencies of NCCL's tuning model (Simple protocol: 3.4, 5.7 and 14 microseconds; LL: 0.6, 1.0 and 2.7), the others
# are assumptions. Collective efficiencies: NVLink 3 and 4, and NVLink SHARP on 4, are fitted to published nccl-tests
# runs (tests/clusters/virtual/published_all_reduce.csv); InfiniBand is what threads 252 and 290 of NVIDIA/nccl-tests
# report (24 of 25 GB/s per card with HDR, 46 to 48 of 50 with NDR); PCIe is as measured between host and GPU by Azure's
# AI-benchmarking-guide (26.3 of 31.5 and 51.5 of 63 GB/s). Assumed: NVLink 2 and 5 as 3 and 4; EDR as HDR; NVLink 5's
# SHARP, by the ratio of NCCL's own constants for Hopper and Blackwell (0.85 : 0.74); Ethernet; EFA.
LINKS: dict[str, Link] = {
    link.name: link
    for link in (
        Link("nvlink2", 150.0, 3e-6, f"{_NVLINK} (V100: 300 GB/s)", 0.85),
        Link("nvlink3", 300.0, 3e-6, f"{_NVLINK} (A100: 600 GB/s)", 0.77),
        Link("nvlink4", 450.0, 3e-6, f"{_NVLINK} (H100: 900 GB/s)", 0.83, 0.685),
        Link("nvlink5", 900.0, 3e-6, f"{_NVLINK} (B200: 1,800 GB/s)", 0.83, 0.596),
        Link("pcie3", 15.75, 5e-6, _PCIE, 0.82),
        Link("pcie4", 31.5, 5e-6, _PCIE, 0.82),
        Link("pcie5", 63.0, 5e-6, _PCIE, 0.82),
        Link("ethernet-10g", 1.25, 25e-6, _TCP, 0.92),
        Link("ethernet-25g", 3.125, 25e-6, _TCP, 0.92),
        Link("ethernet-50g", 6.25, 25e-6, _TCP, 0.92),
        Link("ethernet-100g", 12.5, 25e-6, _TCP, 0.92),
        Link("ethernet-200g", 25.0, 25e-6, _TCP, 0.92),
        Link("ethernet-400g", 50.0, 25e-6, _TCP, 0.92),
        Link("efa-100g", 12.5, 15e-6, _EFA, 0.9),
        Link("efa-400g", 50.0, 15e-6, _EFA, 0.9),
        Link("ib-edr", 12.5, 5e-6, f"{_IB} (EDR: 100 Gb/s)", 0.95),
        Link("ib-hdr", 25.0, 5e-6, f"{_IB} (HDR: 200 Gb/s)", 0.95),
        Link("ib-ndr", 50.0, 5e-6, f"{_IB} (NDR: 400 Gb/s)", 0.95),
    )
}
"""Links by name."""
