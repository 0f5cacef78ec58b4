"""The pictures of docs/predict.md: predictions beside published runs, a search's layouts, some layouts in parts.

python benchmarks/predict_pictures.py docs/images
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from predict_rows import SOFTWARE, Row, rows
from predict_unseen import CONVOLUTIONAL, ON_EIGHT, unseen

from labkit.hardware import topology
from labkit.plots import Picture, beside_measured, layouts, predicted_memory, predicted_step
from labkit.predict import Plan, model, predict, predict_range, search

NAMES = {
    "megatron_sc21": "Megatron-LM, SC21",
    "seqpar_2205_05198": "Korthikanti et al.",
    "vtrain_single": "vTrain, one node",
    "vtrain_multi": "vTrain, 64 and 512 A100",
    "zero_bubble_2401_10241": "zero bubble",
    "mcore_h100_readme": "Megatron-Core, H100",
    "llm_foundry_mpt": "LLM Foundry",
    "torchtitan": "torchtitan",
    "ultrascale_nanotron": "nanotron, H100",
}


def pairs(of: list[Row]) -> list[tuple[float, float]]:
    """Return measured and predicted seconds."""
    return [(row.seconds, predict_range(row.model, row.plan, row.cluster).step_seconds.middle) for row in of]


def pictures() -> Iterator[tuple[str, Picture]]:
    fitted = {NAMES.get(name, name): pairs(rows(name)) for name in SOFTWARE}
    yield "predicted_fitted", beside_measured(fitted, title="Runs that took part in the fit")
    blind: dict[str, list[tuple[float, float]]] = {}
    for name, of in unseen().items():
        source, _, network = name.partition(", ")
        together = network.removesuffix(ON_EIGHT) in CONVOLUTIONAL
        blind.setdefault(f"{source}, ResNets" if together else name, []).extend(pairs(of))
    yield "predicted_unseen", beside_measured(blind, title="Runs that no fit has used")
    cluster, gpt = topology("dgx-a100", nnodes=4), model("gpt-13b")
    yield "predicted_layouts", layouts(search(gpt, 256, cluster))
    parallel = {"tensor": 4, "sequence_parallel": True, "zero": 1}
    plans = {
        "ZeRO 3": Plan(256, 4, data=32, zero=3),
        "tensor 4": Plan(256, 2, data=8, **parallel),
        "tensor 4, pipeline 4": Plan(256, 1, data=2, pipeline=4, **parallel),
        "the same, all recomputed": Plan(256, 1, data=2, pipeline=4, recompute="full", **parallel),
        "DDP": Plan(256, 1, data=32),
    }
    made = {name: predict(gpt, plan, cluster) for name, plan in plans.items()}
    yield "predicted_step", predicted_step(made, "gpt-13b on 32 A100, batch 256")
    yield "predicted_memory", predicted_memory(made, "gpt-13b on 32 A100, batch 256")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    for name, picture in pictures():
        (folder / f"{name}.png").write_bytes(picture.png())
        print(f"{folder / name}.png: {picture.alt.split('. ')[0]}")


if __name__ == "__main__":
    main()
