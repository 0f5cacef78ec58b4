"""A short training whose ranks fail on purpose, for checks of fault tolerance: launched again, as an agent would.

    training = FailingTraining(launch, weights, inputs, targets, seed, epochs=2)
    run = training.launch(3, faults=[kill(1, at=0.055)])
    run = training.launch(3, restarts=1)                # continues from what the first launch has saved
    training.expected_losses()                          # by one process, by step

Its ranks run `short_training`. `intervals_of`, `goodputs_of` and `launched` are the ranks' side of the other checks.

Ranks of a check share no folder, and nothing that one call leaves is there in the next one. So checkpoints are kept in
the ranks' memory, by a stand-in for exercise 20, and the copies of surviving ranks go through the check to
the next launch; likewise rank 0's journal.
"""

from __future__ import annotations

import io
import multiprocessing.util
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from labkit.clusters import RankResult, Run
from labkit.clusters.arguments import work
from labkit.course.phase4_production.fault_tolerance.given import ElasticConfig
from labkit.course.phase4_production.fault_tolerance.given.global_batches import GlobalBatchSampler

FORWARD = 0.01
"""Virtual seconds of a step's forward pass."""
WRITE = 0.004
"""Virtual seconds to write a checkpoint."""
READ = 1e-4
"""Virtual seconds to read a sample."""
HANG = 1000.0
"""Virtual seconds of a rank that hangs."""
MISTAKES = (NotImplementedError, AttributeError, NameError, TypeError, KeyError, IndexError, ValueError)
"""Errors that no failure of another rank causes: they end the check, with the learner's line."""


def intervals_of(cases: list[list[float]]) -> list[list[float]]:
    """On a rank: return Young's and Daly's interval of each case: arguments of `young_daly_interval`."""
    from labkit.exercises import fault_tolerance

    found = []
    for seconds, mtbf, gpus in cases:
        result = fault_tolerance.young_daly_interval(seconds, mtbf, int(gpus))
        found.append([float(result.young), float(result.daly)])
    return found


def goodputs_of(cases: list[list[float]]) -> list[float]:
    """On a rank: return the goodput of each case: arguments of `goodput`."""
    from labkit.exercises import fault_tolerance

    return [float(fault_tolerance.goodput(*case[:4], int(case[4]))) for case in cases]


class RecordingCluster:
    """Keeps the jobs that it should run, and returns the same result for each."""

    def __init__(self, result: Run) -> None:
        self.result = result
        self.jobs: list[Any] = []

    def run(self, job: Any, *more: Any, **options: Any) -> Run:
        self.jobs.append(job)
        return self.result


def launched(least: int, most: int, ranks_per_node: int, restarts: int, fails: bool) -> dict[str, Any]:
    """On a rank: launch a job on a `RecordingCluster`; return its fields, and the type of the error, or ""."""
    from labkit.exercises import fault_tolerance

    with tempfile.TemporaryDirectory(dir=multiprocessing.util.get_temp_dir()) as folder:
        program = Path(folder) / "program.py"
        program.write_text("print('trains')\n")
        cluster: Any = RecordingCluster(Run([RankResult(0, exit=-9 if fails else 0)]))
        config = ElasticConfig(program, ranks_per_node, least, most, restarts, cluster, {"NAME": "value"})
        failure = ""
        try:
            fault_tolerance.ElasticTraining(folder).launch_elastic_training(config)
        except NotImplementedError:
            raise  # a part that is not written yet is no answer
        except Exception as error:
            failure = type(error).__name__
    (job,) = cluster.jobs
    names = ("min_nnodes", "nnodes", "nproc_per_node", "max_restarts", "source", "hang_timeout", "on_hang")
    fields = {name: getattr(job, name) for name in names}
    return {**fields, "environment": dict(job.environment), "error": failure}


