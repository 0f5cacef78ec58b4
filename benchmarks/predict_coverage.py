"""Tables of docs/predict_accuracy.md: what each source's rows cover, and what several GPUs of a node lose.

python benchmarks/predict_coverage.py            # write them into the page
python benchmarks/predict_coverage.py --check    # compare, and exit with 1 if they differ
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import page_tables
import predict_spread
from predict import cell, errors, fresh, predicted, work
from predict_pictures import NAMES
from predict_rows import SOFTWARE, Row, rows
from predict_unseen import ON_EIGHT, scalings, unseen

from labkit.predict import FITTED
from labkit.predict.spread import SPREAD

PAGE = Path(__file__).resolve().parent.parent / "docs" / "predict_accuracy.md"


def coverage() -> list[str]:
    """Each source on one GPU, on one node and on several: rows, error and bias, beside the source's one efficiency."""
    lines = [
        "| source | models | GPUs | precision | where | rows | error (median), bias | one efficiency | in range |",
        "|---|---|---|---|---|--:|--:|--:|--:|",
    ]
    groups = {NAMES[name]: rows(name) for name in SOFTWARE}
    for name, of in unseen().items():
        source = name.replace("DeepLearningExamples", "DLE").removesuffix(ON_EIGHT)
        groups.setdefault(source, []).extend(of)
    for source, of in groups.items():
        lines += _places(source, of)
    return lines


def _places(source: str, of: Sequence[Row]) -> Iterator[str]:
    rate = statistics.median(work(row) / row.seconds for row in of)
    title = f"{source} | {_models(of)} | {_gpus(of)} | {_precisions(of)}"
    for place, chosen in {
        "1 GPU": [row for row in of if row.cluster.world_size == 1],
        "1 node": [row for row in of if row.cluster.nnodes == 1 < row.cluster.world_size],
        "nodes": [row for row in of if row.cluster.nnodes > 1],
    }.items():
        if not chosen:
            continue
        first, *_, last = sorted(row.cluster.world_size for row in [*chosen, *chosen])
        where = place if place == "1 GPU" else f"{place}, {first}{f' to {last}' if last > first else ''} GPUs"
        made = cell(errors(chosen, lambda row: predicted(row, FITTED)))
        alone = cell(errors(chosen, lambda row: work(row) / rate)) if len(of) > 1 else ""  # fitted to itself
        inside = predict_spread.coverage(predict_spread.shares(chosen, FITTED), SPREAD).inside
        yield f"| {title} | {where} | {len(chosen)} | {made} | {alone} | {inside:.0%} |"
        title = "| | | "


def _models(of: Sequence[Row]) -> str:
    names = {row.model.name for row in of}
    if len(names) <= 2:
        return ", ".join(sorted(names))
    billions = [row.model.parameters / 1e9 for row in of]
    return f"{len(names)}, {min(billions):.2g} to {max(billions):.4g} billion"


def _gpus(of: Sequence[Row]) -> str:
    return ", ".join(sorted({row.cluster.gpu.name for row in of}))


def _precisions(of: Sequence[Row]) -> str:
    return ", ".join(sorted({row.plan.get("precision", "bf16") for row in of}))


def losses() -> list[str]:
    """Rates on all GPUs of a node over those of as many single GPUs: what is lost, measured and predicted."""
    lost: dict[tuple[str, str, str, int], list[tuple[float, float]]] = {}
    for one in scalings():
        half = "16 bits" if one.precision == "amp" else "TF32, fp32"
        network = "BERT-Large" if "BERT" in one.network else "ResNets" if "PyTorch" in one.software else "ResNet-50"
        key = (f"{network}, {one.software.split(' (')[0]}", one.gpu[:4], half, one.gpus)
        lost.setdefault(key, []).append((1 - one.measured / one.gpus, 1 - one.predicted / one.gpus))
    lines = ["| | GPUs | precision | pairs | lost, measured | predicted |", "|---|--:|---|--:|--:|--:|"]
    for (software, gpu, half, gpus), pairs in lost.items():
        spans = [_span([pair[i] for pair in pairs]) for i in (0, 1)]
        lines.append(f"| {software} | {gpus} {gpu} | {half} | {len(pairs)} | {' | '.join(spans)} |")
    return lines


def _span(shares: Sequence[float]) -> str:
    ends = [f"{100 * end:.1f}" for end in (min(shares), max(shares))]
    return f"{' to '.join(dict.fromkeys(ends))} %"


TABLES = {"coverage": coverage, "unseen": fresh, "node": losses}


def filled(page: str) -> str:
    """Return the page's text with all tables made anew."""
    return page_tables.filled(page, TABLES, TABLES)


if __name__ == "__main__":
    sys.exit(page_tables.main(__doc__ or "", PAGE, filled))
