"""How the FLOPs of a step are counted: the lab's model FLOPs, and the counts of published sources."""

from __future__ import annotations

from typing import Literal

Convention = Literal["model", "hardware", "palm", "megatron", "6n"]
CONVENTIONS: dict[Convention, str] = {
    "model": "products of forward and backward, attention over the pairs that its mask leaves",
    "hardware": "model, and what recomputation does again",
    "palm": "model, but attention over all s x s pairs, masked ones too (Chowdhery et al. 2022, appendix B)",
    "megatron": "palm, and what recomputation does again (Narayanan et al. 2021, equation 3)",
    "6n": "6 x parameters x tokens (Kaplan et al. 2020)",
}
"""How FLOPs are counted. The lab's MFU is of "model", its HFU of "hardware"; the others are those of sources."""
ALL_PAIRS: tuple[Convention, ...] = ("palm", "megatron")
"""Conventions that count masked pairs of attention."""
RECOMPUTED: tuple[Convention, ...] = ("hardware", "megatron")
"""Conventions that count recomputation."""
