"""DeepSpeed trains on the lab's ranks as one process does, by configurations that it validates itself."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from waiting import BROKEN_SECONDS

from labkit import Job, catalogue, local, virtual
from labkit.course.phase3_multi_node.zero.given.deepspeed_adapter import (
    VERSION,
    initialize_deepspeed,
    validate_deepspeed_config,
)
from labkit.course.phase3_multi_node.zero.given.deepspeed_config import ENTRIES, SECTIONS, create_deepspeed_config
from labkit.installing import how_to_install

ROOT = Path(__file__).resolve().parents[4]
CLIP = 0.05
RUNS: list[dict[str, Any]] = [
    {"stage": 1},
    {"stage": 2},
    {"stage": 3, "param_persistence_threshold": 0},
    {"stage": 2, "gradient_accumulation_steps": 2, "optimizer": "SGD", "optimizer_params": {"momentum": 0.9}},
    {
        "stage": 3, "param_persistence_threshold": 0, "gradient_accumulation_steps": 2, "optimizer": "SGD",
        "optimizer_params": {"momentum": 0.9}, "offload_optimizer": True, "offload_params": True, "overlap_comm": False,
    },
    {"stage": 1, "optimizer": "Adam", "optimizer_params": {"weight_decay": 0.5}},  # AdamW decays otherwise
    {
        "stage": 2, "offload_optimizer": True,
        "zero_optimization": {
            "reduce_bucket_size": 50, "allgather_bucket_size": 50, "contiguous_gradients": False,
            "offload_optimizer": {"pin_memory": False},
        },
    },
]  # fmt: skip
"""Arguments of `create_deepspeed_config`. Clipped gradients change the steps of SGD, but hardly those of Adam."""

MODEL = """
import torch
from torch import nn


def model(seed):
    torch.manual_seed(seed)
    made = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 7), nn.Tanh(), nn.Linear(7, 3))
    made[2].bias.requires_grad_(False)
    return made


def batches(count):
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(6, 6, generator=generator), torch.randn(6, 3, generator=generator)) for _ in range(count)]
"""

TRAIN = """
import os

os.environ["DS_ACCELERATOR"] = "cpu"  # on machines with GPUs as well
import torch.distributed as dist
from labkit.exercises import zero
from labkit.course.phase3_multi_node.zero.given.deepspeed_adapter import initialize_deepspeed
from labkit.course.phase3_multi_node.zero.given.deepspeed_config import create_deepspeed_config


def mean_losses(options, net, step):
    losses = []
    for number, (x, y) in enumerate(batches(2 * options.get("gradient_accumulation_steps", 1)), 1):
        x, y = x.view(2, 3, -1)[rank], y.view(2, 3, -1)[rank]
        loss = nn.functional.mse_loss(net(x), y)
        step(number, loss)
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / 2)
    return losses


def by_exercise(options):
    passes, stage = options.get("gradient_accumulation_steps", 1), options["stage"]
    net, make = model(seed=rank), getattr(torch.optim, options.get("optimizer", "AdamW"))
    settings = {"lr": 0.1, **options.get("optimizer_params", {})}
    if stage == 3:
        owner = net = zero.FullyShardedDataParallel(net, cpu_offload=options.get("offload_params", False))
        optimizer = make([p for p in net.parameters() if p.requires_grad], **settings)
    else:
        owner = optimizer = zero.ZeroOptimizer(net.parameters(), make, stage, **settings)

    def step(number, loss):
        (loss / passes).backward()
        if number % passes == 0:
            owner.clip_grad_norm_(CLIP)
            optimizer.step()
            optimizer.zero_grad()

    return mean_losses(options, net, step)


dist.init_process_group("gloo")
rank, all_losses, solved, sharded, refused = dist.get_rank(), [], [], [], []
for optimizer in ({"type": "AdamW"}, {"type": "adam", "params": {"torch_adam": False}}, {"type": "Lion"}):
    try:
        initialize_deepspeed(nn.Linear(2, 2), {"train_batch_size": 2, "optimizer": optimizer})
    except ValueError as error:
        refused.append(str(error))
