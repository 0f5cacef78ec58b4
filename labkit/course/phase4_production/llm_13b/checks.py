"""Visible checks and hints of llm_13b: plans and forecasts by closed forms, and a small sibling on four ranks."""

from __future__ import annotations

import math
from typing import Any

import torch

from labkit.checks import Args, Ranks, Submission, check, expect
from labkit.clusters import Run
from labkit.course.phase4_production.autotune.given import LayoutSpace
from labkit.course.phase4_production.llm_13b.given import as_trained
from labkit.course.phase4_production.llm_13b.scenarios import (
    cluster_of,
    forecasted,
    generated,
    loss_of,
    model_of,
    one_process,
    planned,
    right_tokens,
    trained,
)
from labkit.predict import Plan, predict

SIZES = [2, 16, 2, 8]
"""Layers, width, heads and sequence of the sibling."""

# The plan -------------------------------------------------------------------------------------------------------------


def best_seconds(model: Any, cluster: Any, batch: int) -> float:
    """Return the shortest step of all layouts that exercise 17's trainer can run, and that fit."""
    layouts = [as_trained(layout) for layout in LayoutSpace(model, cluster, batch).all()]
    steps = [predict(model, layout, cluster) for layout in layouts if layout is not None]
    return min(step.step_seconds for step in steps if step.surely_fits)


@check(points=4, todo=1, title="plan: the fastest layout that your trainer can run", look_at="plan: measure")
def layouts(submission: Submission, ranks: Ranks) -> None:
    cases: list[list[Any]] = [
        [[40, 5120, 40, 2048, 50304], "dgx-a100", 4, {}, None, 25e9],
        [[24, 2048, 16, 2048, 50304], "dgx-a100", 1, {"memory_gb": 16.0}, 64, 1e9],
    ]
    (results,) = ranks(1).call(submission.used_by(planned), [Args(cases)]).values
    for (sizes, preset, nnodes, changes, batch, tokens), seen in zip(cases, results, strict=True):
        model, cluster = model_of(*sizes), cluster_of(preset, nnodes, **changes)
        batch = batch or 16 * cluster.world_size
        gpus = f"{cluster.world_size} GPUs of {cluster.gpu.memory_gb:g} GB"
        what = f"{model.parameters / 1e9:.1f} billion parameters on {gpus}"
        expect(isinstance(seen, dict), f"a plan for {what}").holds(str(seen)[:200])
        layout = Plan(**seen["layout"])
        expect(as_trained(layout), f"layout for {what}, as the trainer runs it").equals(layout)
        step = predict(model, layout, cluster)
        expect(step.device_bytes.high / 1e9, f"GB of {what}").at_most(cluster.gpu.memory_gb)
        expect(step.step_seconds, f"seconds of a step of {what}").at_most(1.05 * best_seconds(model, cluster, batch))
        expect(seen["steps"], f"steps for {tokens:.3g} tokens, {what}").equals(
            math.ceil(tokens / batch / model.sequence)
        )


@check(points=3, todo=1, title="forecast: checkpoint, recovery, interval, days", look_at="forecast: shares and places")
def figures(submission: Submission, ranks: Ranks) -> None:
    layout: dict[str, Any] = {"batch": 512, "microbatch": 2, "data": 8, "pipeline": 2, "tensor": 2, "zero": 1}
    case = [[40, 5120, 40, 2048, 50304], "dgx-a100", 4, {"storage": "cloud-disk-1gb"}, layout, 1000]
    ((seen,),) = ranks(1).call(submission.used_by(forecasted), [Args([case])]).values
    # 12.85 billion parameters: 45 GB for each of four nodes to write; 8 * (6.43 + 4.82) GB to read; at 1 GB/s
    what = "12.85 billion parameters, dp 8, pp 2, tp 2, on 4 nodes with 1 GB/s each"
    wanted = {"checkpoint_seconds": 44.993, "recovery_seconds": 209.98, "checkpoint_every_seconds": 22620.0,
              "goodput": 0.99599}  # fmt: skip
    for name, value in wanted.items():
        expect([torch.tensor(seen[name])], f"{name}: {what}").close_to([torch.tensor(value)], rel=0.002)
    days = 1000 * seen["step_seconds"] / wanted["goodput"] / 86_400
    expect([torch.tensor(seen["days"])], f"days of 1,000 steps: {what}").close_to([torch.tensor(days)], rel=0.001)


