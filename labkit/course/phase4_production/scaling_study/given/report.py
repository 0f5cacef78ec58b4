"""Reports of a scaling study as Markdown, HTML with pictures, JSON and CSV. Each row says where its times come from."""

from __future__ import annotations

import csv
import html
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from labkit.course.phase4_production.scaling_study.given.laws import Fit
from labkit.course.phase4_production.scaling_study.given.records import Measurement, ScalingPoint
from labkit.trace import views

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")
VARIANTS = ("compression", "hierarchy")
"""Variants of a strategy, which are measured as strategies of their own: `ddp+compression`."""
FORMATS = ("markdown", "html", "json", "csv")
ORIGIN_NOTE = (
    "real: clocks of real ranks. virtual: the virtual cluster's modelled clock. predict: formulas, nothing was run. "
    "overhead: exposed communication as a share of the step, and the same with compressed gradients or a "
    "hierarchical all-reduce; utilization is the rest. GB/s: bus bandwidth. An empty cell was not measured."
)


@dataclass(frozen=True)
class Row:
    """A point of a study with what follows from it: a row of the report."""

    point: ScalingPoint
    samples_per_second: float
    """Throughput of all ranks together."""
    ratio: float
    """Exposed communication over computing time."""
    others: Mapping[str, float] = field(default_factory=dict)
    """Overhead of the same steps with other communication, "compression" or "hierarchy", where it was measured."""

    @property
    def measurement(self) -> Measurement:
        return self.point.measurement

    def to_plain(self) -> dict[str, Any]:
        """Return all figures by name: columns of CSV, and objects of JSON. None: not measured."""
        of = self.measurement
        rate = self.samples_per_second
        collectives = {f"{name}_gb_per_s": of.gb_per_s.get(name) for name in COLLECTIVES}
        others = {f"overhead_with_{name}": self.others.get(name) for name in VARIANTS}
        return {
            "scaling": self.point.scaling,
            "origin": of.origin,
            "cluster": of.cluster,
            "model": of.model,
            "strategy": of.strategy,
            "gpus": of.world_size,
            "batch_per_gpu": of.batch_size,
            "step_seconds": of.seconds,
            "spread": of.spread,
            "exposed_seconds": max(0.0, of.seconds - of.computing),
            "samples_per_second": rate,
            "samples_per_second_per_gpu": rate / of.world_size,
            "tokens_per_second": rate * of.tokens_per_sample,
            "memory_gb": of.memory_bytes / 1e9 if of.memory_bytes else None,
            "utilization": 1 - overhead(of),
            "overhead": overhead(of),
            **others,
            **collectives,
            "communication_to_computation": self.ratio,
            "efficiency": self.point.efficiency,
        }


def overhead(measurement: Measurement) -> float:
    """Return exposed communication as a share of the step. Not below 0, whatever the clock's noise."""
    return max(0.0, 1 - measurement.computing / measurement.seconds)


def with_others(rows: Sequence[Row]) -> list[Row]:
    """Return the rows, each with the overheads of the rows of its strategy's variants, such as `ddp+compression`."""

    def key(of: Measurement, strategy: str) -> tuple[Any, ...]:
        return of.origin, of.cluster, of.model, of.world_size, of.batch_size, strategy

    known = {key(row.measurement, row.measurement.strategy): overhead(row.measurement) for row in rows}
    found = []
    for row in rows:
        keys = {name: key(row.measurement, f"{row.measurement.strategy}+{name}") for name in VARIANTS}
        found.append(replace(row, others={name: known[own] for name, own in keys.items() if own in known}))
    return found


HEADINGS = (
    "times", "strategy", "GPUs", "batch/GPU", "step, ms", "spread", "exposed, ms", "samples/s", "per GPU", "tokens/s",
    "GB/GPU", "utilization", "overhead", *(f"with {name}" for name in VARIANTS),
    *(f"{name.replace('_', '-')}, GB/s" for name in COLLECTIVES), "comm/comp", "efficiency",
)  # fmt: skip