class MemoryCheckpoints:
    """The last checkpoint, in this rank's memory; it counts when all ranks have written it."""

    def __init__(self, folder: str, every: int, saved: Sequence[Any] | None, write: Callable[[], object]) -> None:
        """every: steps between checkpoints. saved: step and bytes of one from an earlier launch."""
        self.checkpoint_dir, self.every, self.saved, self.write = folder, every, saved, write

    def should_checkpoint(self, step: int) -> bool:
        return step % self.every == 0

    def save_checkpoint(self, step: int, components: Mapping[str, Any], metrics: Any = None) -> None:
        own = torch.get_rng_state()
        random = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(random, own)
        states = {name: component.state_dict() for name, component in components.items()}
        buffer = io.BytesIO()
        torch.save({"states": states, "random": random}, buffer)
        self.write()
        dist.barrier()
        self.saved = [step, torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)]

    def save_async(self, step: int, components: Mapping[str, Any], metrics: Any = None) -> None:
        self.save_checkpoint(step, components, metrics)

    def wait(self) -> None:
        """Return at once: `save_async` has already written everything."""

    def load_latest_checkpoint(self, components: Mapping[str, Any]) -> int | None:
        if self.saved is None:
            return None
        state = torch.load(io.BytesIO(bytes(self.saved[1].numpy())), weights_only=True)
        for name, component in components.items():
            component.load_state_dict(state["states"][name])
        torch.set_rng_state(state["random"][dist.get_rank() % len(state["random"])])
        return int(self.saved[0])


class _Samples(Dataset[tuple[Tensor, Tensor]]):
    """Samples that take time to read; `read` lists which ones."""

    def __init__(self, inputs: Tensor, targets: Tensor, reading: Callable[[], object]) -> None:
        self.inputs, self.targets, self.reading = inputs, targets, reading
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.reading()
        self.read.append(index)
        return self.inputs[index], self.targets[index]


def _model(weights: Sequence[Tensor], dropout: float) -> nn.Module:
    hidden, features = weights[0].shape
    model = nn.Sequential(nn.Linear(features, hidden), nn.Tanh(), nn.Dropout(dropout), nn.Linear(hidden, 1))
    with torch.no_grad():
        for parameter, values in zip(model.parameters(), weights, strict=True):
            parameter.copy_(values)
    return model


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def short_training(
    weights: list[Tensor],
    inputs: Tensor,
    targets: Tensor,
    options: dict[str, Any],
    saved: list[Any] | None,
    journal: str,
    forward: Callable[[], object],
    write: Callable[[], object],
    reading: Callable[[], object],
    hang: Callable[[], object],
    mark: Callable[[], object],
) -> dict[str, Any]:
    """On a rank: train, and return the results, plain data, also after an error.

    options: `epochs`, `batch`, `every`, `seed`, `dropout`, `hang_timeout`, `restarts`; `hangs_at`, `dies_at`,
    `raises_at`: step of this launch, from 1, at which this rank does; 0: never.
    """
    from labkit.exercises import fault_tolerance

    os.environ["TORCHELASTIC_RESTART_COUNT"] = str(options["restarts"])
    # random numbers of each rank's own, different ones after a restart unless a checkpoint restores them
    torch.manual_seed(1000 * options["restarts"] + dist.get_rank())
    # in the folder that is removed with the run: a rank that dies removes nothing
    with tempfile.TemporaryDirectory(dir=multiprocessing.util.get_temp_dir()) as folder:
        path = Path(folder) / "journal.jsonl"
        if journal:
            path.write_text(journal)
        checkpoints = MemoryCheckpoints(folder, options["every"], saved, write)
        training = fault_tolerance.ElasticTraining(checkpoints, options["hang_timeout"])
        model = _model([tensor + dist.get_rank() for tensor in weights], options["dropout"])
        samples = _Samples(inputs, targets, reading)
        ranks = dist.get_world_size(), dist.get_rank()
        sampler = GlobalBatchSampler(len(samples), options["batch"], *ranks, seed=options["seed"])
        loader = DataLoader(samples, batch_sampler=sampler)
        steps = 0

        def criterion(outputs: Tensor, wanted: Tensor) -> Tensor:
            nonlocal steps
            steps += 1
            if steps == options["hangs_at"]:
                hang()
            if steps == options["dies_at"]:
                os.kill(os.getpid(), 9)
            if steps == options["raises_at"]:
                raise ArithmeticError("planted in a step")
            forward()
            return F.mse_loss(outputs, wanted)

        losses: dict[int, float] = {}
        failure = ""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                losses = training.train_with_fault_tolerance(
                    model, _optimizer(model), criterion, loader, options["epochs"]
                )
            except MISTAKES:
                raise
            except Exception as error:
                failure = f"{type(error).__name__}: {error}"
        mark()
        return {
            "losses": [[int(step), float(loss)] for step, loss in losses.items()],
            "error": failure,
            "saved": checkpoints.saved,
            "journal": path.read_text() if path.exists() else "",
            "read": [int(index) for index in samples.read],
            "steps": steps,
            "weights": torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]),
            "warnings": [str(warning.message) for warning in caught if "global batch" in str(warning.message)],
        }