@check(points=1, todo=1, title="what does not fit is refused", look_at="the given first line of plan must stay")
def refusals(submission: Submission, ranks: Ranks) -> None:
    cases: list[list[Any]] = [
        [SIZES, "dgx-a100", 1, {}, 0, 1e9],
        [SIZES, "dgx-a100", 1, {}, 64, -1.0],
        [[80, 20480, 160, 2048, 50304], "dgx-a100", 1, {}, 64, 1e9],
    ]
    (results,) = ranks(1).call(submission.used_by(planned), [Args(cases)]).values
    for begin, seen in zip(("batch must be", "tokens must be", "no layout of"), results, strict=True):
        expect(str(seen).startswith(f"ValueError: {begin}"), f"ValueError that begins with {begin!r}").holds(str(seen))


# The trainer ----------------------------------------------------------------------------------------------------------


def run(
    submission: Submission, ranks: Ranks, layout: dict[str, Any], steps: int, saved: Any = None, **options: Any
) -> Run:
    """Train on four ranks. saved: of each rank; None: no checkpoints."""
    own = [None] * 4 if saved is None else saved
    own_loop = options.pop("own_loop", False)
    given = [Args(SIZES, layout, steps, options, checkpoints, own_loop) for checkpoints in own]
    return ranks(4).call(submission.used_by(trained), given)


def like_one_process(seen: Run, layout: dict[str, Any], steps: int, what: str, **options: Any) -> None:
    """Expect losses and weights of one process."""
    right = one_process(SIZES, layout, steps, **options)
    for rank, value in enumerate(seen.values):
        if value["losses"]:
            losses = [value["losses"].get(step, math.nan) for step in range(steps)]
            expect([torch.tensor(losses)], f"{what}: losses of rank {rank}").close_to(
                [torch.tensor(right["losses"])], rel=1e-4
            )
        # not weight by weight: Adam makes much of gradients that should be 0, such as those of the keys' biases
        loss = torch.tensor([loss_of(SIZES, weights, 16) for weights in (value["weights"], right["weights"])])
        expect([loss[0]], f"{what}: loss of rank {rank}'s whole model on held-out text").close_to([loss[1]], rel=1e-4)


MESHES: list[dict[str, Any]] = [
    {"batch": 8, "microbatch": 2, "data": 2, "pipeline": 2},
    {"batch": 8, "microbatch": 4, "pipeline": 2, "tensor": 2, "zero": 0, "recompute": "full"},
]


@check(
    points=3,
    todo=2,
    title="build: shards, copies in float32, recomputation",
    look_at="build: ZeroOptimizer, MasterAdamW, Recomputed",
)
def parts(submission: Submission, ranks: Ranks) -> None:
    layout: dict[str, Any] = {
        "batch": 4,
        "microbatch": 1,
        "data": 2,
        "tensor": 2,
        "precision": "bf16",
        "recompute": "full",
    }
    seen = run(submission, ranks, layout, 1, own_loop=True)
    model = model_of(*SIZES)
    for rank, value in enumerate(seen.values):
        expect(value["dtypes"], f"dtypes of the weights of rank {rank}, precision bf16").equals(["torch.bfloat16"])
        # between 1/4 of 12 bytes, and a little more: norms and some biases are on both tensor-parallel ranks
        nbytes, what = (
            12 * model.parameters / 4,
            f"bytes of optimizer state of rank {rank}, a quarter of 12 for each weight",
        )
        expect(value["state"], what, unit="bytes").at_least(nbytes)
        expect(value["state"], what, unit="bytes").at_most(1.15 * nbytes + 4096)
        expect(value["calls"], f"forward passes of 2 blocks in 2 microbatches, recomputed, on rank {rank}").equals(8)


# Checkpoints ----------------------------------------------------------------------------------------------------------


