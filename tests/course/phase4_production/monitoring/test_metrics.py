"""The capstones' metrics, by the readers of TensorBoard, Prometheus and JSON; and calls timed by operation."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from metric_readers import read_board, samples, scalars, two_free_ports
from waiting import BROKEN_SECONDS

from labkit import Job, catalogue, local, virtual
from labkit.clusters import Cluster
from labkit.course.phase4_production.image_classification.given import command as image_command
from labkit.course.phase4_production.llm_13b.given import command as llm_command
from labkit.course.phase4_production.monitoring.given.records import OPERATION_BOUNDS
from labkit.installing import how_to_install

CAPSTONES = [catalogue.find(name) for name in ("image_classification", "llm_13b")]
MODULES = {one.name: one.source("solution")[0] for exercise in CAPSTONES for one in (*exercise.builds_on, exercise)}


def run(cluster: Cluster, source: str, *arguments: Any) -> list[Any]:
    """Return what each rank returns; `arguments` are its variable of that name."""
    job = Job(source=f"arguments = {arguments!r}\n{source}", modules=MODULES, timeout=BROKEN_SECONDS)
    return list(cluster.run(job).raise_if_failed().values)


def lines(folder: Path, rank: int) -> dict[str, list[dict[str, Any]]]:
    """Return the lines of a rank's log by kind."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in (folder / f"rank-{rank:05}.jsonl").read_text().splitlines():
        entry = json.loads(line, parse_constant=pytest.fail)
        found.setdefault(entry["kind"], []).append(entry)
    return found


# the page is fetched before a sink closes, when all steps are there
PAGES = """
from urllib.request import urlopen
from labkit.course.phase4_production.monitoring.given import PrometheusSink

pages, close = [], PrometheusSink.close
def fetched(sink):
    pages.append(urlopen(f"http://127.0.0.1:{sink.port}/metrics").read().decode())
    close(sink)
PrometheusSink.close = fetched
"""
IMAGES = f"""
{PAGES}
from labkit.exercises import image_classification

report = image_classification.main(list(arguments))
[report["top1"], *pages]
"""
LANGUAGE = f"""
{PAGES}
from labkit.course.phase4_production.llm_13b.given import command
from labkit.exercises import llm_13b

report = command.main(llm_13b, list(arguments))
[report.held_out_loss, *pages]
"""


def test_the_image_trainer_writes_curves_metrics_and_lines(tmp_path: Path) -> None:
    port = two_free_ports()
    words = [
        "--model",
        "mlp",
        "--epochs",
        "2",
        "--batch-size",
        "128",
        "--strategy",
        "ddp",
        "--log-dir",
        f"{tmp_path}/log",
    ]
    words += ["--tensorboard", f"{tmp_path}/board", "--prometheus", str(port)]
    found = run(local(nproc_per_node=2), IMAGES, *words)
    for rank, (_, page) in enumerate(found):
        board, log, metrics = (
            read_board(tmp_path / "board" / f"rank-{rank}"),
            lines(tmp_path / "log", rank),
            samples(page),
        )
        steps = {line["step"]: line for line in log["step"]}
        assert list(steps) == list(range(1, 13))
        for tag, field in {
            "training/loss": "loss",
            "training/samples_per_second": "samples_per_second",
            "time/communication_seconds": "communication_seconds",
            "memory/allocated_bytes": "memory_bytes",
        }.items():
            wanted = {step: line[field] for step, line in steps.items()}
            assert scalars(board, tag) == pytest.approx(wanted, rel=1e-6), tag
            assert all(value > 0 for value in wanted.values()), tag
        # each step sends its gradients in one bucket
        calls = [sum(line["operations"]["all_reduce"]["calls"]) for line in steps.values()]
        assert set(calls) == {1}
        assert sum(event.histogram_value.num for event in board.Histograms("communication/all_reduce")) == 12
        assert metrics["communication_operation_seconds_count", "operation=all_reduce", f"rank={rank}"] == 12
        seconds = sum(line["operations"]["all_reduce"]["seconds"] for line in steps.values())
        assert metrics["communication_operation_seconds_sum", "operation=all_reduce", f"rank={rank}"] == pytest.approx(
            seconds
        )
        assert metrics["training_loss", f"rank={rank}"] == pytest.approx(steps[12]["loss"])
        assert metrics["gpu_memory_allocated_bytes", f"rank={rank}"] == steps[12]["memory_bytes"]
        # not measured without a GPU
        assert {steps[12][name] for name in ("gpu_percent", "gpu_memory_bytes", "gpu_celsius")} == {None}
        assert not [tag for tag in board.Tags()["scalars"] if tag.startswith("gpu/")]
        assert not [name for name in metrics if name[0].startswith(("gpu_utilization", "gpu_memory_used", "gpu_temp"))]
    # the first rank has the accuracy of all, after each epoch
    epochs = {
        entry["step"]: entry["top1"] for entry in json.loads((tmp_path / "log/metrics.json").read_text())["epochs"]
    }
    assert list(epochs) == [6, 12] and epochs[12] == found[0][0]
    first = read_board(tmp_path / "board" / "rank-0")
    assert scalars(first, "evaluation/top1") == pytest.approx(epochs)
    assert {line["step"]: line["top1"] for line in lines(tmp_path / "log", 0)["evaluation"]} == epochs
    assert samples(found[0][1])["evaluation", "figure=top1", "rank=0"] == epochs[12]
    assert "evaluation" not in lines(tmp_path / "log", 1)


