"""Errors of predictions compared with published measurements, by source.

    python benchmarks/predict.py              parts, memory, and whole steps: unfitted, fitted, and a baseline
    python benchmarks/predict.py --fit        fit the constants to the rows: FITTED in labkit.predict
    python benchmarks/predict.py --folds 5    also the error of the held-out fifth of each source (minutes)
    python benchmarks/predict.py --leave-out  also each source with constants that were fitted without it (minutes)
    python benchmarks/predict.py --unseen     only the rows that no fit has used, one by one
    python benchmarks/predict.py --rows NAME  every row of one source
    --measured DIR                            other rows in the same columns, such as ones that no fit has seen

The baseline is a constant efficiency: FLOPs with recomputation / (GPUs x peak x e), e fitted to the source's own rows.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from predict_fit import FREE, fit
from predict_memory import memory, out_of_memory
from predict_rows import MEASURED, SOFTWARE, Row, read, rows
from predict_spread import Coverage, coverage, families, fit_spread, left_out, shares
from predict_unseen import BLIND, efficiencies, layer_seconds, unseen

from labkit.hardware import topology
from labkit.predict import COMPONENTS, FITTED, Constants, OneOf, Plan, model, predict, predict_range, search
from labkit.predict.costs.collectives import Group, Wires
from labkit.predict.spread import COVERAGE, SPREAD


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--folds", type=int, default=0, metavar="K")
    parser.add_argument("--leave-out", action="store_true")
    parser.add_argument("--unseen", action="store_true")
    parser.add_argument("--rows", metavar="NAME", choices=SOFTWARE)
    parser.add_argument("--measured", type=Path, default=MEASURED)
    options = parser.parse_args()
    sources = {name: made for name in SOFTWARE if (made := rows(name, options.measured))}
    if options.unseen:
        for of in unseen(options.measured).values():
            each(of)
        blind(options.measured)
    elif options.rows:
        each(sources.get(options.rows, []))
    elif options.fit:
        print(f"{'constant':<20} {'fitted':>8} {'+-':>8} {'shipped':>8}")
        for name, one in fit(sources)[1].items():
            print(f"{name:<20} {one.value:>8.4g} {one.uncertainty:>8.2g} {shipped(name):>8.4g}  {one.remark}")
        print(f"\n{'part of a step':<30} {'faster':>8} {'slower':>8} {'shipped':>18}")
        for part, spread in fit_spread({name: shares(of, FITTED) for name, of in families(sources).items()}).items():
            faster, slower = SPREAD[part]
            print(f"{part:<30} {spread.faster:>8.3g} {spread.slower:>8.3g} {faster:>9.3g} {slower:>8.3g}")
    else:
        parts(options.measured)
        memory(sources)
        out_of_memory(sources)
        whole(sources, options.folds, options.leave_out)
        ranges(sources, options.measured, options.leave_out)
        blind(options.measured)
        speed()
    return 0


def shipped(name: str) -> float:
    """The value of a free constant in FITTED, in its own units."""
    field, _, gpu = name.partition(" ")
    value = getattr(FITTED, field)
    return value[gpu] if gpu else value / next(free.scale for free in FREE if free.name == name)


def whole(found: dict[str, list[Row]], folds: int, leave_out: bool) -> None:
    """Print one row per source: error on fitted rows, error on held-out rows, and a baseline."""
    columns: dict[str, dict[str, list[float]]] = {
        "COMPONENTS": {name: errors(of, lambda row: predicted(row, COMPONENTS)) for name, of in found.items()},
        "FITTED": {name: errors(of, lambda row: predicted(row, FITTED)) for name, of in found.items()},
    }
    if folds:
        from predict_folds import fitted_without

        held_out: dict[str, list[float]] = {name: [] for name in found}
        for number, (fold, chosen) in enumerate(fitted_without(found, folds), 1):
            print(f"fold {number} of {folds} is fitted", file=sys.stderr)
            for name, of in fold.items():
                held_out[name] += errors(of, lambda row, chosen=chosen: predicted(row, chosen))  # type: ignore[misc]
        columns["other folds"] = held_out
    if leave_out:
        from predict_folds import without_each

        columns["other sources"] = {}
        for name, chosen in without_each(found):
            print(f"{name} is left out", file=sys.stderr)
            columns["other sources"][name] = errors(found[name], lambda row, chosen=chosen: predicted(row, chosen))  # type: ignore[misc]
    columns["one efficiency"] = {}
    for name, of in found.items():
        rate = statistics.median(work(row) / row.seconds for row in of)
        columns["one efficiency"][name] = errors(of, lambda row, rate=rate: work(row) / rate)  # type: ignore[misc]
    print("\nstep time: mean absolute error (median), bias. COMPONENTS saw no run, FITTED saw these rows")
    print(f"| source | rows | {' | '.join(columns)} |\n|{'---|' * (2 + len(columns))}")
    for name, of in found.items():
        print(f"| {name} | {len(of)} | {' | '.join(cell(column[name]) for column in columns.values())} |")
    by_size(found, {name: column for name, column in columns.items() if name != "other folds"})
    if "ultrascale_nanotron" in found:
        layouts(found["ultrascale_nanotron"])


def ranges(found: dict[str, list[Row]], folder: Path, leave_out: bool) -> None:
    """Print how many measured steps are inside their range, and how wide it is."""
    print(f"\nsteps inside the range that is meant to hold {COVERAGE:.0%}, upper / lower end (median)")
    out = dict(left_out(found)) if leave_out else {}
    print("| family | rows | inside | width | inside, family left out | width |\n|---|---|---|---|---|---|")
    used = {name: coverage(shares(of, FITTED), SPREAD) for name, of in families(found).items()}
    for name, covered in used.items():
        without = f"{out[name].inside:.0%} | {out[name].width:.2f}" if name in out else " | "
        print(f"| {name} | {covered.rows} | {covered.inside:.0%} | {covered.width:.2f} | {without} |")
    for name, of in unseen(folder).items():  # which no fit has used
        covered = coverage(shares(of, FITTED), SPREAD)
        print(f"| {name} | {covered.rows} | | | {covered.inside:.0%} | {covered.width:.2f} |")

    def means(of: Sequence[Coverage]) -> str:
        rows = sum(covered.rows * covered.inside for covered in of) / sum(covered.rows for covered in of)
        return f"{statistics.mean(covered.inside for covered in of):.0%}, of all rows {rows:.0%}"

    last = means(list(out.values())) if out else ""
    print(f"| mean of the families | {len(used)} | {means(list(used.values()))} | | {last} | |")


SIZES = ((1, 8), (9, 64), (65, 512), (513, 1 << 20))
"""Numbers of GPUs, first and last."""


def by_size(found: dict[str, list[Row]], columns: dict[str, dict[str, list[float]]]) -> None:
    """Print the same errors by the number of GPUs, over all sources."""
    print(f"| GPUs | rows | {' | '.join(columns)} |\n|{'---|' * (2 + len(columns))}")
    for first, last in SIZES:
        chosen = [(name, i) for name, of in found.items() for i, row in enumerate(of)
                  if first <= row.cluster.world_size <= last]  # fmt: skip
        if chosen:
            cells = [cell([column[name][i] for name, i in chosen]) for column in columns.values()]
            print(f"| {first} to {last} | {len(chosen)} | {' | '.join(cells)} |")


def cell(signed: Sequence[float]) -> str:
    absolute = [abs(error) for error in signed]
    return f"{statistics.mean(absolute):.1%} ({statistics.median(absolute):.1%}), {statistics.mean(signed):+.1%}"


def blind(folder: Path) -> None:
    """Print `fresh`, and Horovod's scaling efficiencies."""
    print("\nstep time, never used in a fit: mean absolute error (median), bias")
    print("\n".join(fresh(folder)))
    for network, real, made in efficiencies(folder):
        print(f"Horovod's scaling efficiency of {network} on 128 P100: {real:.0%}, predicted {made:.1%}")