@check(
    points=4,
    todo=3,
    title="save and load: a step counts if all places have it",
    look_at="load: the folders that all places have, the newest first; exchange after each attempt",
)
def resumes(submission: Submission, ranks: Ranks) -> None:
    layout: dict[str, Any] = {"batch": 8, "microbatch": 4, "data": 2, "pipeline": 2}
    options: dict[str, Any] = {"held_out": 6, "learning_rate": 0.01}
    every: dict[str, Any] = {"checkpoint_every": 1}
    whole = run(submission, ranks, layout, 4, [{}] * 4, own_loop=True, **options, **every)
    for rank, value in enumerate(whole.values):
        expect(sorted(value["saved"]), f"folders of rank {rank} after 4 steps").equals(
            [f"step_0000000{n}" for n in (1, 2, 3, 4)]
        )
    places = [value["places"] for value in whole.values]
    expect(places, "folder of each rank's checkpointer").equals([["pp0_tp0"]] * 2 + [["pp1_tp0"]] * 2)
    names = ["step_00000001", "step_00000002", "step_00000003"]
    cases: list[tuple[str, list[list[str]], list[str], int]] = [
        ("all places have steps 1 and 2", [names[:2]] * 4, [], 2),
        ("step 3 is missing in the second place", [names, names, names[:2], names[:2]], [], 2),
        ("step 2 is torn in the first place", [names[:2]] * 4, ["step_00000002"], 1),
        ("the places have nothing", [[]] * 4, [], 0),
    ]
    for text, folders, torn, step in cases:
        ranks.renew()
        saved = [
            {name: value["saved"][name] if name not in torn or rank > 1 else torch.empty(0, dtype=torch.uint8)
             for name in folders[rank]}
            for rank, value in enumerate(whole.values)
        ]  # fmt: skip
        again = run(submission, ranks, layout, 4, saved, own_loop=True, **options)
        for rank, (seen, right) in enumerate(zip(again.values, whole.values, strict=True)):
            expect(seen.get("first_step", seen.get("error")), f"{text}: first step of rank {rank}").equals(step)
            rest = {n: loss for n, loss in right["losses"].items() if n >= step}
            expect(seen["losses"], f"{text}: losses of rank {rank} from there").equals(rest)
            expect(seen["weights"], f"{text}: weights of rank {rank} at the end").equals(right["weights"])


# Training -------------------------------------------------------------------------------------------------------------


@check(
    points=4,
    todo=4,
    title="train: like one process, on any mesh",
    look_at="train: the rate of each step, and which part of the batch; build: what averages gradients",
)
def sibling(submission: Submission, ranks: Ranks) -> None:
    options: dict[str, Any] = {"held_out": 6, "learning_rate": 0.01}
    for layout in MESHES:
        seen = run(submission, ranks, layout, 3, **options)
        expect(any(value["losses"] for value in seen.values), "losses on the ranks of the last stage").holds("none")
        like_one_process(seen, layout, 3, f"{layout}", **options)
    whole = run(submission, ranks, MESHES[0], 4, [{}] * 4, checkpoint_every=2, **options)
    names = [sorted(value["saved"]) for value in whole.values]
    expect(names, "folders after 4 steps, a checkpoint every 2").equals([["step_00000002", "step_00000004"]] * 4)
    ranks.renew()
    saved = [{"step_00000002": value["saved"]["step_00000002"]} for value in whole.values]
    again = run(submission, ranks, MESHES[0], 4, saved, **options)
    for rank, (seen_again, right) in enumerate(zip(again.values, whole.values, strict=True)):
        expect(seen_again["first_step"], f"first step of rank {rank} after a checkpoint of step 2").equals(2)
        expect(seen_again["weights"], f"weights of rank {rank} at the end, as without an interruption").equals(
            right["weights"]
        )


@check(
    points=4,
    todo=4,
    title="the sibling learns",
    look_at="train: inputs are all tokens but the last, targets all but the first",
)
def learns(submission: Submission, ranks: Ranks) -> None:
    sizes, layout = [1, 32, 2, 16], {"batch": 16, "microbatch": 4, "data": 2, "pipeline": 2}
    options: dict[str, Any] = {"held_out": 64, "learning_rate": 0.02}
    seen = ranks(4).call(submission.used_by(trained), [Args(sizes, layout, 40, options, None)] * 4)
    for rank, value in enumerate(seen.values):
        loss = loss_of(sizes, value["weights"], 64)
        expect(loss, f"loss of rank {rank}'s whole model on held-out text, after 40 steps, in nats").at_most(3.3)
        expect([torch.tensor(value["held_out_loss"])], f"held_out_loss that rank {rank} reports").close_to(
            [torch.tensor(loss)], rel=1e-4
        )