def test_the_language_model_writes_curves_metrics_and_lines_on_every_stage(tmp_path: Path) -> None:
    port = two_free_ports()
    words = [
        "--model",
        "2x16x2",
        "--sequence",
        "8",
        "--steps",
        "12",
        "--global-batch-size",
        "4",
        "--microbatch-size",
        "2",
    ]
    words += ["--pipeline-parallel", "2", "--held-out", "4", "--log-dir", f"{tmp_path}/log"]
    words += ["--tensorboard", f"{tmp_path}/board", "--prometheus", str(port)]
    found = run(local(nproc_per_node=2), LANGUAGE, *words)
    logs = [lines(tmp_path / "log", rank) for rank in (0, 1)]
    losses = [[line["loss"] for line in log["step"]] for log in logs]
    assert losses[0] == losses[1] and len(losses[0]) == 12 and all(4 < loss < 7 for loss in losses[0])
    for rank, (_, page) in enumerate(found):
        board, metrics = read_board(tmp_path / "board" / f"rank-{rank}"), samples(page)
        assert scalars(board, "training/loss") == pytest.approx(dict(enumerate(losses[0])), rel=1e-6)
        for line in logs[rank]["step"]:
            assert {"send", "recv"} & line["operations"].keys() or "send_recv" in line["operations"]
            waited = sum(operation["seconds"] for operation in line["operations"].values())
            assert line["communication_seconds"] == pytest.approx(waited)
        assert metrics["training_loss", f"rank={rank}"] == pytest.approx(losses[0][-1])
    # samples count once for each copy of the model
    rates = [line["samples_per_second"] > 0 for log in logs for line in log["step"]]
    assert rates == [True] * 12 + [False] * 12
    board = read_board(tmp_path / "board" / "rank-0")
    assert scalars(board, "evaluation/held_out_loss") == pytest.approx({12: found[0][0]})


def test_without_a_destination_nothing_is_written_or_timed(tmp_path: Path) -> None:
    source = """
import os, torch.distributed as dist
before = dist.all_reduce
from labkit.exercises import image_classification
os.chdir(arguments[0])
image_classification.main(["--model", "mlp", "--epochs", "1", "--batch-size", "719"])
dist.all_reduce is before
"""
    assert run(local(nproc_per_node=1), source, str(tmp_path)) == [True]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", [image_command, llm_command], ids=["image_classification", "llm_13b"])
@pytest.mark.parametrize("word", ["0", "70000", "all", "0.0.0.0:"])
def test_a_wrong_port_is_one_line(command: Any, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.parser().parse_args(["--prometheus", word])
    assert ended.value.code == 2
    assert f"expected [ADDRESS:]PORT, such as 9400 or 0.0.0.0:9400, got '{word}'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "main"),
    [
        ("image_classification", lambda words: image_command.main(None, None, None, words)),
        ("llm_13b", lambda words: llm_command.main(None, words)),
    ],
)
def test_a_port_in_use_and_a_missing_package_are_one_line_before_ranks_meet(
    name: str, main: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SystemExit) as ended:
        port = taken.getsockname()[1]
        main(["--prometheus", str(port - 1)])
    assert ended.value.code == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error == f"{name}: --prometheus: 127.0.0.1:{port} cannot be used: Address already in use"
    monkeypatch.setenv("LOCAL_RANK", "0")  # what all ranks lack is printed once
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(SystemExit) as ended:
        main(["--tensorboard", "runs"])
    assert ended.value.code == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(
        f"{name}: --tensorboard needs the package tensorboard: {how_to_install('tensorboard', 'ranks')}"
    )


