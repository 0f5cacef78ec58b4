"""Visible checks and hints of fault_tolerance. Ranks are killed in steps that a reader can count; so are the samples.

There are 25 samples in global batches of 7, so an epoch has 4 steps, the last one of 4 samples; a checkpoint is saved
after every third step.
"""

from __future__ import annotations

from typing import Any

from labkit.checks import Args, CheckFailed, Draw, NotMeasurable, Ranks, Submission, check, expect
from labkit.clusters import Run
from labkit.course.phase4_production.fault_tolerance.scenarios import (
    FailingTraining,
    goodputs_of,
    intervals_of,
    launched,
    short_training,
    weight_shapes,
)
from labkit.trace import Kind

# What is launched -----------------------------------------------------------------------------------------------------


def training_of(submission: Submission, ranks: Ranks, draw: Draw, **options: Any) -> FailingTraining:
    """Return a training with drawn numbers, of 25 samples."""

    def launch(arguments: list[tuple[Any, ...]]) -> Run:
        given = [Args(*own) for own in arguments]
        return ranks(len(given)).attempt(submission.used_by(short_training), given)

    features, hidden = draw.randrange(3, 6), draw.randrange(4, 8)
    weights = [draw.tensor(shape) / 8 for shape in weight_shapes(features, hidden)]
    inputs, targets = draw.tensor((25, features)) / 8, draw.tensor((25, 1)) / 8
    return FailingTraining(launch, weights, inputs, targets, draw.randrange(1000), **options)


# What must come out ---------------------------------------------------------------------------------------------------


def expect_losses(training: FailingTraining, run: Run, after: int, what: str, look_at: str = "") -> None:
    """Expect the losses of all steps after that one: those of one process."""
    run.raise_if_failed()
    for rank, value in enumerate(run.values):
        expect(value["error"], f"{what}: error of rank {rank}").equals("")
        losses = {int(step): loss for step, loss in value["losses"]}
        right = {step: loss for step, loss in training.expected_losses().items() if step > after}
        expect(list(losses), f"{what}: steps of which rank {rank} returns a loss", look_at=look_at).equals(list(right))
        for step, loss in right.items():
            text = f"{what}: loss of step {step}, the mean of samples {training.order(step)}"
            expect(losses[step], text, look_at=look_at).close_to(loss, rel=1e-5)


def expect_failed(training: FailingTraining, run: Run, saved: int, what: str) -> None:
    """Expect that the other ranks have failed, too, and the step of the checkpoint that they have."""
    for rank, value in enumerate(run.values):
        if isinstance(value, dict):
            hint = "errors of a step must leave train_with_fault_tolerance"
            expect(value["error"] != "", f"{what}: rank {rank} ends with an error, too", look_at=hint).holds("no error")
    hint = "after each step: `should_checkpoint(step)`, with the number of all steps done, then `save_checkpoint`"
    step = training.saved[0] if training.saved else 0
    expect(step, f"{what}: step of the last checkpoint, one after every third step", look_at=hint).equals(saved)


# Checks ---------------------------------------------------------------------------------------------------------------


@check(points=4, todo=1, title="young_daly_interval and goodput", look_at="failures of a job of many GPUs")
def numbers(submission: Submission, ranks: Ranks) -> None:
    jobs_of: list[list[float]] = [[50.0, 1e4, 1], [50.0, 1e8, 10_000], [300.0, 1e5, 1000]]
    (pairs,) = ranks(1).call(submission.used_by(intervals_of), [Args(jobs_of)]).values
    shares_of: list[list[float]] = [
        [1000.0, 50.0, 0.0, 1e12, 1],
        [1000.0, 50.0, 0.0, 1e4, 1],
        [1000.0, 50.0, 300.0, 1e8, 10_000],
        [1e7, 50.0, 300.0, 1e4, 1],
    ]
    (shares,) = ranks(1).call(submission.used_by(goodputs_of), [Args(shares_of)]).values
    names = ["Young's interval", "Daly's interval"]
    jobs = ["50 s a checkpoint, a failure each 10,000 s", "the same with 10,000 GPUs", "C = 300 s, M = 100 s"]
    wanted = [1000.0, 966.9444444444, 1000.0, 966.9444444444, 244.948974278, 100.0]
    for number, (seen, right) in enumerate(zip([one for pair in pairs for one in pair], wanted, strict=True)):
        expect(seen, f"{names[number % 2]}: {jobs[number // 2]}", unit="seconds").close_to(right, rel=1e-9)
    cases = {
        "no failures: 1000 of 1050 s": 1000 / 1050,
        "a failure each 10,000 s, restarts in no time": 0.9032557916419,
        "restarts of 300 s, 10,000 GPUs": 0.8765605486507,
        "an interval of 10,000,000 s": 0.0,
    }
    for (name, right), seen in zip(cases.items(), shares, strict=True):
        expect(seen, f"goodput with an interval of 1000 s: {name}").close_to(right, rel=1e-6)


