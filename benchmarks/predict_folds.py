"""Errors on rows that took no part in a fit: folds of every source, and whole sources left out.

A fold holds whole models of a source, or whole layouts where a source has few models: repeated runs and neighbours of a
row stand on the same side, so that the error is that of models (or layouts) which the source's software has not run
before. The constants are fitted to the other folds of all sources.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

from predict_fit import fit
from predict_rows import Row

from labkit.predict import Constants

Fold = dict[str, list[Row]]


def split(found: Mapping[str, Sequence[Row]], count: int) -> list[Fold]:
    """`count` folds, each with rows of every source that has enough groups; the same whenever it is called."""
    folds: list[Fold] = [{name: [] for name in found} for _ in range(count)]
    for name, rows in found.items():
        groups = _groups(rows, count)
        random.Random(name).shuffle(groups)
        for index, group in enumerate(groups):
            folds[index % count][name] += group
    return folds


def fitted_without(found: Mapping[str, Sequence[Row]], count: int) -> Iterator[tuple[Fold, Constants]]:
    """Each fold with the constants that the others ask for."""
    folds = split(found, count)
    for held in folds:
        others = {name: [row for fold in folds if fold is not held for row in fold[name]] for name in found}
        yield held, fit({name: rows for name, rows in others.items() if rows})[0]


def without_each(found: Mapping[str, Sequence[Row]]) -> Iterator[tuple[str, Constants]]:
    """Each source with the constants that all other sources ask for."""
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
