"""Hidden rubric of fault_tolerance: 25 points, 14 for losses after failures, 11 for hangs, bounds, time and formulas.

The judge kills ranks at times of its own choice, on its virtual clock, and launches the training again with what the
survivors have saved, as an elastic agent would. It knows the losses: it trains by itself, in one process.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from labkit.checks import Args, CheckFailed, Draw, Ranks, Submission, check, expect
from labkit.clusters import Run
from labkit.clusters.virtual import kill, slow
from labkit.course.phase4_production.fault_tolerance.scenarios import (
    FORWARD,
    HANG,
    FailingTraining,
    goodputs_of,
    intervals_of,
    launched,
    short_training,
    weight_shapes,
)
from labkit.trace import Event, Kind

FORBIDDEN = {
    "torch.distributed.elastic",
    "torch.nn.parallel.DistributedDataParallel",
}
"""Names that `labkit integrity` reports, under any alias; using them costs no marks by itself."""
CLOSE = 1e-5
"""Tolerance for losses at another world size."""


# What runs on the ranks -----------------------------------------------------------------------------------------------


def misused(cases: list[str]) -> list[str]:
    """On a rank: return the error for each wrong argument."""
    import multiprocessing.util
    import tempfile

    import torch

    from labkit.course.phase4_production.fault_tolerance.scenarios import MemoryCheckpoints
    from labkit.exercises import fault_tolerance as ft

    checkpoints = MemoryCheckpoints(tempfile.mkdtemp(dir=multiprocessing.util.get_temp_dir()), 2, None, lambda: None)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train = ft.ElasticTraining(checkpoints, 5.0).train_with_fault_tolerance
    tried = {
        "": lambda: ft.young_daly_interval(60.0, 1e6, 100),
        "checkpoint_seconds": lambda: ft.young_daly_interval(0.0, 10.0, 1),
        "restart_seconds": lambda: ft.goodput(1.0, 1.0, -1.0, 1.0, 1),
        "checkpointer": lambda: ft.ElasticTraining(object(), 5.0),
        "hang_timeout": lambda: ft.ElasticTraining(checkpoints, 0.0),
        "loader": lambda: train(model, optimizer, torch.nn.MSELoss(), [], 1),
    }
    found = []
    for case in cases:
        try:
            tried[case]()
            found.append("nothing")
        except NotImplementedError:
            raise  # a part that is not written yet is no answer
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


# What is launched -----------------------------------------------------------------------------------------------------


def training_of(submission: Submission, ranks: Ranks, draw: Draw, samples: int = 25, **options: Any) -> FailingTraining:
    """Return a training with drawn numbers. samples: with the default batch the last one of 25 is short, but not empty
    on 4 ranks.
    """

    def launch(arguments: list[tuple[Any, ...]], processes: bool = False, faults: Sequence[Any] = ()) -> Run:
        chosen = ranks.processes(len(arguments)) if processes else ranks(len(arguments), faults=list(faults))
        return chosen.attempt(submission.used_by(short_training), [Args(*own) for own in arguments])

    features, hidden = draw.randrange(3, 6), draw.randrange(4, 8)
    weights = [draw.tensor(shape) / 8 for shape in weight_shapes(features, hidden)]
    inputs, targets = draw.tensor((samples, features)) / 8, draw.tensor((samples, 1)) / 8
    return FailingTraining(launch, weights, inputs, targets, draw.randrange(1000), **options)


# What must come out ---------------------------------------------------------------------------------------------------


def events(run: Run, name: str, rank: int = 0) -> list[Event]:
    return [event for event in run.trace.of(rank, Kind.COMPUTE) if event.operation == name]


def losses_of(run: Run) -> dict[int, float]:
    """Return the losses of this launch by step: those of all ranks are equal."""
    run.raise_if_failed()
    for value in run.values:
        expect(value["error"], "error of a rank").equals("")
        expect(value["losses"], "losses that a rank returned, compared with rank 0's").equals(run.values[0]["losses"])
    return {int(step): float(loss) for step, loss in run.values[0]["losses"]}


def expect_losses(training: FailingTraining, found: dict[int, float], after: int, what: str) -> None:
    """Expect the losses of all steps after that one: those of one process."""
    right = {step: loss for step, loss in training.expected_losses().items() if step > after}
    hint = "what the sampler, the optimizer and the step's number are after loading"
    expect(list(found), f"{what}: steps of which there are losses", look_at=hint).equals(list(right))
    values = [torch.tensor(list(losses.values()), dtype=torch.float64) for losses in (found, right)]
    expect(values[0], f"{what}: losses of steps {after + 1} to {training.steps}", look_at=hint).close_to(
        values[1], rel=CLOSE
    )


def expect_weights(training: FailingTraining, run: Run, what: str) -> None:
    right = training.expected_weights()
    expect([value["weights"] for value in run.values], f"{what}: weights").close_to(
        [right] * len(run.values), rel=CLOSE
    )


def expect_failed(run: Run, what: str) -> None:
    """Expect that no rank has gone on after the failure of another one."""
    went_on = [value for value in run.values if isinstance(value, dict) and value["error"] == ""]
    hint = "an error of a step must leave train_with_fault_tolerance"
    expect(len(went_on), f"{what}: ranks that reported no error", look_at=hint).equals(0)


def expect_saved(training: FailingTraining, step: int, what: str) -> int:
    """Expect a checkpoint no older than an interval, when that many steps were done; return its step."""
    saved = training.saved[0] if training.saved else 0
    hint = "should_checkpoint is asked after each step, with the number of steps done"
    expect(
        step - saved, f"{what}: steps lost, with a checkpoint every {training.options['every']}", look_at=hint
    ).at_most(training.options["every"] - 1)
    return int(saved)


def expect_read(training: FailingTraining, run: Run, after: int, what: str) -> None:
    """Expect that this launch has read the samples of all steps after that one, each once, and no others."""
    right = sorted(index for step in range(after + 1, training.steps + 1) for index in training.order(step))
    seen = sorted(index for value in run.values for index in value["read"])
    expect(seen, f"{what}: samples read after loading, of all ranks, sorted").equals(right)


# Formulas -------------------------------------------------------------------------------------------------------------


def daly(checkpoint: float, mtbf: float) -> float:
    if checkpoint >= 2 * mtbf:
        return mtbf
    x = checkpoint / (2 * mtbf)
    return math.sqrt(2 * checkpoint * mtbf) * (1 + math.sqrt(x) / 3 + x / 9) - checkpoint


@check(points=2, todo=1, title="intervals by Young and Daly", look_at="whose mean time between failures counts")
def intervals(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    cases = [[draw.uniform(1, 200), draw.uniform(1e6, 1e8), float(draw.randrange(2, 20_000))] for _ in range(6)]
    cases += [[draw.uniform(2.5, 9) * 100, 1e5, 1000.0], [120.0, 7200.0, 1.0]]
    (found,) = ranks(1).call(submission.used_by(intervals_of), [Args(cases)]).values
    for (seconds, mtbf, gpus), (young, higher) in zip(cases, found, strict=True):
        what = f"{seconds:.4g} s for a checkpoint, {mtbf:.4g} s between failures of a GPU, {gpus:.0f} GPUs"
        hint = "Young: of first order" if seconds < 2 * mtbf / gpus else "C >= 2M: Daly's interval is M"
        expect(young, f"Young's interval: {what}", unit="seconds").close_to(math.sqrt(2 * seconds * mtbf / gpus))
        expect(higher, f"Daly's interval: {what}", unit="seconds", look_at=hint).close_to(daly(seconds, mtbf / gpus))


@check(points=2, todo=1, title="goodput", look_at="what a failure costs, and how often there is one")
def goodputs(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    cases = []
    for _ in range(6):
        gpus = float(draw.choice([1, 1000, 16_384]))
        mtbf = draw.uniform(2e3, 2e4)
        cases.append([draw.uniform(0.05, 2) * mtbf, draw.uniform(5, 300), draw.uniform(50, 900), mtbf * gpus, gpus])
    cases += [[600.0, 0.0, 0.0, 1e12, 1.0], [1e6, 10.0, 10.0, 1000.0, 1.0]]
    (found,) = ranks(1).call(submission.used_by(goodputs_of), [Args(cases)]).values
    for (interval, checkpoint, restart, mtbf, gpus), share in zip(cases, found, strict=True):
        m, period = mtbf / gpus, interval + checkpoint
        right = interval * math.exp(-(restart + period) / m) / (m * -math.expm1(-period / m))
        what = (
            f"interval {interval:.4g} s, checkpoint {checkpoint:.4g} s, restart {restart:.4g} s, failure each {m:.4g} s"
        )
        expect(share, f"goodput: {what}").close_to(right, rel=1e-7)


# Training without failures --------------------------------------------------------------------------------------------


@check(points=2, todo=4, title="without failures it is one process", look_at="train_step: who counts how much")
def one_process(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    training = training_of(submission, ranks, draw)
    run = training.launch(draw.choice([2, 3, 4]))
    expect_losses(training, losses_of(run), 0, "no failure")
    expect_weights(training, run, "no failure")
    expect_read(training, run, 0, "no failure")
    expect(training.saved[0] if training.saved else 0, "step of the last checkpoint").equals(training.steps)
    again = training.launch(len(run.ranks), restarts=1)
    expect(again.values[0]["steps"], "steps taken when all epochs are complete").equals(0)


# Failures -------------------------------------------------------------------------------------------------------------


def moment(run: Run, name: str, number: int, share: float = 0.5) -> float:
    """Return a time within that event of rank 0, the first one being number 1."""
    found = events(run, name)
    if len(found) < number:
        raise CheckFailed(f"{number} times {name} on rank 0", f"{len(found)} times")
    return found[number - 1].start + share * (found[number - 1].end - found[number - 1].start)


@check(points=3, todo=4, title="a rank killed at any step: the losses go on", look_at="resume, and the loop after it")
def killed(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    """Twice in one training: rank 0 or others, the second time in the other epoch."""
    world_size = draw.choice([2, 3])
    training = training_of(submission, ranks, draw)
    whole = training.launch(world_size, keep=False)
    right = losses_of(whole)
    first, second = draw.choice([2, 3, 4]), draw.choice([6, 7])
    dies = [0, *draw.sample(range(1, world_size), world_size - 2)]  # one survives; rank 0's journal is lost
    time = moment(whole, "forward", first)
    run = training.launch(world_size, faults=[kill(rank, at=time) for rank in dies])
    expect_failed(run, f"after a kill in step {first}")
    saved = expect_saved(training, first - 1, f"killed in step {first}")
    rank = draw.randrange(world_size)
    restarted = training.launch(world_size, restarts=1, keep=False)
    time = moment(restarted, "forward", second - saved)
    run = training.launch(world_size, restarts=1, faults=[kill(rank, at=time)])
    expect_failed(run, f"after a kill in step {second}")
    saved = expect_saved(training, second - 1, f"killed in step {second}")
    run = training.launch(world_size, restarts=2)
    what = f"killed in steps {first} and {second}"
    expect_losses(training, losses_of(run), saved, what)
    expect(losses_of(run), f"{what}: losses, to the last bit those of the training without failures").equals(
        {step: loss for step, loss in right.items() if step > saved}
    )
    expect_weights(training, run, what)
    expect_read(training, run, saved, what)


@check(
    points=2, todo=4, title="killed while a checkpoint is being written", look_at="what says how many steps are done"
)
def while_writing(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    training = training_of(submission, ranks, draw)
    whole = training.launch(2, keep=False)
    time = moment(whole, "write", 2, draw.uniform(0.1, 0.9))  # of step 6
    run = training.launch(2, faults=[kill(draw.randrange(2), at=time)])
    expect_failed(run, "after a kill within a checkpoint")
    saved = training.saved[0] if training.saved else 0
    expect(saved, "step of the last checkpoint, when one of step 6 was never complete").equals(3)
    run = training.launch(2, restarts=1)
    expect_losses(training, losses_of(run), saved, "killed while writing")
    expect_read(training, run, saved, "killed while writing")


@check(
    points=1, todo=4, title="random numbers go on, too", look_at="what draws random numbers between loading and a step"
)
def dropout(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    training = training_of(submission, ranks, draw, dropout=0.5)
    whole = training.launch(2, keep=False)
    right = losses_of(whole)
    run = training.launch(2, faults=[kill(draw.randrange(2), at=moment(whole, "forward", draw.choice([7, 8])))])
    expect_failed(run, "after a kill")
    saved = training.saved[0] if training.saved else 0
    expect(losses_of(training.launch(2, restarts=1)), "losses with dropout, to the last bit").equals(
        {step: loss for step, loss in right.items() if step > saved}
    )


@check(
    points=3, todo=4, title="nodes leave and join: the same global batches", look_at="what depends on the world size"
)
def other_world_sizes(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    training = training_of(submission, ranks, draw, every=2)
    sizes = draw.choice([(3, 2, 4), (2, 3, 1), (4, 3, 2)])
    for number, (world_size, step) in enumerate(zip(sizes, (3, 6, 0), strict=True)):
        dies = draw.randrange(1, max(2, world_size))  # not rank 0, which has the journal
        at = {dies: {"dies_at": step - (training.saved[0] if training.saved else 0)}} if step else {}
        run = training.launch(world_size, restarts=number, at=at)
        if step:
            expect_failed(run, f"after a kill in step {step} of {world_size} ranks")
            saved = expect_saved(training, step - 1, f"killed in step {step}")
    what = f"on {', '.join(map(str, sizes))} ranks"
    expect_losses(training, losses_of(run), saved, what)
    expect_weights(training, run, what)
    expect_read(training, run, saved, what)
    said = sum(len(value["warnings"]) for value in run.values)
    expect(said, "warnings about the global batch, which is the same").equals(0)


@check(points=1, todo=4, title="another global batch is said", look_at="resume: when is it another one?")
def changed_batch(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    training = training_of(submission, ranks, draw, every=2)
    run = training.launch(2, at={1: {"dies_at": 4}})
    expect_failed(run, "after a kill")
    training.options["batch"] = batch = draw.choice([9, 11])
    run = training.launch(2, restarts=1).raise_if_failed()
    said = " ".join(run.values[0]["warnings"])
    for number in (7, batch):
        expect(said, f"warning of a global batch of {batch} samples, before 7").contains(str(number))


# Hangs, errors, bounds ------------------------------------------------------------------------------------------------


@check(
    points=2, todo=4, title="a rank that hangs counts as dead, a slow one does not", look_at="which wait has a limit"
)
def hang(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    limit, step = draw.uniform(0.5, 2.0), draw.choice([2, 3])
    training = training_of(submission, ranks, draw, hang_timeout=limit, samples=14)
    slowly = training.launch(3, faults=[slow(draw.randrange(3), factor=0.2 * limit / FORWARD)], keep=False)
    expect_losses(training, losses_of(slowly), 0, "a rank that takes a fifth of hang_timeout")
    hangs = draw.randrange(3)
    run = training.launch(3, at={hangs: {"hangs_at": step}})
    began = events(run, "hang", hangs)
    if not began:
        raise CheckFailed("a rank that hangs in a step", "it never came there")
    for rank in {0, 1, 2} - {hangs}:
        value = run.values[rank]
        error = value["error"] if isinstance(value, dict) else "none"
        expect(error not in ("", "none"), f"rank {rank} has an error when rank {hangs} hangs").holds("no error")
        waited = events(run, "mark", rank)[0].start - began[0].start
        what = (
            f"from the hang until rank {rank} has its error, with hang_timeout={limit:.3g} s; the rank hangs {HANG:g} s"
        )
        expect(waited, what, unit="seconds").at_most(limit + 0.5)


@check(points=1, todo=4, title="errors are raised", look_at="what is caught, and where")
def errors(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    training = training_of(submission, ranks, draw)
    raises, step = draw.randrange(2), draw.choice([2, 4])
    run = training.launch(2, at={raises: {"raises_at": step}})
    value = run.values[raises]
    error = value["error"] if isinstance(value, dict) else str(run.ranks[raises].error)
    expect(error, f"error of rank {raises}, whose criterion raises ArithmeticError").contains(
        "ArithmeticError: planted"
    )
    steps = [one["steps"] for one in run.values if isinstance(one, dict)]
    expect(max(steps, default=0), f"steps that any rank began, when one failed in step {step}").at_most(step)


@check(points=2, todo=4, title="a step that fails twice in a row is reported", look_at="stop_repeated_crash")
def repeated(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    training = training_of(submission, ranks, draw, every=3, samples=14)
    step = draw.choice([2, 3])
    for restarts in (0, 1):
        run = training.launch(2, restarts, at={1: {"dies_at": step}})
        expect_failed(run, f"attempt {restarts + 1}")
        tried = run.values[0]["steps"]
        expect(tried, f"steps of attempt {restarts + 1}, which fails in step {step}").equals(step)
    run = training.launch(2, 2, keep=False)
    for rank, value in enumerate(run.values):
        error = value["error"] if isinstance(value, dict) else "none"
        what = f"error of rank {rank} of 2 in the third attempt, after two that failed in step {step}"
        expect(error, what).contains("RepeatedCrash")
        expect(value["steps"], "steps of the third attempt").equals(0)
    expect(len(training.launch(2, 0, keep=False).values[0]["losses"]), "losses of a new launch").equals(training.steps)
    # another step: no repetition
    training = training_of(submission, ranks, draw, every=3, samples=14)
    for restarts, fails in ((0, step), (1, step - 1)):
        expect_failed(training.launch(2, restarts, at={1: {"dies_at": fails}}), "an attempt")
    run = training.launch(2, 2)
    expect_losses(training, losses_of(run), 0, f"after attempts that failed in steps {step} and {step - 1}")


@check(
    points=1, todo=4, title="recovery takes no longer than loading", look_at="what a restart computes or reads again"
)
def recovery_time(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    training = training_of(submission, ranks, draw, samples=70, batch=7, epochs=1, every=8)
    run = training.launch(2, at={draw.randrange(2): {"dies_at": 9 + draw.randrange(2)}})
    expect_failed(run, "after a kill")
    run = training.launch(2, restarts=1).raise_if_failed()
    expect(len(events(run, "forward")), "steps after the restart; 8 of 10 were saved").equals(2)
    # the first batch has 4 samples of this rank, at 0.1 ms each; to read the eight before takes 3 ms more
    expect(moment(run, "forward", 1, 0.0), "from the start until the first step", unit="seconds").at_most(0.002)
    expect_losses(training, losses_of(run), 8, "after the restart")


@check(points=1, todo=5, title="a launch has nodes, restarts and an end", look_at="launch_elastic_training")
def launch(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    nodes = [draw.randrange(1, 4), draw.randrange(4, 9)]
    per_node, restarts = draw.randrange(1, 5), draw.randrange(2, 9)
    given = [*nodes, per_node, restarts]
    run = ranks(2).call(submission.used_by(launched), [Args(*given, False), Args(*given, True)])
    right = {
        "nodes": nodes,
        "ranks": per_node,
        "restarts": restarts,
        "environment": {"NAME": "value"},
        "source": "print('trains')\n",
        "stops hanging jobs": False,
    }
    for value, error in zip(run.values, ("", "RankFailed"), strict=True):
        seen = {
            "nodes": [value["min_nnodes"], value["nnodes"]],
            "ranks": value["nproc_per_node"],
            "restarts": value["max_restarts"],
            "environment": value["environment"],
            "source": value["source"] or "",
            "stops hanging jobs": value["hang_timeout"] is not None and value["on_hang"] == "stop",
        }
        for name, wanted in right.items():
            expect(seen[name], f"{name} of the job").equals(wanted)
        expect(value["error"], f"error of a launch whose job {'fails' if error else 'succeeds'}").equals(error)


@check(points=1, todo=1, title="bad arguments raise ValueError before any message", look_at="checks at the start")
def arguments(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    cases = ["", "checkpoint_seconds", "restart_seconds", "checkpointer", "hang_timeout", "loader"]
    draw.shuffle(cases)
    (found,) = ranks(1).call(submission.used_by(misused), [Args(cases)]).values
    for case, seen in zip(cases, found, strict=True):
        if case:
            expect(seen, f"error for a wrong {case}").contains("ValueError: " + case)
        else:
            expect(seen, "error for right arguments of young_daly_interval").equals("nothing")


@check(points=1, todo=4, title="real processes: SIGKILL, and on", look_at="what may be different with gloo")
def real_processes(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    training = training_of(submission, ranks, draw, every=2, samples=14, hang_timeout=10.0)
    run = training.launch(3, processes=True, at={draw.randrange(3): {"dies_at": 3}})
    expect_failed(run, "after SIGKILL of a process in step 3")
    saved = expect_saved(training, 2, "killed in step 3")
    run = training.launch(3, restarts=1, processes=True)
    expect_losses(training, losses_of(run), saved, "after SIGKILL")
    expect_weights(training, run, "after SIGKILL")