def weight_shapes(features: int, hidden: int) -> list[tuple[int, ...]]:
    """Return the shapes of the model's weights."""
    return [(hidden, features), (hidden,), (1, hidden), (1,)]


Launch = Callable[..., Run]
"""`launch(arguments, **hardware)` calls `short_training` on fresh ranks, each with one of `arguments`, and returns
also a failed run."""


class FailingTraining:
    """The judge's side: launches, each with the checkpoint and journal of the one before."""

    def __init__(
        self,
        launch: Launch,
        weights: list[Tensor],
        inputs: Tensor,
        targets: Tensor,
        seed: int,
        *,
        epochs: int = 2,
        batch: int = 7,
        every: int = 3,
        dropout: float = 0.0,
        hang_timeout: float = 60.0,
    ) -> None:
        """weights: rank 0's at the start. inputs, targets: one row for each sample. seed: of the order of samples."""
        self._launch = launch
        self.weights, self.inputs, self.targets = weights, inputs, targets
        self.options: dict[str, Any] = {
            "epochs": epochs,
            "batch": batch,
            "every": every,
            "seed": seed,
            "dropout": dropout,
            "hang_timeout": hang_timeout,
        }
        self.saved: list[Any] | None = None
        """Step and bytes of the last checkpoint."""
        self.journal = ""

    @property
    def steps(self) -> int:
        """Steps of the whole training."""
        return int(self.options["epochs"]) * -(-len(self.inputs) // int(self.options["batch"]))

    def launch(
        self,
        world_size: int,
        restarts: int = 0,
        *,
        keep: bool = True,
        at: Mapping[int, Mapping[str, int]] | None = None,
        **hardware: Any,
    ) -> Run:
        """Train on fresh ranks, which may fail, from the last checkpoint, if there is one.

        at: for ranks by number: `hangs_at`, `dies_at`, `raises_at`. keep: let the next launch continue from here.
        hardware: passed on to the `Launch`.
        """
        none = {"hangs_at": 0, "dies_at": 0, "raises_at": 0}

        def given(rank: int) -> tuple[Any, ...]:
            own = {**self.options, "restarts": restarts, **none, **(at or {}).get(rank, {})}
            works = [("forward", FORWARD), ("write", WRITE), ("read", READ), ("hang", HANG), ("mark", 1e-9)]
            saved = None if self.saved is None else [self.saved[0], self.saved[1].clone()]
            weights = [tensor.clone() for tensor in self.weights]
            journal = self.journal if rank == 0 else ""
            data = weights, self.inputs.clone(), self.targets.clone()
            return (*data, own, saved, journal, *(work(name, seconds) for name, seconds in works))

        run = self._launch([given(rank) for rank in range(world_size)], **hardware)
        mistakes = {mistake.__name__ for mistake in MISTAKES}
        if any(result.error is not None and result.error.type in mistakes for result in run.ranks):
            run.raise_if_failed()
        results = [value for value in run.values if isinstance(value, dict)]
        if keep and results:
            # a checkpoint counts when all ranks have it
            self.saved = min((value["saved"] for value in results), key=lambda saved: saved[0] if saved else -1)
            if isinstance(run.values[0], dict):
                self.journal = run.values[0]["journal"]
        return run

    def order(self, step: int) -> list[int]:
        """Return the samples of the global batch of that step, counted from 1."""
        each = self.steps // int(self.options["epochs"])
        sampler = GlobalBatchSampler(len(self.inputs), self.options["batch"], 1, 0, seed=self.options["seed"])
        sampler.set_epoch((step - 1) // each)
        return list(sampler)[(step - 1) % each]

    def expected_losses(self) -> dict[int, float]:
        """Return the loss of each step, by its number from 1, of one process that trains without dropout."""
        return self._alone()[0]

    def expected_weights(self) -> Tensor:
        """Return all weights after the last step, flat."""
        return self._alone()[1]

    def _alone(self) -> tuple[dict[int, float], Tensor]:
        model = _model(self.weights, 0.0)
        optimizer, losses = _optimizer(model), {}
        for step in range(1, self.steps + 1):
            batch = self.order(step)
            loss = F.mse_loss(model(self.inputs[batch]), self.targets[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[step] = loss.item()
        return losses, torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
