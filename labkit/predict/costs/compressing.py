"""Gradients compressed before they are sent: bytes of the messages, and passes over memory to encode and decode them.

Messages that add up are all-reduced. Signs, rounded integers and largest elements do not add up: they are gathered, so
a rank receives and decodes one from every rank (exercise 13; Agarwal et al. 2022). Passes are those of exercise 13's
operators on the GPU's memory, one after another; one kernel for several of them would move less. Choosing the largest
elements, and PowerSGD's orthonormal columns, take a GPU longer than the passes that are counted for them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from labkit.predict.costs.matmul import Processor
from labkit.predict.plan import Compression, Plan
from labkit.predict.term import Term

RANK = 4
"""PowerSGD's rank."""
MATRICES = 4
"""Matrices of one layer, for the size of PowerSGD's messages, as if all were square: those of a transformer."""


class PerValue(NamedTuple):
    """Bytes for each gradient value: so many numbers of the gradients' precision, and other bytes."""

    numbers: float
    nbytes: float

    def of(self, gradient_bytes: int) -> float:
        return self.numbers * gradient_bytes + self.nbytes


class Compressor(NamedTuple):
    """A message of a gradient, and what it costs to make and to read."""

    message: PerValue
    """Without PowerSGD's, whose size depends on shapes."""
    gathered: bool
    """Whether every rank receives every rank's message."""
    encode: PerValue
    """Bytes read and written once: for the message, the residual, and the mean that is left in the gradient."""
    encode_kernels: int
    decode: PerValue
    """Bytes read and written for each received message."""
    decode_kernels: int
    residual: bool = True
    """Whether what is not sent is kept for the next step (Seide et al. 2014)."""


_NOTHING = PerValue(0, 0)
COMPRESSORS: Mapping[Compression, Compressor] = MappingProxyType(
    {
        "fp16": Compressor(PerValue(0, 2), False, PerValue(2, 4), 2, _NOTHING, 0, residual=False),
        "8-bit": Compressor(PerValue(1 / 256, 1), True, PerValue(34.0, 4.0), 21, PerValue(10.0, 1.0), 6),
        "1-bit": Compressor(PerValue(0, 1 / 8), True, PerValue(18.0, 18.5), 20, PerValue(4.0, 10.1), 8),
        "top-k": Compressor(PerValue(0.01, 0.04), True, PerValue(19.1, 0.5), 13, PerValue(6.0, 0.4), 6),
        "powersgd": Compressor(_NOTHING, False, PerValue(20.0, 0.2), 15, _NOTHING, 0),
    }
)
"""Compressors by their names in `Plan.compression`, as exercise 13 writes them: `Quantized(8)` with a unit for each 256
values, `OneBit`, `TopK(0.01)` with an index of 4 bytes, `PowerSGD(4)`. fp16: cast there and back (torch's hook)."""


class Compressed(NamedTuple):
    """All gradients of a rank, compressed in `buckets` parts of equal size."""

    plan: Plan
    parameters: float
    per_layer: float
    buckets: int

    @property
    def compressor(self) -> Compressor:
        return COMPRESSORS[self.plan.compression]

    @property
    def message_bytes(self) -> float:
        """Bytes of all messages of one rank."""
        if self.plan.compression == "powersgd":
            layers = self.parameters / self.per_layer
            sides = 2 * math.sqrt(self.per_layer * MATRICES)
            return RANK * layers * sides * self.plan.gradient_bytes
        return self.parameters * self.compressor.message.of(self.plan.gradient_bytes)

    @property
    def rounds(self) -> int:
        """Number of collectives: PowerSGD sends P, and then Q."""
        return self.buckets * (2 if self.plan.compression == "powersgd" else 1)

    def term(self, processor: Processor) -> Term:
        """Passes to encode the gradients once and to decode one message, or one from each rank, in seconds."""
        of, width, n = self.compressor, self.plan.gradient_bytes, self.plan.shared_by if self.compressor.gathered else 1
        encode, decode = of.encode.of(width), of.decode.of(width)
        nbytes = self.parameters * (encode + n * decode)
        seconds = processor.passes(nbytes, self.buckets * (of.encode_kernels + n * of.decode_kernels))
        received = f" + {decode:.3g} for each of {n} messages" if of.gathered else ""
        formula = f"{self.parameters:.4g} gradients x ({encode:.3g}{received}) bytes of passes, and launches"
        return Term("compression", "compute", seconds, formula, "exercise 13's operators; Agarwal et al. 2022")