EACH = """
import time, torch, torch.distributed as dist
from labkit.course.phase4_production.monitoring.given import Monitor
from labkit.exercises import monitoring

class Records:
    def __init__(self): self.steps = []
    def step(self, record): self.steps.append(record)
    def alarm(self, alarm): pass
    def close(self): pass

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
sink = Records()
monitor = monitoring.DistributedTrainingMonitor(rank, world, interval=2, sinks=[sink], operations=True)
one, both = torch.ones(4), torch.empty(4 * world)
for step in range(4):
    if rank == 1:
        time.sleep(0.5)
    dist.all_reduce(one)
    work = dist.all_reduce(one, async_op=True)
    time.sleep(0.25)  # computing
    work.wait()
    dist.all_gather_into_tensor(both, one)
    if rank == 0:
        dist.send(one, 1)
    else:
        dist.recv(one, 0)
    other = 1 - rank
    posts = [dist.P2POp(dist.isend, one, other), dist.P2POp(dist.irecv, both[:4], other)]
    for message in dist.batch_isend_irecv(posts):
        message.wait()
    with monitor.timed("communication"):
        dist.barrier()
    monitor.log_step_metrics(step, 1.0)
monitor.close()
dist.all_reduce(one)
[[record.operations, record.communication_seconds, record.compute_seconds] for record in sink.steps]
"""


def test_each_call_is_timed_by_its_operation() -> None:
    modelled = run(virtual(nproc_per_node=2), EACH)
    for rank, steps in enumerate(modelled):
        assert len(steps) == 4
        for operations, communication, compute in steps:
            message = "recv" if rank else "send"
            numbers = {name: len(calls) for name, calls in operations.items()}
            assert numbers == {"all_reduce": 2, "all_gather": 1, message: 1, "send_recv": 1, "barrier": 1}
            # rank 0 waits for the slow one; what runs beside computing is no waiting; parts are not counted twice
            at_once, beside = operations["all_reduce"]
            assert at_once == pytest.approx(0.0 if rank else 0.5, abs=1e-3) and beside < 1e-3
            assert communication == pytest.approx(sum(map(sum, operations.values())), abs=1e-6)
            assert compute == pytest.approx(0.75 if rank else 0.25, abs=1e-3)
    real = run(local(nproc_per_node=2), EACH)
    assert [[{name: len(calls) for name, calls in step[0].items()} for step in steps] for steps in real] == [
        [{name: len(calls) for name, calls in step[0].items()} for step in steps] for steps in modelled
    ]
    assert all(step[0]["all_reduce"][0] >= 0.4 for step in real[0])


def test_bounds_of_histograms_rise_from_ten_microseconds_to_ten_seconds() -> None:
    assert list(OPERATION_BOUNDS) == sorted(OPERATION_BOUNDS)
    assert (OPERATION_BOUNDS[0], OPERATION_BOUNDS[-1]) == (1e-5, 10.0) and all(map(math.isfinite, OPERATION_BOUNDS))


FULL = """
import os, shutil
from pathlib import Path
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from labkit.course.phase4_production.monitoring.given import StepRecord, TensorBoardSink

def record(step):
    return StepRecord(time=0.0, rank=0, step=step, loss=1.0 / step, samples_per_second=1.0,
        step_seconds=1.0, compute_seconds=1.0, communication_seconds=0.0,
        input_seconds=0.0, memory_bytes=1, operations={"all_reduce": [1.0]})

sink = TensorBoardSink("runs", 0)
for step in range(1, 401):
    sink.step(record(step))
    if step == 200:
        assert shutil.disk_usage("runs").free < 4096, "the disk has not become full"
        os.remove("runs/filler")
sink.close()
board = EventAccumulator("runs/rank-0")
board.Reload()
print([event.step for event in board.Scalars("training/loss")][-1])
"""


def test_a_full_disk_under_event_files_ends_no_training(tmp_path: Path) -> None:
    """A real file system of 128 KiB, which has space again after half of the steps."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    (tmp_path / "full.py").write_text(FULL)
    (tmp_path / "runs").mkdir()
    mount = 'mount -t tmpfs -o size=128k tmpfs runs && head -c 96k /dev/zero >runs/filler && exec "$0" full.py'
    words = ["unshare", "--mount", "sh", "-c", mount, sys.executable]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip("needs a machine that allows root to make namespaces")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("runs/rank-0: No space left on device: the log loses lines until it can be written") == 1
    assert "Traceback" not in done.stderr and done.stdout.split()[-1] == "400"
