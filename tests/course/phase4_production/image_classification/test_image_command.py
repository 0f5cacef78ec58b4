"""The image classifier as a program: used folders, signals, broken images, wrong arguments, uses of a checkpoint."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from metric_readers import read_board, samples, scalars, two_free_ports
from PIL import Image
from waiting import BROKEN_SECONDS

from labkit import Job, catalogue, local
from labkit.clusters import Run
from labkit.course.phase4_production.image_classification.given import program
from labkit.course.phase4_production.image_classification.given.weight_average import weigh_norm_statistics
from labkit.models import image_model

EXERCISE = catalogue.find("image_classification")
MODULES = {one.name: one.source("solution")[0] for one in (*EXERCISE.builds_on, EXERCISE)}
DIGITS = ["--model", "mlp", "--batch-size", "256", "--epochs", "1"]
MAIN = """
import contextlib, io, os, signal
from urllib.request import urlopen
import torch.distributed as dist
from labkit.course.phase4_production.image_classification import given
from labkit.course.phase4_production.monitoring import given as given_metrics
from labkit.exercises import image_classification, process_group

close = given_metrics.PrometheusSink.close

def closed(sink):  # when all steps and evaluations are there
    if pages:
        with urlopen(f"http://127.0.0.1:{sink.port}/metrics") as page:
            open(f"{pages}/{dist.get_rank()}", "wb").write(page.read())
    close(sink)

given_metrics.PrometheusSink.close = closed

class Trainer(image_classification.DistributedTrainer):
    def train_step(self, batch):
        metrics = super().train_step(batch)
        if sent and (self.steps, self.rank) == (sent[0], 1):
            os.kill(os.getpid(), sent[1])
        return metrics

def ended(words):
    try:
        return given.main(process_group, Trainer, image_classification.ImageTrainer, words)
    except SystemExit as end:
        return f"exit {end.code}"

dist.init_process_group("gloo")
[ended(words) for words in calls]
"""


@pytest.fixture(autouse=True)
def written(workspace: Path) -> None:
    """The learner's modules are the solutions."""
    for name, source in MODULES.items():
        catalogue.find(name).save(source)


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    """A folder as ImageNet's, of 300 small JPEG files in three colours."""
    draw = np.random.default_rng(0)
    for split, count in (("train", 80), ("val", 20)):
        for place, colour in enumerate(("blue", "green", "red")):
            folder = tmp_path / "images" / split / colour
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = draw.integers(0, 90, (20 + number % 7, 24, 3), dtype=np.uint8)
                pixels[:, :, 2 - place] += 120
                Image.fromarray(pixels).save(folder / f"{number}.jpg")
    return tmp_path / "images"


def run(ranks: int, *calls: list[str], sent: tuple[int, int] | None = None, pages: Path | None = None) -> Run:
    """Call the program on local ranks, once for each list of words.

    sent: rank 1 sends itself this signal in a step. pages: folder for what each rank answers Prometheus at its end.
    """
    source = f"calls, sent, pages = {calls!r}, {sent!r}, {str(pages or '')!r}\n{MAIN}"
    return local(nproc_per_node=ranks).run(Job(source=source, modules=MODULES, timeout=BROKEN_SECONDS))


def values(done: Run) -> list[Any]:
    """Return what each rank returns for the calls."""
    return list(done.raise_if_failed().values)


def lines(file: Path, event: str) -> list[dict[str, Any]]:
    """Return the log's objects of an event."""
    return [entry for text in file.read_text().splitlines() if (entry := json.loads(text))["event"] == event]