@check(points=4, todo=4, title="without failures: the losses of one process", look_at="train_step: who counts how much")
def one_process(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    training = training_of(submission, ranks, draw)
    run = training.launch(3)
    expect_losses(training, run, 0, "3 ranks, no failure", "samples of a rank: 3, 2 and 2, at last 2, 1 and 1")
    hint = "all is saved, also what came after the last interval"
    step = training.saved[0] if training.saved else 0
    expect(step, "step of the checkpoint at the end", look_at=hint).equals(training.steps)
    again = training.launch(3, restarts=1).raise_if_failed()
    hint = "sampler.epoch and its position are those of the checkpoint"
    expect(again.values[0]["steps"], "steps of a restart after the end", look_at=hint).equals(0)


@check(points=4, todo=4, title="a rank is killed: the losses go on, on any number of ranks", look_at="resume")
def killed(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    training = training_of(submission, ranks, draw)
    what = "rank 1 of 3 killed in step 5"
    expect_failed(training, training.launch(3, at={1: {"dies_at": 5}}), 3, what)
    run = training.launch(2, restarts=1, keep=False)
    hint = "after step 3 comes step 4, with the last samples of epoch 0"
    expect_losses(training, run, 3, f"{what}, then 2 ranks", hint)
    again = training.launch(3, restarts=1, at={0: {"dies_at": 4}})
    expect_failed(training, again, 6, "then rank 0 killed in step 7")
    run = training.launch(3, restarts=2)
    hint = "epoch 1 has an order of its own (`set_epoch`), in which 2 batches were done"
    expect_losses(training, run, 6, "killed in steps 5 and 7", hint)
    for value in run.values:
        expect(value["warnings"], "warnings of the global batch, which is the same").equals([])


@check(points=3, todo=4, title="dropout goes on with the same random numbers", look_at="`given.batches(loader)`")
def dropout(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    training = training_of(submission, ranks, draw, dropout=0.5)
    whole = training.launch(2, keep=False).raise_if_failed()
    expect(whole.values[0]["error"], "2 ranks, no failure: error of rank 0").equals("")
    training.launch(2, at={1: {"dies_at": 6}})
    run = training.launch(2, restarts=1).raise_if_failed()
    right = [pair for pair in whole.values[0]["losses"] if pair[0] > 3]
    expect(run.values[0]["losses"], "steps and losses after a kill in step 6, to the last bit").equals(right)


@check(points=2, todo=4, title="another global batch is said", look_at="resume: `loaded_global_batch_size`")
def changed_batch(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    training = training_of(submission, ranks, draw)
    training.launch(2, at={1: {"dies_at": 4}})
    training.options["batch"] = 9
    said = training.launch(2, restarts=1).raise_if_failed().values[0]["warnings"]
    expect(len(said), "warnings of rank 0 with `global batch`, 7 samples until step 3, now 9").equals(1)
    for number in ("7", "9"):
        expect(said[0], "the warning").contains(number)


@check(points=3, todo=4, title="a rank that hangs counts as dead", look_at="`dist.new_group(timeout=...)`, and its use")
def hang(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    training = training_of(submission, ranks, draw, hang_timeout=0.5)
    run = training.launch(2, at={1: {"hangs_at": 2}})
    if run.trace.clock != "modelled":
        raise NotMeasurable("a hang of 1000 s is checked on virtual ranks")
    began = [event for event in run.trace.of(1, Kind.COMPUTE) if event.operation == "hang"]
    ended = [event for event in run.trace.of(0, Kind.COMPUTE) if event.operation == "mark"]
    if not began or not ended:
        raise CheckFailed("an error on rank 0 after 0.5 s", "it waits for ever")
    expect(ended[0].start - began[0].start, "until rank 0 has an error, hang_timeout=0.5", unit="seconds").at_most(0.6)


@check(points=3, todo=4, title="a step that fails twice in a row is reported", look_at="stop_repeated_crash")
def repeated(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    training = training_of(submission, ranks, draw)
    for restarts, step in ((0, 3), (1, 2), (2, 2)):
        run = training.launch(2, restarts, at={1: {"dies_at": step}})
        what = f"steps of rank 0, which are killed in steps 3, 2 and 2: attempt {restarts + 1}"
        expect(run.values[0]["steps"], what, look_at="only the same step counts").equals(step)
    run = training.launch(2, 3)
    for rank, value in enumerate(run.values):
        text = f"error of rank {rank} after attempts that failed in steps 3, 2 and 2"
        hint = "rank 0 decides for all: others cannot read its journal here"
        expect(value["error"] if isinstance(value, dict) else "none", text, look_at=hint).contains("RepeatedCrash")
        expect(value["steps"], f"steps that rank {rank} has begun then").equals(0)


@check(points=2, todo=5, title="launch_elastic_training: nodes, ranks, restarts", look_at="the fields of Job")
def launch(submission: Submission, ranks: Ranks) -> None:
    fields, failed = (
        ranks(1).call(submission.used_by(launched), [Args(2, 4, 8, 5, fails)]).values[0] for fails in (False, True)
    )
    right = {
        "min_nnodes": 2,
        "nnodes": 4,
        "nproc_per_node": 8,
        "max_restarts": 5,
        "environment": {"NAME": "value"},
        "source": "print('trains')\n",
        "hang_timeout": None,
    }
    for name, wanted in right.items():
        expect(fields[name], f"{name} of the job").equals(wanted)
    error = failed["error"] or "none"
    expect(error, "error of a job that has failed for good", look_at="raise_if_failed").equals("RankFailed")


HINTS = {
    1: [
        "A job of 1,000 GPUs stops when any one of them fails: how long is that on average, if one GPU runs for "
        "1,000 hours?",
        "`mtbf = gpu_mtbf_seconds / num_gpus` is M in all formulas. For goodput: what lasts of the expected time "
        "M e^(R/M) (e^(T/M) - 1) is the interval; multiply both by e^(-(R+T)/M).",
        "`interval_seconds * math.exp(-(restart_seconds + period) / mtbf) / (mtbf * -math.expm1(-period / mtbf))`, "
        "with `period = interval_seconds + checkpoint_seconds`.",
    ],
    2: [
        "With 3 samples on one rank and 2 on another, whose mean counts how much in the mean over all 5?",
        "Multiply the whole message by the number of samples: then its last element is that number, and after the "
        "all-reduce the number of all of them.",
        "`message.flat *= len(targets)`; `dist.all_reduce(message.flat, group=self.group)`; "
        "`message.flat /= message.flat[-1].clone()`.",
    ],
    3: [
        "Two attempts that end in the same step: what would the third one do? And what if the second one has come "
        "further than the first?",
        "The last two of `self.journal.failures()` on rank 0, if there are two: compare `(last_step, world_size)`. "
        "All ranks need the answer: `dist.broadcast_object_list([answer], src=0, group=self.group)`. "
        "`resume`: load, or start equal; the step is the checkpoint's, or 0.",
        "`found = self.checkpointer.load_latest_checkpoint(components)`; if it is None: "
        '`given.start_equal(components["model"])`, else `step = int(found)`. Rank 0: if something was found and '
        '`sampler.loaded_global_batch_size != sampler.global_batch_size`: `warnings.warn(f"global batch of ...")`, '
        "then `self.journal.begin(dist.get_world_size(), step)`.",
    ],
    4: [
        "Which of model, optimizer, sampler and step does a restart need to go on as if nothing had happened? At which "
        "moment of a step are all of them at the same step?",
        "Make the group, stop, resume; two loops, over epochs from `sampler.epoch` and over batches. Save only after "
        "`sampler.advance()`: a checkpoint of step 3 has the position after 3 batches. No `try` around a step: its "
        "error must end this rank.",
        "`self.group = dist.new_group(timeout=timedelta(seconds=self.hang_timeout))`; "
        "`for epoch in range(sampler.epoch, num_epochs): sampler.set_epoch(epoch)`; "
        "`for inputs, targets in given.batches(loader):` the step, `step += 1`, `losses[step] = loss`, "
        "`sampler.advance()`, rank 0's `self.journal.record(step, epoch, loss)`, and "
        "`if self.checkpointer.should_checkpoint(step): self.checkpointer.save_checkpoint(step, components)`. At the "
        "end save once more unless that step was, and `self.journal.finish()` on rank 0.",
    ],
    5: [
        "Which fields of `Job` have the meaning of torchrun's `--nnodes MIN:MAX`, `--nproc-per-node`, "
        "`--max-restarts`?",
        "`nnodes` is the maximum, `min_nnodes` the minimum. A job that has failed for good is a `Run`, too: "
        "`raise_if_failed()` makes an error of it.",
        "`Job(nnodes=config.max_nodes, min_nnodes=config.min_nodes, nproc_per_node=config.nproc_per_node, "
        "max_restarts=config.max_restarts, environment=config.environment, hang_timeout=None, "
        "**config.program_text())`, then `(config.cluster or local()).run(job).raise_if_failed()`.",
    ],
}
