"""Storage of a node, for checkpoints."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Storage:
    """One node's storage, shared by its ranks."""

    name: str
    write_gb_per_s: float
    """Rate of large sequential writes, in 1e9 bytes per second."""
    read_gb_per_s: float
    latency_seconds: float
    source: str

    def __post_init__(self) -> None:
        if self.write_gb_per_s <= 0 or self.read_gb_per_s <= 0 or self.latency_seconds < 0:
            raise ValueError(
                f"storage {self.name}: rates must be above 0 and latency_seconds at least 0, "
                f"got {self.write_gb_per_s}, {self.read_gb_per_s} and {self.latency_seconds}"
            )

    def write_seconds(self, nbytes: float) -> float:
        """Seconds for one rank of the node to write alone."""
        return self.latency_seconds + nbytes / (self.write_gb_per_s * 1e9)

    def read_seconds(self, nbytes: float) -> float:
        """Seconds for one rank of the node to read alone."""
        return self.latency_seconds + nbytes / (self.read_gb_per_s * 1e9)


_FIO = "FIO, sequential, 1 MB blocks, Azure AI-benchmarking-guide"

# Latencies are assumptions: opening a file and its first block.
STORAGE: dict[str, Storage] = {
    storage.name: storage
    for storage in (
        Storage("nvme-a100", 8.2, 9.3, 1e-3, f"{_FIO}: ND A100 v4"),
        Storage("nvme-h100", 33.9, 55.3, 1e-3, f"{_FIO}: ND H100 v5"),
        Storage("nvme-1", 5.0, 7.0, 1e-3, "assumed: one PCIe 4 drive of a workstation"),
        Storage("cloud-disk-1gb", 1.0, 1.0, 5e-3, "AWS EBS user guide: a gp3 volume provisioned with 1,000 MB/s"),
        Storage("cloud-disk", 0.5, 0.5, 5e-3, "assumed: one network disk of a cloud instance"),
    )
}
"""File systems by name."""