for options in RUNS:
    config = create_deepspeed_config(micro_batch_size=3, gradient_clipping=CLIP, learning_rate=0.1, **options)
    net = model(seed=rank)
    engine = initialize_deepspeed(net, config)

    def step(number, loss):
        engine.backward(loss)
        engine.step()

    all_losses.append(mean_losses(options, engine, step))
    sharded.append(sum(p.numel() for p in net.parameters()))
    engine.destroy()
    solved.append(by_exercise(options))
extensions = os.environ["TORCH_EXTENSIONS_DIR"]
dist.destroy_process_group()
[all_losses, solved, sharded, refused, os.listdir(extensions)]
"""


def one_process(
    gradient_accumulation_steps: int = 1,
    optimizer: str = "AdamW",
    optimizer_params: dict[str, Any] | None = None,
    **sharding: Any,
) -> list[float]:
    """Train by torch alone; return the loss of each whole batch."""
    space: dict[str, Any] = {}
    exec(MODEL, space)
    model: nn.Module = space["model"](seed=0)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    update = getattr(torch.optim, optimizer)(trained, lr=0.1, **(optimizer_params or {}))
    losses = []
    for number, (x, y) in enumerate(space["batches"](2 * gradient_accumulation_steps), 1):
        loss = nn.functional.mse_loss(model(x), y)
        (loss / gradient_accumulation_steps).backward()
        losses.append(loss.item())
        if number % gradient_accumulation_steps == 0:
            nn.utils.clip_grad_norm_(trained, CLIP)
            update.step()
            update.zero_grad()
    return losses


@pytest.mark.parametrize("kind", [local, virtual])
def test_deepspeed_trains_as_one_process_and_as_the_exercise_and_compiles_nothing(
    kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = f"import os\nos.environ['TORCH_EXTENSIONS_DIR'] = {str(tmp_path)!r}\nRUNS, CLIP = {RUNS}, {CLIP}\n"
    modules = {"phase3_multi_node/zero": catalogue.find("zero").source("solution")[0]}
    job = Job(source=source + MODEL + TRAIN, modules=modules, timeout=BROKEN_SECONDS)
    run = kind(nproc_per_node=2).run(job)
    # the whole tracebacks: the place in DeepSpeed, too
    assert run.ok, "\n".join(rank.error.traceback for rank in run.ranks if rank.error)
    whole = sum(p.numel() for p in nn.Sequential(nn.Linear(6, 7), nn.Linear(7, 7), nn.Linear(7, 3)).parameters())
    for all_losses, solved, held, refused, compiled in run.values:
        for options, losses, by_exercise in zip(RUNS, all_losses, solved, strict=True):
            assert losses == pytest.approx(one_process(**options), rel=1e-5), options
            assert losses == pytest.approx(by_exercise, rel=1e-5), options
        assert held == [0 if options["stage"] == 3 else whole for options in RUNS], "at stage 3 modules hold nothing"
        for name, message in zip(("AdamW", "adam", "Lion"), refused, strict=True):
            assert f"own {name!r}" in message and "torch_adam" in message
        assert compiled == []


def test_every_config_that_is_written_is_valid_to_deepspeed() -> None:
    switches = ("offload_optimizer", "offload_params", "overlap_comm", "bf16")
    for stage, optimizer, *values in itertools.product(range(4), ("Adam", "SGD"), *([False, True],) * 4):
        options: dict[str, Any] = dict(zip(switches, values, strict=True))
        if (options["offload_optimizer"] and stage == 0) or (options["offload_params"] and stage != 3):
            continue
        options |= {"optimizer": optimizer, "gradient_accumulation_steps": 2, "steps_per_print": 7}
        config = create_deepspeed_config(stage, micro_batch_size=3, **options)
        valid = validate_deepspeed_config(config, world_size=4)
        assert (valid.train_batch_size, valid.zero_optimization_stage, valid.steps_per_print) == (24, stage, 7)
        assert valid.zero_config.overlap_comm == options["overlap_comm"]
        assert (valid.zero_config.offload_optimizer is not None) == options["offload_optimizer"]
        assert (valid.zero_config.offload_param is not None) == options["offload_params"]
        assert valid.bfloat16_config.enabled == options["bf16"]
    config = create_deepspeed_config(batch_size=24, micro_batch_size=3, gradient_accumulation_steps=2)
    assert validate_deepspeed_config(config, world_size=4).world_size == 4
    with pytest.raises(AssertionError, match="24 != 3 \\* 2 \\* 3"):
        validate_deepspeed_config(config, world_size=3)


def test_sections_are_merged_and_then_validated_by_deepspeed() -> None:
    sections = {
        "reduce_bucket_size": 10_000, "allgather_bucket_size": 20_000, "contiguous_gradients": True,
        "offload_optimizer": {"buffer_count": 5}, "offload_param": {"max_in_cpu": 1000}, "sub_group_size": 30_000,
    }  # fmt: skip
    config = create_deepspeed_config(
        3, micro_batch_size=1, offload_optimizer=True, offload_params=True, nvme_path="/nvme",
        zero_optimization=sections, aio={"thread_count": 4},
    )  # fmt: skip
    zero = validate_deepspeed_config(config, world_size=2).zero_config
    assert (zero.reduce_bucket_size, zero.allgather_bucket_size, zero.sub_group_size) == (10_000, 20_000, 30_000)
    assert zero.contiguous_gradients
    assert (zero.offload_optimizer.device, str(zero.offload_optimizer.nvme_path)) == ("nvme", "/nvme")
    assert (zero.offload_param.device, str(zero.offload_param.nvme_path)) == ("nvme", "/nvme")
    assert (zero.offload_optimizer.buffer_count, zero.offload_param.max_in_cpu) == (5, 1000)
    assert (
        create_deepspeed_config(micro_batch_size=1, zero_optimization={"stage": 3})["zero_optimization"]["stage"] == 3
    )


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"stage": 2}, "zero_optimization['stage'] must be 3, as another argument says, got 2"),
        ({"offload_optimizer": {"device": "cpu"}}, "['offload_optimizer']['device'] must be 'nvme', as another"),
        ({"offload_param": {"device": "nvme"}}, "zero_optimization['offload_param'] must have an nvme_path"),
        (
            {"reduce_bucket": 7},
            "config['zero_optimization'] must have entries that DeepSpeed knows, got 'reduce_bucket'",
        ),
        (
            {"offload_optimizer": {"pin": True}},
            "config['zero_optimization']['offload_optimizer'] must have entries that",
        ),
    ],
)
def test_sections_that_contradict_or_are_misspelt_are_refused(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        create_deepspeed_config(
            micro_batch_size=1, offload_optimizer=True, nvme_path="/nvme", zero_optimization=section
        )


def test_an_offload_that_the_stage_does_not_have_is_refused() -> None:
    for section, stage in (("offload_optimizer", 0), ("offload_param", 2)):
        with pytest.raises(ValueError, match="needs stage"):
            create_deepspeed_config(stage, micro_batch_size=1, zero_optimization={section: {"device": "cpu"}})


def test_known_entries_of_zero_are_those_that_deepspeed_takes() -> None:
    from deepspeed.runtime.zero import config, offload_config

    classes = (
        config.DeepSpeedZeroConfig,
        offload_config.DeepSpeedZeroOffloadOptimizerConfig,
        offload_config.DeepSpeedZeroOffloadParamConfig,
    )
    for known, taken in zip(SECTIONS.values(), classes, strict=True):
        assert known == {field.alias or name for name, field in taken.model_fields.items()}


def test_known_entries_are_those_that_deepspeed_reads() -> None:
    from deepspeed.runtime import config

    read: set[str] = set()

    class Keys:
        def __contains__(self, key: str) -> bool:
            read.add(key)
            return False

    class Recorded(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            read.add(key)
            return super().get(key, default)

        def __contains__(self, key: object) -> bool:
            read.add(str(key))
            return super().__contains__(key)

        def keys(self) -> Any:
            return Keys()

        def __copy__(self) -> Recorded:
            return Recorded(self.items())

    config.DeepSpeedConfig(Recorded(train_batch_size=1))
    accepted = read - config._REMOVED_TOP_LEVEL_CONFIG_KEYS.keys()
    # the two are read where there is a process group
    assert accepted | {"data_parallel_size", "sequence_parallel_size"} == ENTRIES


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"gradient_cliping": 1.0}, "got 'gradient_cliping'; did you mean 'gradient_clipping'?"),
        ({"optimizer": {"type": "AdamWW", "params": {}}}, "got 'AdamWW'; did you mean 'AdamW'?"),
        ({"optimizer": {"type": "SGD", "param": {"lr": 1}}}, "no entries but type and params, got 'param'"),
        ({"optimizer": {"name": "SGD"}}, "must be a dict with a type"),
        ({"bf16": {"enabled": "auto"}}, "config['bf16']['enabled'] must be a value, got 'auto'"),
        ({"gradient_clipping": "auto"}, "config['gradient_clipping'] must be a value, got 'auto'"),
    ],
)
def test_what_deepspeed_lets_pass_is_refused(entries: dict[str, Any], message: str) -> None:
    from deepspeed.runtime.config import DeepSpeedConfig

    config = {"train_batch_size": 1, **entries}
    DeepSpeedConfig(config)
    for refusing in (validate_deepspeed_config, lambda one: initialize_deepspeed(nn.Linear(2, 2), one)):
        with pytest.raises(ValueError, match=re.escape(message)):
            refusing(config)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("stage", {"stage": 4}), ("batch_size", {"micro_batch_size": None}), ("batch_size", {"batch_size": 7}),
        ("gradient_accumulation_steps", {"gradient_accumulation_steps": 0}),
        ("micro_batch_size", {"micro_batch_size": 0}),
        ("learning_rate", {"learning_rate": 0}), ("gradient_clipping", {"gradient_clipping": -1}),
        ("optimizer", {"optimizer": "LBFGS"}), ("offload_optimizer", {"stage": 0, "offload_optimizer": True}),
        ("offload_params", {"stage": 2, "offload_params": True}), ("stepsperprint", {"stepsperprint": 2}),
        ("param_persistence_threshold", {"stage": 2, "param_persistence_threshold": 0}),
        ("zero_optimization", {"zero_optimization": {"stage": 2}}), ("'auto'", {"scheduler": "auto"}),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(name: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=name):
        create_deepspeed_config(**{"micro_batch_size": 2, **arguments})


def test_without_a_group_or_anything_to_train_the_reason_is_given() -> None:
    config = create_deepspeed_config(micro_batch_size=2)
    with pytest.raises(RuntimeError, match="process group"):
        initialize_deepspeed(nn.Linear(2, 2), config)
    with pytest.raises(ValueError, match="got a module of class ReLU"):
        initialize_deepspeed(nn.ReLU(), config)
    del config["optimizer"]
    with pytest.raises(ValueError, match="config must have an optimizer"):
        initialize_deepspeed(nn.Linear(2, 2), config)


def test_without_the_package_configs_are_written_and_the_extra_is_named() -> None:
    program = """
import sys
sys.modules["deepspeed"] = None
from torch import nn
from labkit.course.phase3_multi_node.zero.given.deepspeed_adapter import initialize_deepspeed, validate_deepspeed_config
from labkit.course.phase3_multi_node.zero.given.deepspeed_config import create_deepspeed_config

config = create_deepspeed_config(micro_batch_size=2)
for use in (lambda: initialize_deepspeed(nn.Linear(2, 2), config), lambda: validate_deepspeed_config(config)):
    try:
        use()
    except ModuleNotFoundError as error:
        print(error)
"""
    printed = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert printed.count(how_to_install("deepspeed==0.19.8", "testing")) == 2


def test_the_extra_is_of_the_version_that_the_adapter_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["deepspeed"] == [f"deepspeed=={VERSION}"]
