"""Cost of the course on a cloud, for each learner and phase, as the tables of docs/sites.md.

    python cluster/cost.py [--prices FILE] [--no-gpus]

Times are the catalogue's, prices those of prices.toml beside this file, and the trainings' steps are predicted
(labkit.predict): the fastest layout that fits, without failures.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labkit.catalogue import entries
from labkit.predict import model, run, search
from labkit.predict.command import parse_cluster
from labkit.text_files import read_text

PRICES = Path(__file__).parent / "prices.toml"
_BATCH_TOKENS = 524_288
"""Of a step of the trainings: half a million, as in Brown et al. 2020, table 2.1, for models up to 760 million."""


def phases_table(prices: Mapping[str, Any], with_gpus: bool = True) -> str:
    """A row for each phase, and their sum; dollars per learner."""
    rows, total, all_hours = [], 0.0, 0.0
    for name, phase in prices["phases"].items():
        minutes = [each.minutes for each in entries() if each.name.startswith(f"{name}/")]
        hours, server = sum(minutes) / 60, prices["machines"][phase["server"]]
        dollars = hours * server["dollars"] / server["learners"]
        held = phase["minutes"] * len(minutes) / 60 * with_gpus
        nodes = held * phase["count"] * prices["machines"][phase["nodes"]]["dollars"]
        total, all_hours = total + dollars + nodes, all_hours + hours
        where = f"{phase['count']} {phase['nodes']}, {held:.1f} h" if with_gpus else "none"
        rows.append(
            f"| {name} | {len(minutes)} | {hours:.1f} | {dollars:.2f} | {where} | {nodes:.2f} | {dollars + nodes:.2f} |"
        )
    head = [
        "| phase | exercises | hours | notebook, $ | nodes | nodes, $ | together, $ |",
        "|---|--:|--:|--:|---|--:|--:|",
    ]
    return "\n".join([*head, *rows, f"| all | | {all_hours:.1f} | | | | {total:.2f} |"])


def trainings_table(prices: Mapping[str, Any]) -> str:
    """A row for each training, predicted."""
    rows = []
    for each in prices["trainings"]:
        described, machine = model(each["model"]), prices["machines"][each["machine"]]
        best = search(described, _BATCH_TOKENS // described.sequence, parse_cluster(each["cluster"])).best
        whole = run(best, each["tokens"] / described.sequence, machine["dollars"] / machine["gpus"])
        rows.append(
            f"| {each['model']} | {each['tokens'] / 1e9:,.0f} billion | {each['cluster']} | {best.step_seconds:.2f} | "
            f"{whole.hours / 24:,.1f} | {whole.gpu_hours:,.0f} | {whole.dollars:,.0f} |"
        )
    head = ["| model | tokens | cluster | step, s | days | GPU hours | dollars |", "|---|--:|---|--:|--:|--:|--:|"]
    return "\n".join([*head, *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--prices", type=Path, default=PRICES)
    parser.add_argument("--no-gpus", action="store_true", help="a course on virtual ranks and processes alone")
    options = parser.parse_args()
    prices = tomllib.loads(read_text(options.prices))
    print(phases_table(prices, not options.no_gpus), trainings_table(prices), sep="\n\n")


if __name__ == "__main__":
    main()
