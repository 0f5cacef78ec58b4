"""Records of a scaling study: measurements, points with their efficiency, and what an epoch costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Literal, NamedTuple, get_args

from torch.distributed import ProcessGroup

Origin = Literal["real", "virtual", "predict"]
"""Origin of times: clocks of real ranks, the virtual cluster's clock, or the formulas of `labkit.predict`."""
Scaling = Literal["weak", "strong"]
"""Weak: each rank's batch stays as ranks are added. Strong: the batch of all ranks together stays."""
ORIGINS: tuple[Origin, ...] = get_args(Origin)


class Workload(NamedTuple):
    """A training step of this rank; both functions are called again and again, on all ranks of the group alike."""

    step: Callable[[], Any]
    """The whole step, with its communication."""
    compute: Callable[[], Any]
    """The same without communication: what one rank does for its own samples."""


MakeWorkload = Callable[[int, ProcessGroup | None], Workload]
"""Function of a rank's samples in a step and the group that takes the step together; returns the rank's workload."""


@dataclass(frozen=True)
class Measurement:
    """One configuration, measured or predicted."""

    origin: Origin
    strategy: str
    """"ddp", "fsdp", ...: the name of the curve."""
    world_size: int
    batch_size: int
    """Samples of each rank in a step."""
    step_seconds: tuple[float, ...]
    """Seconds of a step on the slowest rank, one figure for each repeat."""
    compute_seconds: tuple[float, ...]
    """The same without communication."""
    memory_bytes: int = 0
    """Most that a rank held; 0: not known."""
    tokens_per_sample: int = 1
    cluster: str = ""
    model: str = ""
    gb_per_s: Mapping[str, float] = field(default_factory=dict)
    """Bus bandwidth of collectives on the same ranks, in 1e9 bytes per second, by operation; empty: not measured."""

    @property
    def seconds(self) -> float:
        """Seconds of a step: the median of the repeats."""
        return median(self.step_seconds)

    @property
    def computing(self) -> float:
        """Seconds of a step without communication: the median of the repeats."""
        return median(self.compute_seconds)

    @property
    def spread(self) -> float:
        """Largest minus smallest time of a step, as a share of `seconds`."""
        return (max(self.step_seconds) - min(self.step_seconds)) / self.seconds

    def to_plain(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)

    @classmethod
    def from_plain(cls, data: dict[str, Any]) -> Measurement:
        """Return the measurement in plain data, as of `to_plain`. Raises ValueError for data of another form."""
        try:
            times = {name: tuple(map(float, data[name])) for name in ("step_seconds", "compute_seconds")}
            bandwidths = {name: float(value) for name, value in dict(data.get("gb_per_s", {})).items()}
            measurement = cls(**{**data, **times, "gb_per_s": bandwidths})
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a measurement: {error}") from None
        if measurement.origin not in ORIGINS:
            raise ValueError(f"not a measurement: origin {measurement.origin!r}")
        for name, seconds in times.items():
            if not seconds or not all(0 < value < math.inf for value in seconds):
                raise ValueError(f"not a measurement: {name} {seconds}")
        return measurement


@dataclass(frozen=True)
class ScalingPoint:
    """A measurement within a study."""

    scaling: Scaling
    measurement: Measurement
    efficiency: float
    """Efficiency per GPU, relative to the study's first point, which has 1."""


class Cost(NamedTuple):
    """Cost of an epoch."""

    steps: int
    hours: float
    gpu_hours: float
    dollars: float