def cells(row: Row) -> list[str]:
    """Return a row of a table, under `HEADINGS`."""
    of, plain = row.measurement, row.to_plain()
    tokens = f"{plain['tokens_per_second']:,.0f}" if of.tokens_per_sample > 1 else ""
    return [
        of.origin,
        of.strategy,
        str(of.world_size),
        str(of.batch_size),
        f"{1e3 * of.seconds:,.4g}",
        f"{of.spread:.1%}" if of.origin == "real" else "",
        f"{1e3 * plain['exposed_seconds']:,.3g}",
        f"{row.samples_per_second:,.4g}",
        f"{plain['samples_per_second_per_gpu']:,.4g}",
        tokens,
        f"{plain['memory_gb']:.2f}" if of.memory_bytes else "",
        f"{plain['utilization']:.1%}",
        f"{plain['overhead']:.1%}",
        *("" if row.others.get(name) is None else f"{row.others[name]:.1%}" for name in VARIANTS),
        *(f"{of.gb_per_s[name]:,.3g}" if name in of.gb_per_s else "" for name in COLLECTIVES),
        f"{row.ratio:.3f}",
        f"{row.point.efficiency:.1%}",
    ]


def report(rows: Sequence[Row], fits: Sequence[tuple[str, Fit]], format: str) -> str:
    """Return the report; fits come with the name of their curve. Raises ValueError for another format."""
    rows = with_others(rows)
    if format == "json":
        named = [{"curve": name, **asdict(fit)} for name, fit in fits]
        return json.dumps({"points": [row.to_plain() for row in rows], "fits": named}, indent=2) + "\n"
    if format == "csv":
        text = io.StringIO()
        plain = [row.to_plain() for row in rows]
        writer = csv.DictWriter(text, list(plain[0]) if plain else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(plain)
        return text.getvalue()
    return _markdown(rows, fits) if format == "markdown" else _html(rows, fits)


def in_words(name: str, fit: Fit) -> str:
    """Return a fit as a sentence."""
    shares = ", ".join(f"{name} {value:.4f}" for name, value in fit.parameters.items())
    return f"{name}: {fit.law} with {shares}, {fit.error:.1%} off on average. {fit.limit}"


def _studies(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows by the title of their table."""
    tables: dict[str, list[Row]] = {}
    for row in rows:
        of = row.measurement
        where = ", ".join(filter(None, [of.model, of.cluster]))
        tables.setdefault(f"{row.point.scaling.capitalize()} scaling{f': {where}' if where else ''}", []).append(row)
    return tables


def _markdown(rows: Sequence[Row], fits: Sequence[tuple[str, Fit]]) -> str:
    parts = ["# Scaling study\n"]
    for title, own in _studies(rows).items():
        lines = [HEADINGS, ("---", "---", *("---:" for _ in HEADINGS[2:])), *map(cells, own)]
        parts.append(f"## {title}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines))
    if fits:
        parts.append("## What limits it\n\n" + "".join(f"- {in_words(*fit)}\n" for fit in fits))
    return "\n".join([*parts, f"{ORIGIN_NOTE}\n"])


def _html(rows: Sequence[Row], fits: Sequence[tuple[str, Fit]]) -> str:
    def line(texts: Sequence[str], tag: str, look: str = "") -> str:
        return f"<tr{look}>" + "".join(f"<{tag}>{html.escape(text)}</{tag}>" for text in texts) + "</tr>"

    parts = []
    for title, own in _studies(rows).items():
        body = "\n".join(line(cells(row), "td", f" class='{row.measurement.origin}'") for row in own)
        picture: str = views.make("scaling_study", [row.point for row in own])
        parts.append(f"<h2>{html.escape(title)}</h2>\n{picture}\n<table>\n{line(HEADINGS, 'th')}\n{body}\n</table>")
    if fits:
        items = "\n".join(f"<li>{html.escape(in_words(*fit))}</li>" for fit in fits)
        parts.append(f"<h2>What limits it</h2>\n<ul>\n{items}\n</ul>")
    body = "\n".join(parts)
    return (
        "<!doctype html>\n<html lang='en'><meta charset='utf-8'><title>Scaling study</title>\n"
        f"<style>{_STYLE}</style>\n<h1>Scaling study</h1>\n{body}\n<p>{html.escape(ORIGIN_NOTE)}</p>\n</html>\n"
    )


_STYLE = (
    "body { font-family: sans-serif; margin: 2em } table { border-collapse: collapse } img { max-width: 100% } "
    "td, th { text-align: right; padding: .2em .8em } td:nth-child(-n+2), th:nth-child(-n+2) { text-align: left } "
    "tr.virtual td { font-style: italic } tr.predict td { font-style: italic; color: #666 }"
)
