"""Errors on rows that are held out of a fit: folds of every source, and whole sources left out.

A fold holds whole models of a source, or whole layouts if a source has few models: repeated runs and neighbours of a
row are on the same side, so that the error is that of models (or layouts) not seen before for the source's software.
The constants are fitted to the other folds of all sources.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

from predict_fit import fit
from predict_rows import Row

from labkit.predict import Constants

Fold = dict[str, list[Row]]


def split(found: Mapping[str, Sequence[Row]], count: int) -> list[Fold]:
    """Return `count` folds, each with rows of every source that has enough groups; deterministic."""
    folds: list[Fold] = [{name: [] for name in found} for _ in range(count)]
    for name, rows in found.items():
        groups = _groups(rows, count)
        random.Random(name).shuffle(groups)
        for index, group in enumerate(groups):
            folds[index % count][name] += group
    return folds


def fitted_without(found: Mapping[str, Sequence[Row]], count: int) -> Iterator[tuple[Fold, Constants]]:
    """Yield each fold with the constants fitted to the others."""
    folds = split(found, count)
    for held in folds:
        others = {name: [row for fold in folds if fold is not held for row in fold[name]] for name in found}
        yield held, fit({name: rows for name, rows in others.items() if rows})[0]


def without_each(found: Mapping[str, Sequence[Row]]) -> Iterator[tuple[str, Constants]]:
    """Yield each source with the constants fitted to all other sources."""
    for name in found:
        yield name, fit({other: rows for other, rows in found.items() if other != name})[0]


def _groups(rows: Sequence[Row], least: int) -> list[list[Row]]:
    def collect(*fields: str) -> list[list[Row]]:
        groups: dict[tuple[object, ...], list[Row]] = {}
        for row in rows:
            sizes = (row.model.layers, row.model.width, row.model.sequence)
            groups.setdefault((*sizes, *(row.plan[field] for field in fields)), []).append(row)
        return [groups[key] for key in sorted(groups, key=repr)]

    models = collect()
    return models if len(models) >= least else collect("data", "tensor", "pipeline")
