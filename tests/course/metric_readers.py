"""Metrics of a training, by the readers of TensorBoard and Prometheus."""

from __future__ import annotations

import socket
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def two_free_ports() -> int:
    """Return a port that is free, as is the next one."""
    while True:
        with socket.socket() as one, socket.socket() as next_one:
            one.bind(("127.0.0.1", 0))
            port = int(one.getsockname()[1])
            try:
                next_one.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return port


def read_board(folder: Path) -> EventAccumulator:
    board = EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0})
    board.Reload()
    return board


def scalars(board: EventAccumulator, name: str) -> dict[int, float]:
    return {event.step: event.value for event in board.Scalars(name)}


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Return the values of a page of Prometheus by name and labels."""
    return {
        (sample.name, *(f"{name}={value}" for name, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
