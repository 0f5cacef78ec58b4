"""`labkit tune`: the tuner of exercise 24 at the shell, for an objective in a file, or for the layout of a model."""

from __future__ import annotations

import json
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from labkit.command_line.commands import CommandError, require_file
from labkit.course.phase4_production.autotune.given.configurations import LogUniform, Uniform
from labkit.course.phase4_production.autotune.given.measurements import Measurement, predicted
from labkit.course.phase4_production.autotune.given.memory import is_out_of_memory
from labkit.course.phase4_production.autotune.given.trials import TuningResult
from labkit.predict import Plan, model
from labkit.predict.command import parse_cluster

Advance = Callable[[float, str], None]
"""Function that moves a progress bar on, with a text beside it."""


def tune_file(path: Path, name: str, space: Sequence[str], budget: int, **options: int) -> int:
    """Tune the function `name` of a Python file over `space`, entries such as `width=16,32`; print rungs and result.

    options: seed, reduction and min_steps of `tune`.

    Raises `CommandError` for a wrong argument, for an error of the file's code, or if no trial succeeds.
    """
    require_file(path)
    entries: dict[str, Any] = {}
    for key, values in map(parse_space, space):
        if key in entries:
            raise CommandError(f"--space {key} is given twice: put all its choices into one")
        entries[key] = values
    with _loaded(path, name) as function, _progress(budget, "steps") as advance, _tuner() as autotune:
        best = float("inf")

        def objective(configuration: dict[str, Any], steps: int) -> float:
            nonlocal best
            try:
                with _errors_of(path):
                    loss = float(function(configuration, steps))
                best = min(best, loss)
                return loss
            finally:
                advance(steps, f"lowest loss {best:.4g}")

        result = autotune.tune(objective, entries, budget, **options)
    _print_rungs(result)
    return 0


def tune_layout(model_name: str, cluster: str, batch: int | None, trials: int) -> int:
    """Search the strategy and the layout of a model on a cluster, such as `p4dx32`; print both, and the trials.

    Raises `CommandError` for a wrong argument, or if nothing fits.
    """
    described, machines = model(model_name), parse_cluster(cluster)
    measure, counted = predicted(described, machines), 0
    with _progress(trials, "layouts") as advance, _tuner() as autotune:

        def count(plan: Plan) -> Measurement:
            nonlocal counted
            counted += 1
            advance(1, described.name)
            return measure(plan)

        plan = autotune.search_layout(described, machines, batch, count, trials)
        layouts = counted
        try:
            choice = autotune.choose_strategy(described, machines, batch, measure)
        except ValueError:
            choice = None
    step = measure(plan)
    print(
        f"{described.name} on {machines.world_size} {machines.gpu.name}, batch {plan.batch}: {layouts} layouts measured"
    )
    print(
        f"  layout    {step.seconds:8.4g} s, {step.nbytes / 1e9:5.1f} of {machines.gpu.memory_gb:g} GB: {words(plan)}"
    )
    strategy = "none fits" if choice is None else f"{choice.seconds:8.4g} s: {choice.strategy}, {words(choice.plan)}"
    print(f"  strategy  {strategy}")
    return 0


def words(plan: Plan) -> str:
    """Return the axes of a plan as text."""
    axes = ("data", "tensor", "pipeline", "zero", "microbatch", "recompute")
    return ", ".join(f"{name} {getattr(plan, name)}" for name in axes)


def parse_space(text: str) -> tuple[str, Any]:
    """Return name and values: choices, `width=16,32`; an interval, `dropout=0..0.5` or, logarithmic, `lr=log:1e-4..1`.

    Raises `CommandError` if the text is none of them.
    """
    name, separator, values = text.partition("=")
    if not (name and separator and values):
        raise CommandError(f"--space takes name=16,32 or name=0..0.5 or name=log:1e-4..1, got {text!r}")
    kind, separator, interval = values.rpartition(":")
    if ".." not in values:
        choices = values.split(",")
        if "" in choices or len(set(choices)) < len(choices):
            raise CommandError(f"--space {name}: choices differ, and none is empty; got {values!r}")
        return name, [_value(choice) for choice in choices]
    if separator and kind != "log":
        raise CommandError(f"--space {name}: an interval is name=0..0.5 or name=log:1e-4..1, got {text!r}")
    try:
        low, _, high = interval.partition("..")
        return name, (LogUniform if kind == "log" else Uniform)(float(low), float(high))
    except ValueError as error:
        raise CommandError(f"--space {name}: {error}") from None


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


@contextmanager
def _loaded(path: Path, name: str) -> Iterator[Callable[[dict[str, Any], int], Any]]:
    """Yield the function `name` of a Python file, which may import its neighbours, as a script may."""
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        with _errors_of(path):
            function = runpy.run_path(str(path), run_name="labkit_tune").get(name)
        if not callable(function):
            raise CommandError(f"{path} has no function {name}(configuration, steps)")
        yield function
    finally:
        sys.path.remove(folder)


@contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    """Turn an error of the file's code into a `CommandError` with its line. Running out of memory is not an error."""
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            raise
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        where = f"{path}, line {lines[-1]}" if lines else str(path)
        raise CommandError(f"{where}: {type(error).__name__}: {str(error).partition(chr(10))[0]}") from error


@contextmanager
def _tuner() -> Iterator[ModuleType]:
    """Yield the module that is installed as exercise 24. Turn its errors into `CommandError`s."""
    from labkit import exercises

    try:
        yield exercises.autotune
    except (ValueError, RuntimeError) as error:
        raise CommandError(str(error)) from error


@contextmanager
def _progress(total: float, unit: str) -> Iterator[Advance]:
    """Show a progress bar on standard error while the context lasts; an error replaces it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    bar = Progress(*columns, console=Console(stderr=True))
    task = bar.add_task("", total=total)
    bar.start()
    try:
        yield lambda steps, text: bar.update(task, advance=steps, description=text)
    except BaseException:
        bar.live.transient = True
        bar.live.stop()  # `bar.stop` prints an empty line where output goes to a file
        raise
    bar.stop()


def _print_rungs(result: TuningResult) -> None:
    """Print a line for each rung: steps, trials, the losses of the best and of the worst."""
    print("steps  trials  lowest loss  highest loss")
    for steps in sorted({trial.steps for trial in result.trials}):
        losses = [trial.loss for trial in result.trials if trial.steps == steps]
        print(f"{steps:5d}  {len(losses):6d}  {min(losses):11.4g}  {max(losses):12.4g}")
    values = ", ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in result.configuration.items()
    )
    print(f"best: {values}; loss {result.loss:.4g} after {result.steps} of {result.total_steps} steps")
