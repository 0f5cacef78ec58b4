"""A short training with exercise 25's trainer, for its checks: the ranks' side, and the results of one process.

    stepped(options, weights, batches, ...)     on a rank: take a step with each batch; return its observations
    SmallNet(kind)                              the model that is trained: three blocks and a head, in float64
    expected(weights, batches, ...)             one process, with the samples of all ranks

Ranks of a check share no folder. So what is saved is kept in the ranks' memory, by a stand-in for exercise 20, and goes
through the check to the ranks that load it.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from labkit.course.flop_work import FlopWork
from labkit.course.phase4_production.checkpointing.given.shards import ShardedState
from labkit.data import ImageSets
from labkit.models import ResNet

FEATURES, WIDTH, CLASSES = 5, 7, 6
LEARNING_RATE, MOMENTUM = 0.3, 0.5
INIT_SCALE = 2.0**10
"""Initial loss scale in float16."""


class SmallNet(nn.Module):
    """Three blocks in a list, and a head. kind: "plain"; "dropout" or "norm", another layer in each block; "float32".

    calls: how often each block has computed its forward pass.
    """

    def __init__(self, kind: str = "plain") -> None:
        super().__init__()
        self.calls = 0
        self.blocks = nn.ModuleList(_Block(self, FEATURES if not n else WIDTH, kind) for n in range(3))
        self.head = nn.Linear(WIDTH, CLASSES)
        self.to(torch.float32 if kind == "float32" else torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x)
        return logits


class _Block(nn.Module):
    def __init__(self, net: SmallNet, inputs: int, kind: str) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, WIDTH)
        self.extra: nn.Module = nn.Identity()
        if kind == "dropout":
            self.extra = nn.Dropout(0.3)
        elif kind == "norm":
            self.extra = nn.BatchNorm1d(WIDTH)
        self._count = partial(_count, net.__dict__)

    def forward(self, x: Tensor) -> Tensor:
        self._count()
        y: Tensor = torch.tanh(self.extra(self.linear(x)))
        return y


def _count(state: dict[str, Any]) -> None:
    state["calls"] += 1


def net_of(weights: Sequence[Tensor], kind: str = "plain") -> SmallNet:
    """Return a model with these weights in the place of those of its linear layers."""
    net = SmallNet(kind)
    linears = [module for module in net.modules() if isinstance(module, nn.Linear)]
    with torch.no_grad():
        for linear, weight, bias in zip(linears, weights[::2], weights[1::2], strict=True):
            linear.weight.copy_(weight)
            linear.bias.copy_(bias)
    return net


def shapes() -> list[tuple[int, ...]]:
    """Return the shapes of the weights."""
    return [tuple(parameter.shape) for parameter in SmallNet().parameters()]


class MemoryCheckpoints:
    """The last checkpoint and the last best one, as bytes in this rank's memory.

    As in exercise 20, what is alike on all ranks is that of rank 0; with shards each rank has its own.
    """

    saved: dict[str, list[Any]]
    """Step, and bytes of this rank, by "latest" and "best"."""
    names: list[str]
    """Names of the components in the last checkpoint."""
    due: frozenset[int] = frozenset()
    """Steps after which a checkpoint is due."""

    def __init__(self, checkpoint_dir: Any, *, metric: str, mode: str, **options: Any) -> None:
        self.metric, self.mode = metric, mode

    def should_checkpoint(self, step: int) -> bool:
        return step in self.due

    def save_checkpoint(self, step: int, components: Any, metrics: Any = None) -> str:
        states = {name: component.state_dict() for name, component in components.items()}
        buffer = io.BytesIO()
        torch.save({"states": states, "random": torch.get_rng_state()}, buffer)
        mine = torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)
        type(self).names = sorted(components)
        self.saved["latest"] = [step, mine]
        if (metrics or {}).get(self.metric, 0) > 0 and self.mode == "max":
            self.saved["best"] = [step, mine]
        return f"step_{step:08}"

    save_async = save_checkpoint

    def wait(self) -> None:
        """Return at once: `save_async` has already written everything."""

    def load_latest_checkpoint(self, components: Any) -> int | None:
        return self._load("latest", components)

    def load_best_checkpoint(self, components: Any) -> int | None:
        return self._load("best", components)

    def _load(self, which: str, components: Any) -> int | None:
        if which not in self.saved:
            return None
        step, mine = self.saved[which]
        size = torch.tensor([len(mine)])
        dist.broadcast(size, 0)
        first = mine.clone() if dist.get_rank() == 0 else torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(first, 0)
        own, alike = (torch.load(io.BytesIO(bytes(data.numpy())), weights_only=False) for data in (mine, first))
        for name, component in components.items():
            states = own["states"] if ShardedState(components).flats(component) else alike["states"]
            component.load_state_dict(states[name])
        torch.set_rng_state(own["random"])
        return int(step)


def chosen(cases: list[list[float]]) -> list[list[Any]]:
    """On a rank: return strategy and offload for each case, or the error."""
    from labkit.exercises import image_classification

    found: list[list[Any]] = []
    for parameters, gpus, memory, activations, optimizer, unit in cases:
        try:
            choice = image_classification.choose_strategy(
                int(parameters), int(gpus), memory, activations, optimizer, unit
            )
            found.append([choice.strategy, bool(choice.cpu_offload)])
        except ValueError:
            found.append(["ValueError", False])
    return found


def trainer_of(
    module: Any, options: dict[str, Any], weights: Sequence[Tensor], kind: str, saved: dict[str, list[Any]] | None,
    **more: Any,
) -> tuple[Any, Any, SmallNet]:  # fmt: skip
    """Return the learner's trainer of a small net, its checkpointer's class, and the net.

    saved: that of `MemoryCheckpoints`; None: no checkpoints.
    """
    own: dict[str, Any] = {"saved": saved, "names": []}
    checkpoints: Any = type("Checkpoints", (MemoryCheckpoints,), own)
    # gradients in 16 bits must not overflow by themselves
    scaler = partial(module.DistributedTrainer.scaler_type, INIT_SCALE)
    own = {"checkpointer_type": checkpoints, "scaler_type": scaler}
    trainer: Any = type("Trainer", (module.DistributedTrainer,), own)
    net = net_of([weight + dist.get_rank() for weight in weights], kind)
    optimizer = partial(torch.optim.SGD, lr=LEARNING_RATE, momentum=MOMENTUM)
    options = {"make_optimizer": optimizer, "checkpoint_dir": None if saved is None else "run", **options, **more}
    return trainer(net, **options), checkpoints, net


def flat(state: dict[str, Any]) -> Tensor:
    """Return all values of a state in one tensor, float64."""
    return torch.cat([value.detach().reshape(-1).double() for value in state.values()])


def stepped(
    options: dict[str, Any],
    weights: list[Tensor],
    batches: list[list[Tensor]],
    kind: str = "plain",
    planted: Sequence[int] = (),
    saved: Any = None,
    loads: str = "",
    saves: Sequence[int] = (),
    best: Sequence[int] = (),
    mark: Callable[[], Any] | None = None,
    busy: Callable[[], Any] | None = None,
    flops: float = 1.0,
    measures: bool = False,
) -> dict[str, Any]:
    """On a rank: take a step with each of its batches, and return its observations, plain data.

    planted: steps in which the loss is infinite on this rank. loads: "latest" or "best", before the first step. saves,
    best: steps of this launch, from 1, after which it saves, as best. mark: called around each step. busy: takes a
    known time, called for each so many `flops`. measures: return performance metrics, too.
    """
    from labkit.exercises import image_classification

    torch.manual_seed(100 + dist.get_rank() + (1000 if loads else 0))
    dtypes: list[str] = []
    step = 0

    def loss_fn(outputs: Tensor, targets: Tensor) -> Tensor:
        dtypes.append(str(outputs.dtype))
        loss = F.cross_entropy(outputs if outputs.dtype == torch.float64 else outputs.float(), targets)
        return loss * float("inf") if step in planted else loss

    trainer, checkpoints, net = trainer_of(
        image_classification, options, weights, kind, {} if saved is None else dict(saved), loss_fn=loss_fn
    )
    observed: dict[str, Any] = {"losses": [], "times": [], "weights": [], "averages": [], "scales": [], "calls": []}
    observed["strategy"] = [trainer.strategy, trainer.cpu_offload]
    observed["loaded"] = int(trainer.load_checkpoint(best=loads == "best")) if loads else 0
    context = FlopWork(busy, flops) if busy is not None else None
    for inputs, targets in batches:
        step += 1
        inputs = inputs.to(net.head.weight.dtype)
        before = net.calls
        trainer.model.train()
        if mark is not None:
            mark()
        if context is not None:
            with context:
                metrics = trainer.train_step((inputs, targets))
        else:
            metrics = trainer.train_step((inputs, targets))
        if mark is not None:
            mark()
        observed["calls"].append(net.calls - before)
        observed["losses"].append(float(metrics.loss))
        observed["times"].append([float(metrics.compute_time), float(metrics.communication_time)])
        observed["weights"].append(flat(trainer.model.state_dict()))
        observed["scales"].append(None if trainer.scaler is None else float(trainer.scaler.get_scale()))
        if trainer.average is not None:
            with trainer.average.applied():
                observed["averages"].append(flat(trainer.model.state_dict()))
        if step in saves:
            trainer.save_checkpoint(is_best=step in best)
    observed["dtypes"] = sorted(set(dtypes))
    observed["saved"], observed["names"] = checkpoints.saved, checkpoints.names
    if measures and mark is not None:
        mark()
        observed["metrics"] = trainer.get_performance_metrics()
        mark()
    return observed


def expected(
    weights: Sequence[Tensor],
    batches: Sequence[Sequence[Sequence[Tensor]]],
    clip_norm: float | None = None,
    ema_decay: float | None = None,
) -> dict[str, list[Any]]:
    """Return the results of one process, by step: losses of each rank before it, weights and averages after it.

    batches: those of each rank, in the order of the ranks.
    """
    net = net_of(weights)
    optimizer = torch.optim.SGD(net.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    results: dict[str, list[Any]] = {"losses": [], "weights": [], "averages": []}
    average: Tensor | None = None
    for number, of_ranks in enumerate(zip(*batches, strict=True), start=1):
        optimizer.zero_grad()
        losses = [F.cross_entropy(net(inputs), targets) for inputs, targets in of_ranks]
        torch.stack(losses).mean().backward()
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(net.parameters(), clip_norm)
        optimizer.step()
        now = flat(net.state_dict())
        if ema_decay is not None:
            decay = 0.0 if average is None else min(ema_decay, number / (9 + number))
            average = now if average is None else decay * average + (1 - decay) * now
            results["averages"].append(average)
        results["losses"].append([float(loss.detach()) for loss in losses])
        results["weights"].append(now)
    return results


def tested(
    options: dict[str, Any], weights: list[Tensor], images: Tensor, labels: Tensor, batch_size: int
) -> list[float]:
    """On a rank: return the sums that `count_hits` returns for these test images."""
    from labkit.exercises import image_classification

    trainer, _, _ = trainer_of(image_classification, options, weights, "plain", None)
    data = TensorDataset(images, labels)
    recipe = image_classification.ImageTrainer(trainer, ImageSets(data, data, 1, 1, CLASSES), batch_size, 1, 0.1)
    with recipe.testing():
        sums = recipe.count_hits()
    return [float(total) for total in sums]


def rates(batch_size: int, epochs: int, warmup_epochs: float, size: int, peak: float) -> list[float]:
    """On a rank: return the learning rate of each step of a training, and of the one after it."""
    from labkit.exercises import image_classification

    weights = [torch.zeros(shape, dtype=torch.float64) for shape in shapes()]
    trainer, _, _ = trainer_of(image_classification, {"strategy": "ddp"}, weights, "plain", None)
    data = TensorDataset(torch.zeros(size, FEATURES, dtype=torch.float64), torch.zeros(size, dtype=torch.int64))
    recipe = image_classification.ImageTrainer(
        trainer, ImageSets(data, data, 1, 1, CLASSES), batch_size, epochs, peak, warmup_epochs=warmup_epochs
    )
    return [float(recipe.learning_rate_at(step)) for step in range(recipe.total_steps + 1)]


def fitted(
    options: dict[str, Any], weights: list[Tensor], images: Tensor, labels: Tensor, plan: dict[str, Any]
) -> dict[str, Any]:
    """On a rank: fit, perhaps only up to a step, perhaps from a checkpoint; return the results, plain data.

    plan: `epochs`, `batch_size`, `seed`, `kind`; `due`: steps after which a checkpoint is due; `stops`: the step within
    which this launch fails, 0 never; `saved`: that of an earlier launch, to resume from, or None.
    """
    from labkit.exercises import image_classification

    class Stop(Exception):
        """Raised to end a launch that fails."""

    calls: list[list[Any]] = []

    def loss_fn(outputs: Tensor, targets: Tensor) -> Tensor:
        if len(calls) + 1 == plan["stops"]:
            raise Stop
        loss = F.cross_entropy(outputs, targets)
        rate = trainer.optimizer.param_groups[0]["lr"]
        calls.append([float(loss.detach()), float(rate), targets.tolist()])
        return loss

    torch.manual_seed(7 + dist.get_rank() + (1000 if plan["saved"] else 0))
    saved = dict(plan["saved"] or {})
    trainer, checkpoints, _ = trainer_of(image_classification, options, weights, plan["kind"], saved, loss_fn=loss_fn)
    checkpoints.due = frozenset(plan["due"])
    data = TensorDataset(images, labels)
    recipe = image_classification.ImageTrainer(
        trainer,
        ImageSets(data, data, 1, 1, CLASSES),
        plan["batch_size"],
        plan["epochs"],
        0.5,
        warmup_epochs=0.5,
        base_batch_size=plan["batch_size"],
        seed=plan["seed"],
    )
    report: dict[str, Any] = {}
    with contextlib.suppress(Stop):
        report = recipe.fit(resume=plan["saved"] is not None)
    return {
        "steps": calls,
        "report": {name: report[name] for name in ("epoch", "step", "loss", "top1", "top5") if name in report},
        "saved": checkpoints.saved,
        "names": checkpoints.names,
        "weights": flat(trainer.model.state_dict()),
    }


def digits_model() -> nn.Module:
    """Return a ResNet with 20 thousand parameters, which learns the digits in two seconds."""
    return ResNet(1, 10, (1, 1, 1), 8, False, small_images=True)


def digits_classified(epochs: int, batch_size: int, seed: int) -> dict[str, Any]:
    """On a rank: train a small ResNet on the digits; return its averaged state, and metrics that `fit` returned."""
    from labkit.data import image_sets
    from labkit.exercises import image_classification

    torch.manual_seed(seed)
    trainer = image_classification.DistributedTrainer(
        digits_model(),
        "ddp",
        make_optimizer=partial(torch.optim.AdamW, lr=0.03, weight_decay=0.05),
        loss_fn=partial(F.cross_entropy, label_smoothing=0.1),
        ema_decay=0.95,
    )
    recipe = image_classification.ImageTrainer(
        trainer, image_sets("digits", seed=seed), batch_size, epochs, 0.03, warmup_epochs=1, seed=seed
    )
    report = recipe.fit()
    trainer.make_alike()
    with trainer.average.applied():
        state = {name: value.detach().clone() for name, value in trainer.model.state_dict().items()}
    return {"state": state, "top1": float(report["top1"]), "top5": float(report["top5"]), "step": int(report["step"])}