@pytest.mark.slow
def test_resnet50_on_photographs_is_watched_killed_and_resumed_exactly(tmp_path: Path, photographs: Path) -> None:
    """40 of the JPEG files at 64 pixels, two real processes, three epochs of 2 steps; rank 1 is killed in step 3.

    The curves are read by TensorBoard's reader, the metrics by Prometheus' parser. Without a stride in its stem the
    model takes some 30 GFLOP an image and step: all 300 files would take ten minutes on two cores.
    """
    for split, count in (("train", 16), ("val", 4)):
        shutil.rmtree(photographs / split / "red")
        for path in (photographs / split).glob("*/*.jpg"):
            if int(path.stem) >= count:
                path.unlink()
    words = ["--data", str(photographs), "--image-size", "64", "--model", "resnet50", "--epochs", "3"]
    words += ["--batch-size", "8"]
    ((whole,), _) = values(run(2, words))
    folder, board, pages = tmp_path / "checkpoints", tmp_path / "board", tmp_path / "pages"
    pages.mkdir()
    words += ["--checkpoint-dir", str(folder), "--keep", "1", "--log-file", str(tmp_path / "log.jsonl")]
    words += ["--tensorboard", str(board), "--prometheus", str(two_free_ports())]
    killed = run(2, words, sent=(3, int(signal.SIGKILL)))
    assert killed.ranks[1].exit == -signal.SIGKILL
    # the last one was saved at the end of the first epoch
    assert [path.name for path in folder.glob("step_*")] == ["step_00000002"]
    ((resumed,), _) = values(run(2, [*words, "--resume"], pages=pages))
    assert (resumed["step"], resumed["loss"], resumed["top1"]) == (6, whole["loss"], whole["top1"])
    assert lines(tmp_path / "log.jsonl", "resume")[0]["step"] == 2
    for rank in (0, 1):
        losses = scalars(read_board(board / f"rank-{rank}"), "training/loss")
        assert list(losses) == [*range(1, 7)] and all(value > 0 for value in losses.values())
        metrics = samples((pages / str(rank)).read_text())
        assert metrics["training_loss", f"rank={rank}"] == pytest.approx(losses[6])
        assert metrics["training_samples_per_second", f"rank={rank}"] > 0
    accuracy = scalars(read_board(board / "rank-0"), "evaluation/top1")
    assert list(accuracy) == [2, 4, 6] and accuracy[6] == pytest.approx(whole["top1"])
    assert samples((pages / "0").read_text())["evaluation", "figure=top1", "rank=0"] == whole["top1"]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
def test_photographs_killed_and_resumed_exactly(tmp_path: Path, photographs: Path, name: str) -> None:
    """240 JPEG files, two real processes, three epochs of 5 steps; rank 1 gets a signal in step 7."""
    words = ["--data", str(photographs), "--image-size", "12", "--model", "mlp", "--epochs", "3", "--batch-size", "24"]
    ((whole,), _) = values(run(2, words))
    folder, log = tmp_path / "checkpoints", tmp_path / "log.jsonl"
    words += ["--checkpoint-dir", str(folder), "--log-file", str(log), "--log-dir", str(tmp_path / "log")]
    if name == "SIGKILL":  # nobody can save then: the last one is that of step 6
        words += ["--checkpoint-minutes", "1e-6"]
    killed = run(2, words, sent=(7, int(signal.Signals[name])))
    newest = max(path.name for path in folder.glob("step_????????"))
    if name == "SIGTERM":
        assert values(killed) == [["exit 143"]] * 2
        assert newest == "step_00000007"
        assert lines(log, "end")[0]["text"] == "SIGTERM: saved after step 7; --resume goes on from there"
    else:
        assert killed.ranks[1].exit == -signal.SIGKILL and newest == "step_00000006"
    ((resumed,), _) = values(run(2, [*words, "--resume"]))
    assert (resumed["loss"], resumed["top1"]) == (whole["loss"], whole["top1"])
    assert lines(log, "resume")[0]["step"] == int(newest[5:])
    epochs = json.loads((tmp_path / "log" / "metrics.json").read_text())["epochs"]
    assert [line["epoch"] for line in epochs] == [1, 2, 3]