@check(points=2, todo=4, title="generate: each token by its probability", look_at="generate: the last `context` tokens")
def generation(submission: Submission, ranks: Ranks) -> None:
    table = torch.randn(7, 7, 7, generator=torch.Generator().manual_seed(0))
    prompt = torch.tensor([3, 1], dtype=torch.uint8)
    (result,) = ranks(1).call(submission.used_by(generated), [Args(table, prompt, 12, 5, 1)]).values
    expect(result[1], "most tokens that the model sees, context 5").equals(5)
    expect(result[0], "the prompt and 12 tokens").equals(right_tokens(table, prompt, 12, 5, 1))


HINTS = {
    1: [
        "The search asks `measure` for time and memory of layouts, some of which your trainer cannot run. "
        "What must they look like, so that none of them is chosen? How many bytes does each node write, and "
        "how many read?",
        "`given.as_trained(layout)` None: infinite seconds and bytes. Else `predict` of *that* layout. The "
        "search returns the layout it was asked about: make it as trained again. Steps are whole. Written: 14"
        " N / nnodes bytes. Read by each of `nproc_per_node` GPUs: 2 N / (tensor * pipeline), and 12 N / "
        "world_size.",
        "`step = predict(model, trained, cluster)`, `Measurement(step.step_seconds, step.device_bytes.high)`;"
        " `layout = given.as_trained(autotune.search_layout(model, cluster, batch, measure))`; `ceil(tokens /"
        " (batch * model.sequence))`. `recovery = given.RESTART_SECONDS + cluster.storage.read_seconds(...)`,"
        " `fault_tolerance.young_daly_interval(saving, given.FAILURE_SECONDS, gpus).daly`, then `goodput`, "
        "which divides the days.",
    ],
    2: [
        "Which of data, pipeline and tensor are the mesh's dp, pp and tp? Who averages the gradients in ZeRO 1?",
        "`parallel_3d.build_mesh(layout.data, layout.pipeline, layout.tensor)`. `Parallel3DTrainer(config, "
        'mesh, make_optimizer, microbatches, data_parallel=..., wrap=..., seed=..., dtype=...)`: "optimizer" '
        "with ZeRO 1.",
        "`zero.ZeroOptimizer(parameters, given.MasterAdamW, layout.zero, group, lr=plan.learning_rate)`; "
        "`wrap=partial(given.Recomputed, checkpoint=activation_checkpointing.checkpoint)` if "
        "`layout.recompute == 'full'`.",
    ],
    3: [
        "A crash can come when one place has written its folder and another one has not. Which folders may be"
        " loaded? What if a folder is there, but one place cannot read it?",
        "`given.exchange(given.checkpoint_folders(self.checkpointer.storage), None)` returns a list of "
        "folders for each rank: take their intersection, newest first. After each attempt exchange its step: "
        "None where it failed.",
        "`for folder in sorted(set.intersection(*map(set, folders)), reverse=True)`: `try: step = "
        "self.checkpointer.load_first(self.components, lambda _, folder=folder: [folder])`, `except "
        "checkpointing.CheckpointError: step = None`; `if None not in given.exchange(step, None): return "
        "int(step)`.",
    ],
    4: [
        "What does a step need that the step before has changed? Which tokens predict which?",
        "`given.tokens_of_step(plan, step).chunk(dp)[this rank's dp]`: inputs are `[:, :-1]`, targets `[:, "
        "1:]`. Resume before the loop, from `checkpoints.load()`; after step s, s + 1 steps are done. "
        "`generate`: logits of the last position, `softmax`, `torch.multinomial`, and again with the token at"
        " the end.",
        "`for step in range(report.first_step, plan.steps)`: `group['lr'] = plan.learning_rate_at(step)` in "
        "each group of `trainer.optimizer.param_groups`; `loss = trainer.train_step(mine[:, :-1], mine[:, "
        "1:])`; `if checkpoints and plan.checkpoint_every and (step + 1) % plan.checkpoint_every == 0: "
        "checkpoints.save(step + 1)`. `logits = model(tokens[None, -context:])[0, -1]`.",
    ],
}
