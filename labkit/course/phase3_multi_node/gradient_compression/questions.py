"""Questions of gradient_compression. Bytes are those of the learner's own messages; times are those of the runs."""

from __future__ import annotations

from typing import Any

import torch

from labkit.questions import Number


def bytes_of(kind: str, **arguments: Any) -> float:
    """Return the bytes of the learner's message for a gradient of (1000, 1000)."""
    from labkit.exercises import gradient_compression

    compressor = getattr(gradient_compression, kind)(**arguments)
    return float(sum(part.nbytes for part in compressor.compress(torch.ones(1000, 1000), "weight")))


QUESTIONS = [
    Number(
        name="gathered_bytes",
        text="**Predict**: the largest 1 % of a gradient are sent as a float32 and an int32 each, and gathered. A ring "
        "all-reduce of the whole gradient brings each rank nearly 8 bytes for each element, however many ranks there "
        "are. How many does gathering bring each of 1,024 ranks?",
        answer=lambda ranks: 0.01 * 8 * (ranks[-1] - 1),
        solution="0.01 * 8 * 1023",
        unit="bytes",
        tolerance=0.02,
        near={
            "0.08": "that is one rank's message, and each of 1,023 others sends one.",
            "0.01 * 4 * 1023": "an index takes as much as a value.",
            "8": "what is gathered grows with the number of ranks.",
        },
        otherwise="How many bytes for each element in one message, and from how many ranks?",
        why="Each of 1,023 others sends 0.01 · 8 bytes for each element: {answer:.0f}, ten times as much as the "
        "all-reduce of everything. At a hundred ranks both are equal: 99 % of the gradient are dropped for nothing.",
        shown_by="the picture below",
    ),
    Number(
        name="fast_network",
        text="**Predict**: on 64 A100 with 400 Gb/s between machines, an all-reduce of 100 MB was measured in part 1. "
        "How many milliseconds does your TopK take, if it sends 1 %, with all that it computes?",
        answer=lambda fast: fast["TopK 1 %"],
        solution="28",
        unit="ms",
        tolerance=0.5,
        near={
            "1.1 * 0.01": "messages are small, but each rank gets 64 of them, and unpacks 64 of them.",
            "1.1 * 0.02": "messages are small, but each rank gets 64 of them, and unpacks 64 of them.",
        },
        otherwise="64 messages become tensors of 100 MB each, which are added. An A100 moves 100 MB in about 0.1 ms.",
        why="{answer:.0f} ms. The network was not what took time: each of 64 messages becomes a tensor of 100 MB, "
        "which is added to the others.",
        shown_by="the picture below",
    ),
    Number(
        name="one_bit_bytes",
        text="**a** How many bytes has your OneBit's message for a weight of 1000 × 1000, in float32?",
        answer=lambda: bytes_of("OneBit"),
        solution="1000 * 1000 / 8 + 4",
        unit="bytes",
        near={
            "125000": "the mean magnitude travels, too.",
            "1000000": "that is a byte for each sign.",
            "1000000 + 4": "that is a byte for each sign.",
        },
        otherwise="Eight signs fit into a byte.",
        why="125,000 bytes of signs and a float32: {answer:,.0f} bytes.",
    ),
    Number(
        name="power_sgd_bytes",
        text="**b** And how many bytes has PowerSGD's at rank 4, P and Q together?",
        answer=lambda: bytes_of("PowerSGD", rank=4),
        solution="4 * (1000 + 1000) * 4",
        unit="bytes",
        near={
            "4 * (1000 + 1000)": "so many numbers. How many bytes has each?",
            "4 * 1000 * 4": "that is one of the two factors.",
        },
        otherwise="P is (1000, 4) and Q is (1000, 4).",
        why="Two factors of 4,000 numbers: {answer:,.0f} bytes, a 125th of the gradient, whatever the number of ranks.",
    ),
    Number(
        name="rounds_until_sent",
        text="**c** A gradient element is 0.03 at every step, and elements are rounded to the nearest multiple of "
        "0.25. With error feedback, at which step, counted from 1, is it sent for the first time?",
        answer=lambda: next(step for step in range(1, 100) if round(step * 0.03 / 0.25) > 0),
        solution="5",
        near={
            "9": "0.25 is the nearest multiple from 0.125 on.",
            "4": "4 · 0.03 = 0.12 is still nearer to 0.",
        },
        otherwise="From which sum on is 0.25 nearer than 0?",
        why="After {answer:.0f} steps 0.15 are owed, which is nearer to 0.25 than to 0. Without the residual it would "
        "never be sent.",
    ),
]