def fresh(folder: Path = MEASURED) -> list[str]:
    """Return a table of sources that no fit has used: errors of the first prediction, then with the constants of parts
    and with those fitted to other sources."""
    lines = ["| source | rows | blind | COMPONENTS | FITTED | one efficiency |", "|---|---|---|---|---|---|"]
    for name, of in unseen(folder).items():
        rate = statistics.median(work(row) / row.seconds for row in of)
        columns = [
            errors(of, lambda row: predicted(row, COMPONENTS)),
            errors(of, lambda row: predicted(row, FITTED)),
            errors(of, lambda row, rate=rate: work(row) / rate),  # type: ignore[misc]
        ]
        cells = [cell(column) for column in columns]
        if len(of) == 1:
            cells[-1] = ""  # fitted to itself
        lines.append(f"| {name} | {len(of)} | {BLIND.get(name, '')} | {' | '.join(cells)} |")
    layers = [[made / real - 1 for real, made in layer_seconds(folder, chosen)] for chosen in (COMPONENTS, FITTED)]
    name = "Korthikanti et al., table 4, one layer"
    if layers[0]:
        lines.append(f"| {name} | {len(layers[0])} | {BLIND[name]} | {' | '.join(map(cell, layers))} | |")
    return lines


def layouts(of: Sequence[Row]) -> None:
    """Print how well predictions order layouts, and how good the selected one is."""
    if len(of) < 3:
        return
    ranks = spearman([row.seconds for row in of], [predicted(row, FITTED) for row in of])
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in of:
        groups.setdefault((row.model.name, row.cluster.world_size), []).append(row)
    print("\nlayouts of ultrascale_nanotron, FITTED: how far the selected one is from the best")
    print(f"Spearman over all rows {ranks:.3f}")
    for (name, gpus), group in groups.items():
        if len(group) < 5:
            continue
        best = min(row.seconds for row in group)
        within = spearman([row.seconds for row in group], [predicted(row, FITTED) for row in group])
        fastest = min(group, key=lambda row: predicted(row, FITTED)).seconds / best - 1
        safest = min(group, key=slowest).seconds / best - 1
        print(
            f"  {name}, {gpus:>3} GPUs, {len(group):>2} layouts: Spearman {within:.3f}, "
            f"by the prediction {fastest:.1%}, by the upper end of its range {safest:.1%}"
        )


