"""The table of docs/before_you_buy.md: one model on 16 H100 with three networks, by FSDP and by what suits it.

python benchmarks/before_you_buy.py              # write it into the page
python benchmarks/before_you_buy.py --check      # compare, and exit with 1 if it differs
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import page_tables
from strategies import described

from labkit.hardware import Topology, topology
from labkit.predict import Prediction, model, search

PAGE = Path(__file__).resolve().parent.parent / "docs" / "before_you_buy.md"
MODEL, BATCH = model("llama3-8b"), 1024
NETWORKS = {
    "8 x 400 Gbit/s": {},
    "1 x 100 Gbit/s": {"nics_per_node": 1, "inter_node": "ethernet-100g"},
    "1 x 25 Gbit/s": {"nics_per_node": 1, "inter_node": "ethernet-25g"},
}


def networks() -> list[str]:
    """The fastest FSDP and the fastest layout of all, for each network."""
    lines = [
        "| a node's cards | fastest FSDP | tokens/s | MFU | fastest layout | tokens/s | MFU |",
        "|---|---|--:|--:|---|--:|--:|",
    ]
    for name, settings in NETWORKS.items():
        cluster: Topology = topology("dgx-h100", nnodes=2, settings=settings)
        found = search(MODEL, BATCH, cluster)
        sharded = search(MODEL, BATCH, cluster, data=16, zero=3)
        layouts = (f"{described(one.plan)} | {_speed(one)}" for one in (sharded.best, found.best))
        lines.append(f"| {name} | {' | '.join(layouts)} |")
    return lines


def _speed(made: Prediction) -> str:
    return f"{round(made.tokens_per_second, -3):,.0f} | {made.mfu():.0%}"


TABLES: dict[str, Callable[[], list[str]]] = {"networks": networks}


def filled(page: str, names: Sequence[str] = tuple(TABLES)) -> str:
    """Return the page with its table made anew."""
    return page_tables.filled(page, TABLES, names)


if __name__ == "__main__":
    sys.exit(page_tables.main(__doc__ or "", PAGE, filled))