def test_a_new_run_neither_deletes_nor_mixes_with_an_old_one(tmp_path: Path) -> None:
    checkpoints, log = ["--checkpoint-dir", str(tmp_path / "run")], ["--log-dir", str(tmp_path / "log")]
    other = ["--checkpoint-dir", str(tmp_path / "other")]
    done = run(
        1,
        [*DIGITS, *checkpoints, *log],
        [*DIGITS, *checkpoints],
        [*DIGITS, *log],
        [*DIGITS, *other, *log, "--resume"],
        [*DIGITS, *checkpoints, "--resume", "--model", "resnet8"],
        [*DIGITS, *checkpoints, *log, "--resume", "--epochs", "2", "--lr", "0.0001"],
        [*DIGITS, *checkpoints, *log, "--overwrite"],
    )
    ((first, *refused, resumed, new),) = values(done)
    assert refused == ["exit 2"] * 4
    assert (first["step"], resumed["step"], new["step"]) == (6, 12, 6)
    assert new["loss"] == first["loss"]
    output = done.ranks[0].output
    assert f"{tmp_path / 'run'} has 1 checkpoint of an earlier run: --resume goes on with it, --over" in output
    assert f"{tmp_path / 'log' / 'rank-00000.jsonl'} is the log of an earlier run" in output
    assert f"{tmp_path / 'log'} has the log of another run than {tmp_path / 'other'}" in output
    assert "has a training with --model mlp, which cannot go on with --model resnet8" in output
    assert "goes on with other options than before: --epochs 2 (was 1), --lr 0.0001 (was 0.03)" in output
    assert "deleted checkpoints of an earlier run: 2" in output
    assert [path.name for path in (tmp_path / "run").glob("step_*")] == ["step_00000006"]
    runs = [json.loads(line) for line in (tmp_path / "log" / "rank-00000.jsonl").read_text().splitlines()]
    assert [entry["kind"] for entry in runs].count("run") == 1


def test_broken_images_are_named_skipped_and_counted(tmp_path: Path, photographs: Path) -> None:
    broken = [photographs / "train/red/3.jpg", photographs / "train/blue/5.jpg", photographs / "val/green/0.jpg"]
    for path in broken:
        path.write_bytes(path.read_bytes()[:-150])
    log, folder = tmp_path / "log.jsonl", tmp_path / "checkpoints"
    words = ["--data", str(photographs), "--image-size", "12", "--model", "mlp", "--epochs", "2", "--batch-size", "60"]
    allowed = ["--bad-images", "3", "--workers", "1", "--checkpoint-dir", str(folder), "--log-file", str(log)]
    done = run(2, words, [*words, *allowed], ["evaluate", "--checkpoint-dir", str(folder)])
    for ended, report, evaluation in values(done):
        assert ended == "exit 1" and report["epoch"] == 2
        assert evaluation["images"] == 59  # one of 60 cannot be read
    output = done.ranks[0].output
    assert "more than --bad-images 0: replace them, or allow more" in output
    assert {entry["path"] for entry in lines(log, "bad image")} == {str(path) for path in broken}
    assert all("image file is truncated" in entry["problem"] for entry in lines(log, "bad image"))
    assert len(lines(log, "bad image")) == 3


def test_epochs_are_said_and_a_checkpoint_is_evaluated_and_exported(tmp_path: Path) -> None:
    folder, log, files = tmp_path / "run", tmp_path / "log.jsonl", [tmp_path / "model.pt", tmp_path / "model.pt2"]
    words = ["--model", "mlp", "--epochs", "9", "--auto-batch-size", "--target-accuracy", "0.5", "--keep", "1"]
    words += ["--checkpoint-minutes", "1e-6", "--checkpoint-dir", str(folder)]
    export = [["export", "--best", "--checkpoint-dir", str(folder), "--to", str(file)] for file in files]
    done = run(1, [*words, "--log-file", str(log)], ["evaluate", "--checkpoint-dir", str(folder)], *export)
    ((report, evaluation, exported, _),) = values(done)
    assert report["top1"] >= 0.5 and report["epoch"] < 9
    assert lines(log, "end")[0]["text"].startswith("top-1 of 50.00% reached in ") and report["seconds_to_target"] > 0
    assert lines(log, "start")[0]["batch_size"] == 64 and lines(log, "start")[0]["steps_per_epoch"] == 23
    notes = [entry["text"] for entry in lines(log, "auto")]
    assert notes[0].startswith("batch size 64 for each rank: memory has room for 1024, the data for 20 steps an epoch")
    assert notes[1].startswith("auto chose ddp: on each rank whole states take ")
    said = [entry for entry in lines(log, "epoch")]
    assert [entry["epoch"] for entry in said] == [*range(1, report["epoch"] + 1)]
    assert said[0]["text"] in done.ranks[0].output and {"images_per_second", "seconds_left"} <= said[0].keys()
    assert len(list(folder.glob("step_*"))) == 1  # the newest is the best one, too
    assert (evaluation["loss"], evaluation["images"]) == (pytest.approx(report["loss"]), 360)
    stored = torch.load(files[0])
    assert stored["step"] == exported["step"] == report["step"]
    model = image_model(stored["model"], stored["channels"], stored["size"], stored["classes"]).eval()
    model.load_state_dict(stored["weights"])
    images = torch.rand(3, 1, 8, 8)
    torch.testing.assert_close(torch.export.load(files[1]).module()(images), model(images))