def slowest(row: Row) -> float:
    return predict_range(row.model, row.plan, row.cluster).step_range.high


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    def ranked(values: Sequence[float]) -> list[float]:
        order = sorted(range(len(values)), key=values.__getitem__)
        places = [0.0] * len(values)
        for place, index in enumerate(order):
            places[index] = float(place)
        return places

    return statistics.correlation(ranked(a), ranked(b))


def parts(folder: Path) -> None:
    """Print errors of collectives of 1 MB and more on GPUs of one node."""
    signed: dict[str, list[float]] = {}
    for source in ("microbench_comm_gemm", "microbench_gather_scatter"):
        for row in read(source, folder):
            collective, n = COLLECTIVES.get(row["model"]), row["gpus"]
            size = re.search(r"message (\d+)( B|[KMG])", row["metric"])
            if collective is None or size is None or n not in ("2", "8"):
                continue
            nbytes = _message_bytes(int(size[1]), size[2])
            if nbytes < 2**20:
                continue
            passes, value = (2 if collective == "all_reduce" else 1), float(row["value"])
            rate = value * 1e9 / (passes * (int(n) - 1) / int(n))
            measured = value * 1e-6 if row["unit"] == "us" else nbytes / rate
            preset = next(preset for gpu, preset in MACHINES.items() if row["gpu"].startswith(gpu))
            seconds = getattr(Wires(topology(preset), COMPONENTS), collective)(nbytes, Group(int(n), int(n)))
            name = f"{row['model']}, {row['gpu'][:4]}, {n} GPUs, {row['source'][:12]}"
            signed.setdefault(name, []).append(seconds / measured - 1)
    print("collectives of 1 MB and more, constants of parts")
    for name, values in signed.items():
        print(line(name, values))


COLLECTIVES = {"all-reduce": "all_reduce", "all-gather": "all_gather", "reduce-scatter": "reduce_scatter"}
MACHINES = {"V100": "dgx-1", "A100": "dgx-a100", "H100": "dgx-h100", "H200": "dgx-h200"}


def _message_bytes(number: int, unit: str) -> float:
    """Convert a size to bytes; bytes are exact, megabytes are rounded powers of two."""
    if unit == "M":
        return 2.0 ** (20 + round(math.log2(number)))
    return number * {" B": 1.0, "K": 1e3, "G": 2.0**30}[unit]


def speed() -> None:
    print("\ntime of one prediction, of the processor")
    for gpus in (64, 512, 98_304):
        cluster, data = topology("dgx-a100", nnodes=gpus // 8), gpus // 64
        plan = Plan(batch=data * 16, data=data, tensor=8, pipeline=8, zero=1)
        start = time.process_time()
        for _ in range(100):
            predict(model("gpt-175b"), plan, cluster)
        print(f"{gpus:>7} GPUs {(time.process_time() - start) * 10:.3f} ms")
    start = time.process_time()
    free = {"attention": OneOf(("parts", "flash2")), "schedule": OneOf(("gpipe", "1f1b", "interleaved", "zb-h1"))}
    made = search(model("gpt-530b"), 2520, topology("dgx-a100", nnodes=315), **free)
    tried = len(made.found) + len(made.rejected)
    print(f"search of 530B on 2,520 GPUs, {tried:,} layouts: {time.process_time() - start:.1f} s")


def each(of: Sequence[Row]) -> None:
    for row in of:
        layout = " ".join(
            f"{name}={row.plan[name]}"
            for name in ("data", "tensor", "pipeline", "microbatch", "recompute", "precision")
            if name in row.plan
        )
        error = predicted(row, FITTED) / row.seconds - 1
        print(f"{row.key:<28} {row.model.name:<18} {layout:<72} {row.seconds:>9.4g} s {error:>+7.1%}")


def work(row: Row) -> float:
    """Return the FLOPs of one GPU, without recomputation if that is unknown."""
    how = row.plan.get("recompute", "none")
    total = row.model.flops(row.plan["batch"], "megatron", how if isinstance(how, str) else "none")
    return total / row.cluster.world_size


def predicted(row: Row, chosen: Constants) -> float:
    return predict_range(row.model, row.plan, row.cluster, constants=chosen).step_seconds.middle


def errors(of: Sequence[Row], seconds: Callable[[Row], float]) -> list[float]:
    return [seconds(row) / row.seconds - 1 for row in of]


def line(name: str, signed: Sequence[float]) -> str:
    absolute = [abs(error) for error in signed]
    mean, median = statistics.mean(absolute), statistics.median(absolute)
    return (
        f"{name:<44}{len(signed):>5}  MAPE {mean:>7.1%}  median {median:>7.1%}  worst {max(absolute):>7.1%}"
        f"  bias {statistics.mean(signed):>+7.1%}"
    )


if __name__ == "__main__":
    sys.exit(main())
