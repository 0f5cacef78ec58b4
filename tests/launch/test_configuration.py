"""`labkit launch --config`: files that name a training run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rank_lines import of_each_rank  # beside this file

from labkit.cli import main
from labkit.course.phase3_multi_node.zero.given.deepspeed_adapter import validate_deepspeed_config
from labkit.course.phase4_production.image_classification.given.deepspeed_trainer import deepspeed_config
from labkit.launch import configuration
from labkit.launch.options import parse, parser
from labkit.launch.tasks import tasks

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = sorted((ROOT / "cluster/configs").glob("*.yaml"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LABKIT_WORKSPACE", str(tmp_path / "workspace"))
    return tmp_path


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.name)
def test_each_file_of_the_course_fits(file: Path) -> None:
    found = configuration.read(file, parser())
    options = configuration.PROGRAMS[found.exercise].parser().parse_args(found.arguments)
    assert found.launch_words(None)[0].startswith("--cluster=")
    expected: dict[str, dict[str, object]] = {
        "ddp": {"strategy": "ddp"},
        "fsdp": {"strategy": "fsdp"},
        "3d": {"tensor_parallel": 8, "zero": 1},
    }
    expected["deepspeed"] = {"deepspeed": str(file.with_suffix(".json"))}
    assert vars(options).items() >= expected[file.stem].items()


def test_a_file_trains_and_the_shell_overrides_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "--config",
        str(ROOT / "cluster/configs/fsdp.yaml"),
        "--cluster",
        "local",
        "--nnodes",
        "1",
        "-n",
        "2",
        "--",
    ]
    small = [
        "--data",
        "digits",
        "--model",
        "resnet8",
        "--epochs",
        "1",
        "--mixed-precision",
        "no",
        "--batch-size",
        "128",
    ]
    assert main(["launch", *words, *small, "--checkpoint-dir", str(folder / "saved")]) == 0
    shown = capsys.readouterr()
    (report,) = of_each_rank(shown.out)[0]
    assert json.loads(report)["epoch"] == 1 and json.loads(report)["strategy"] == "fsdp"
    assert any((folder / "saved").iterdir())
    assert "note: it trains with the solution of image_classification, on top of the solutions of " in shown.err


def test_three_dimensions_train_and_go_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--config", str(ROOT / "cluster/configs/3d.yaml"), "--cluster", "local", "--nnodes", "1", "-n", "4", "--"]
    words += ["--model", "2x32x4", "--sequence", "16", "--mixed-precision", "no", "--global-batch-size", "4"]
    words += ["--tensor-parallel", "2", "--pipeline-parallel", "2", "--held-out", "4"]
    words += ["--checkpoint-dir", str(folder / "saved"), "--checkpoint-steps", "2"]
    reports = []
    for steps, more in (("2", []), ("4", ["--resume"])):
        assert main(["launch", *words, "--steps", steps, *more]) == 0
        (report,) = of_each_rank(capsys.readouterr().out)[0]
        reports.append(json.loads(report))
    assert [(report["first_step"], report["steps"]) for report in reports] == [(0, 2), (2, 4)]
    assert 5 < reports[1]["loss"] < 6 and reports[1]["held_out_loss"] < reports[0]["held_out_loss"]


def test_the_courses_file_for_nvme_is_valid_for_deepspeed() -> None:
    file = ROOT / "cluster/configs/deepspeed_nvme.json"
    found = validate_deepspeed_config(deepspeed_config(file, 32, 0.03), world_size=2)
    assert found.zero_config.offload_param.device == found.zero_config.offload_optimizer.device == "nvme"


def test_the_courses_deepspeed_file_is_valid_for_deepspeed(folder: Path) -> None:
    file = ROOT / "cluster/configs/deepspeed.json"
    config = validate_deepspeed_config(deepspeed_config(file, 32, 0.03), world_size=16)
    assert (config.train_batch_size, config.zero_optimization_stage) == (512, 2)
    Path("other.json").write_text('{"gradient_accumulation_steps": 3, "optimizer": {"type": "AdamW"}}')
    with pytest.raises(ValueError, match="gradient_accumulation_steps x train_micro_batch_size_per_gpu"):
        deepspeed_config("other.json", 32, 1.0)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ('{\n "zero_optimisation": {}}', "ds.json, line 2: config must have entries that DeepSpeed knows, got"),
        ('{"bf16": {\n"enabled":\n"auto"}}', "ds.json, line 3: config['bf16']['enabled'] must be a value, got 'auto'"),
        ('{"optimizer": {"params": {},\n"type": "AdamX"}}', "ds.json, line 2: config['optimizer']['type'] must be"),
        ('{"zero_optimization": {"stage": 2,\n"reduce_bucket": 7}}', "line 2: config['zero_optimization'] must have"),
        ('{"bf16": {},\n}', "ds.json, line 2: this is not JSON: "),
        (None, "own.yaml, line 2: there is no file "),
    ],
)
def test_a_wrong_line_of_a_deepspeed_file_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], text: str | None, answer: str
) -> None:
    Path("own.yaml").write_text("program: image_classification\ndeepspeed: ds.json\n")
    if text is not None:
        Path("ds.json").write_text(text)
    assert main(["launch", "--config", "own.yaml"]) == 2
    assert answer in capsys.readouterr().err


def test_keys_and_values_become_options(folder: Path) -> None:
    Path("own.yaml").write_text(
        "program: image_classification\nprecision: fp32\nlearning_rate: 1e-2\nactivation_checkpointing: false\n"
        "strategy: hybrid\nshard_ranks: 8\n"
        "checkpoints: {folder: here, resume: true}\ncluster:\n  kind: virtual\n  max_restarts: 2\n  fake: true\n"
        "  fault: ['slow(1, factor=2)', jitter(seed=0)]\n"
    )
    found = configuration.read(Path("own.yaml"), parser())
    sharded = ["--strategy=hybrid", "--shard-ranks=8"]
    assert found.arguments == ["--mixed-precision=no", "--lr=1e-2", *sharded, "--checkpoint-dir=here", "--resume"]
    faults = ["--fault=slow(1, factor=2)", "--fault=jitter(seed=0)"]
    assert found.launch_words(None) == ["--cluster=virtual", "--max-restarts=2", "--fake", *faults]
    assert found.launch_words("local") == ["--cluster=virtual", "--max-restarts=2"]


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("stratgy: ddp", "own.yaml, line 3: unknown key stratgy; did you mean strategy?"),
        ("strategy: dpp", "line 3: strategy must be one of auto, ddp, fsdp, hybrid, got 'dpp'; did you mean ddp?"),
        ("precision: no", "line 3: precision must be one of fp32, bf16, fp16, got 'no'"),
        ("epochs: many", "line 3: epochs must be a number, got 'many'"),
        ("epochs:", "line 3: epochs needs one value"),
        ("epochs: [1, 2]", "line 3: epochs needs one value"),
        ("resume: true\nepochs: 1", "line 3: unknown key resume; did you mean checkpoints.resume?"),
        ("cpu_offload: 1", "line 3: cpu_offload must be one of true, false, got '1'"),
        ("data: x\ndata: y", "line 4: data is there twice"),
        ("data: [x", "own.yaml, line 4: "),
        ("cluster:\n  nnodes: 0", "line 4: cluster.nnodes: expected a whole number of at least 1, got '0'"),
        (
            "cluster: {kind: slurn}",
            "line 3: cluster.kind must be one of virtual, local, slurm, kubernetes, got 'slurn'; did you",
        ),
        ("cluster:\n  partition: lab", "own.yaml, line 4: cluster.partition is for slurm clusters, not for local"),
        ("cluster:\n  nproc: 4", "own.yaml, line 4: unknown key cluster.nproc; did you mean cluster.nproc_per_node?"),
    ],
)
def test_a_wrong_line_is_named(folder: Path, capsys: pytest.CaptureFixture[str], line: str, answer: str) -> None:
    Path("own.yaml").write_text(f"# mine\nprogram: image_classification\n{line}\n")
    assert main(["launch", "--config", "own.yaml"]) == 2
    errors = capsys.readouterr().err
    assert answer in errors.splitlines()[-1], errors


@pytest.mark.parametrize(
    ("text", "words", "answer"),
    [
        ("cpu_offload: true", [], "image_classification: --cpu-offload needs --strategy fsdp or hybrid, got auto"),
        ("batch_size: 0", [], "own.yaml, line 2: batch_size: must be an integer from 1, got 0"),
        ("data: /missing", [], "--data /missing: there is no folder /missing/train"),
        ("epochs: 1", ["--", "--lr", "-1"], "image_classification: argument --lr: must be a number above 0, got -1"),
        ("checkpoints: {folder: used}", [], "used has 1 checkpoint of an earlier run: --resume goes on with it"),
        ("log_folder: log", [], "log/rank-00000.jsonl is the log of an earlier run"),
    ],
)
def test_what_ranks_would_refuse_is_refused_before_they_start(
    folder: Path, capsys: pytest.CaptureFixture[str], text: str, words: list[str], answer: str
) -> None:
    Path("used/step_00000003").mkdir(parents=True)
    Path("log").mkdir()
    Path("log/rank-00000.jsonl").write_text("{}\n")
    Path("own.yaml").write_text(f"program: image_classification\n{text}\n")
    try:
        status = main(["launch", "--config", "own.yaml", *words])
    except SystemExit as end:  # of the program's own parser
        status = int(str(end.code))
    (line,) = capsys.readouterr().err.splitlines()
    assert status == 2 and answer in line


def test_jobs_of_an_array_have_their_index_in_the_arguments(folder: Path) -> None:
    words = ["--config", str(ROOT / "cluster/configs/ddp.yaml"), "--cluster", "slurm", "--detach", "--array", "0-2"]
    words += ["--", "--seed", "%a"]
    (task,) = tasks(parse(words), words)
    script = task.with_index(2).job.script
    assert script is not None and script.argv[-2:] == ("--seed", "2")


@pytest.mark.parametrize(
    ("text", "answer"), [("model: x", "line 1: `program` is missing"), ("[1]", "line 1: expected keys and values")]
)
def test_a_file_of_something_else_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], text: str, answer: str
) -> None:
    Path("own.yaml").write_text(text)
    assert main(["launch", "--config", "own.yaml"]) == 2
    assert answer in capsys.readouterr().err