def test_a_full_disk_ends_no_training_through_its_log(tmp_path: Path) -> None:
    """/dev/full is always full."""
    done = run(1, [*DIGITS, "--log-file", "/dev/full"])
    assert values(done)[0][0]["epoch"] == 1
    assert done.ranks[0].output.count("/dev/full: No space left on device: the log loses lines") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--batch-size", "0"], "argument --batch-size: must be an integer from 1, got 0"),
        (["--lr", "-1"], "argument --lr: must be a number above 0, got -1"),
        (["--lr", "nan"], "argument --lr: must be a number above 0, got nan"),
        (["--epochs", "many"], "argument --epochs: invalid int value: 'many'"),
        (["--ema", "1"], "argument --ema: must be a number from 0 and below 1, got 1"),
        (["--data", "/missing"], "--data /missing: folder must have a folder of images for each class"),
        (["--strategy", "fsdp", "--compression", "topk"], "--compression needs --strategy ddp"),
        (["--cpu-offload"], "--cpu-offload needs --strategy fsdp or hybrid, got auto"),
        (["--strategy", "ddp", "--cpu-offload"], "--cpu-offload needs --strategy fsdp or hybrid, got ddp"),
        (["--strategy", "hybrid", "--compression", "topk"], "which reduces whole gradients, got hybrid"),
        (["--strategy", "fsdp", "--shard-ranks", "2"], "--shard-ranks needs --strategy hybrid, got fsdp"),
        (["--deepspeed", "f.json", "--gradient-clip", "1"], "--deepspeed decides by its file about --gradient-clip"),
        (["--auto-batch-size", "--batch-size", "8"], "--auto-batch-size finds what --batch-size sets"),
        (["--batch-size", "2", "--gradient-accumulation", "4"], "has no sample for each microbatch"),
        (["--image-size", "64"], "--image-size is for a folder of images"),
        (["--resume"], "--resume needs --checkpoint-dir"),
        (["--resume", "--overwrite", "--checkpoint-dir", "x"], "--resume goes on with what --overwrite deletes"),
        (["--keep", "2"], "--keep needs --checkpoint-dir"),
        (["export", "--checkpoint-dir", "x", "--output", "model.pt"], "unknown option --output; did you mean --to?"),
        (["--epoch-size", "8"], "unknown option --epoch-size; did you mean --epochs?"),
        (["evaluate"], "the following arguments are required: --checkpoint-dir"),
        (["evaluate", "--checkpoint-dir", "/missing"], "/missing has no configuration.json of image_classification"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_arguments_are_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        program.main(None, None, None, words)
    shown = capsys.readouterr()
    assert end.value.code == 2 and shown.out == ""
    (line,) = shown.err.splitlines()
    assert line.startswith("image_classification") and message in line


def test_norms_have_means_of_their_batches_from_the_first_step_on() -> None:
    """Torch's statistics begin at 0 and 1: after two epochs of few steps networks guessed in evaluation."""
    norm = torch.nn.BatchNorm1d(1)
    for step in range(5):
        weigh_norm_statistics(norm, step)
        norm(torch.tensor([[98.0], [102.0]]) + step)
    assert norm.running_mean is not None and norm.running_var is not None
    assert float(norm.running_mean) == pytest.approx(102) and float(norm.running_var) == pytest.approx(8)
    weigh_norm_statistics(norm, 1000)
    assert norm.momentum == 0.1
