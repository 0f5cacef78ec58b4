"""Given parts of monitoring: files that are read while they are written, and sinks, read by the tools themselves."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families
from waiting import BROKEN_SECONDS, wait_until

from labkit import Job, virtual
from labkit.course.phase4_production.monitoring.given import (
    Alarm,
    JsonLines,
    PrometheusSink,
    StepRecord,
    StructuredLog,
    TensorBoardSink,
    named_tensors,
    read_folder,
    words,
)
from labkit.course.phase4_production.monitoring.given.json_lines import LineReader, file_of
from labkit.course.phase4_production.monitoring.given.recorder import Recorder, Step

RECORD = StepRecord(
    time=100.5,
    rank=1,
    step=7,
    loss=2.5,
    samples_per_second=640.0,
    step_seconds=0.05,
    compute_seconds=0.03,
    communication_seconds=0.015,
    input_seconds=0.005,
    memory_bytes=1 << 30,
)
ALARM = Alarm("slow compute", 5, 40)

# each case is wrong in one argument
WRONG = """
import torch, torch.distributed as dist
from labkit.course.phase4_production.monitoring import given
from labkit.course.phase4_production.monitoring.given.arguments import require_part

dist.init_process_group()
cases = {
    "rank must": lambda: given.Monitor(2, 2),
    "rank and world_size": lambda: given.Monitor(dist.get_rank(), 3),
    "world_size": lambda: given.Monitor(0, 0),
    "interval": lambda: given.Monitor(dist.get_rank(), 2, interval=0),
    "stride": lambda: given.Monitor(dist.get_rank(), 2, stride=2),
    "probe_nbytes": lambda: given.Monitor(dist.get_rank(), 2, probe_nbytes=0),
    "part": lambda: require_part("compute"),
    "step": lambda: given.check_step(-1, 1.0, 0),
    "loss": lambda: given.check_step(0, torch.ones(2), 0),
    "samples": lambda: given.check_step(0, 1.0, -1),
    "memory_bytes": lambda: given.check_step(0, 1.0, 0, -1),
    "nbytes": lambda: given.check_nbytes(0),
    "samples_per_second": lambda: given.check_baseline(0.0, [1]),
}
seen = []
for begins, call in cases.items():
    try:
        call()
        seen.append(f"{begins}: nothing raised")
    except ValueError as error:
        if not str(error).startswith(begins):
            seen.append(f"{begins}: {error}")
seen
"""


def test_errors_name_the_argument() -> None:
    assert virtual(nproc_per_node=2).run(Job(source=WRONG, timeout=BROKEN_SECONDS)).raise_if_failed().values == [[]] * 2


def test_without_a_process_group_there_is_one_rank() -> None:
    from labkit.course.phase4_production.monitoring.given import Monitor

    assert Monitor(0, 1).interval == 10
    with pytest.raises(ValueError, match="world_size must be 1 without a process group, got 2"):
        Monitor(0, 2)


def test_steps_are_in_the_log_after_a_flush_and_once_after_their_interval(tmp_path: Path) -> None:
    recorder = Recorder(0, 1, torch.device("cpu"), str(tmp_path), [])

    def logged() -> list[int]:
        entries = map(json.loads, file_of(tmp_path, 0).read_text().splitlines())
        return [entry["step"] for entry in entries if entry["kind"] == "step"]

    def split(step: Step) -> tuple[float, float, float]:
        return step.seconds, 0.0, 0.0

    for step in (1, 2):
        recorder.end_step(step, 0.5, 8, 0)
    assert logged() == []
    recorder.flush(split)
    assert logged() == [1, 2]
    recorder.end_step(3, 0.5, 8, 0)
    recorder.flush(split)
    assert logged() == [1, 2, 3]
    recorder.end_step(4, 0.5, 8, 0)
    steps = recorder.take()
    assert [step.number for step in steps] == [1, 2, 3, 4]
    recorder.write(steps, [split(step) for step in steps])
    assert logged() == [1, 2, 3, 4]
    recorder.close()


def test_lines_are_read_while_they_are_written(tmp_path: Path) -> None:
    sink, reader = JsonLines(tmp_path / "log", 1, 8), LineReader(file_of(tmp_path / "log", 1))
    sink.step(RECORD)
    run, step = reader.new_lines()
    assert (run["kind"], run["format"], run["rank"], run["world_size"]) == ("run", 1, 1, 8)
    assert step == {"kind": "step", **RECORD._asdict()}
    sink.alarm(ALARM)
    with file_of(tmp_path / "log", 1).open("a") as file:
        file.write('{"kind": "step", "st')
        file.flush()
        (alarm,) = reader.new_lines()
        assert (alarm["kind"], alarm["cause"], alarm["rank"]) == ("alarm", "slow compute", 5)
        file.write('ep": 8}\n')
        file.flush()
        assert list(reader.new_lines()) == [{"kind": "step", "step": 8}]
    assert list(reader.new_lines()) == []


def test_a_restarted_rank_appends_to_its_file(tmp_path: Path) -> None:
    for _ in range(2):
        sink = JsonLines(tmp_path, 0, 1)
        sink.step(RECORD)
        sink.close()
    assert [line["kind"] for line in read_folder(tmp_path)] == ["run", "step"] * 2


def test_numbers_that_json_does_not_have_are_texts_in_the_file_and_numbers_again(tmp_path: Path) -> None:
    sink = JsonLines(tmp_path, 0, 1)
    for loss in (math.nan, math.inf, -math.inf):
        sink.step(RECORD._replace(loss=loss))
    sink.close()
    lines = file_of(tmp_path, 0).read_text().splitlines()
    assert [json.loads(line, parse_constant=pytest.fail)["loss"] for line in lines[1:]] == ["nan", "inf", "-inf"]
    assert [str(line["loss"]) for line in read_folder(tmp_path)[1:]] == ["nan", "inf", "-inf"]


def test_prometheus_reads_the_last_step_of_a_rank() -> None:
    sink = PrometheusSink(rank=1, port=0)
    sink.step(RECORD._replace(loss=9.0))
    sink.step(RECORD)
    sink.alarm(ALARM)
    text = urlopen(f"http://localhost:{sink.port}/metrics").read().decode()
    sink.close()
    samples = {
        sample.name: (sample.value, sample.labels)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    for name, value in {
        "training_samples_per_second": 640.0,
        "training_step_time_seconds": 0.05,
        "gpu_memory_allocated_bytes": float(1 << 30),
        "communication_time_seconds": 0.015,
        "training_loss": 2.5,
    }.items():
        assert samples[name] == (value, {"rank": "1"})
    assert samples["training_alarms_total"] == (1.0, {"cause": "slow compute", "rank": "5"})


def test_tensorboards_server_shows_the_scalars_of_each_step_and_the_alarms(tmp_path: Path) -> None:
    for rank in (0, 1):
        sink = TensorBoardSink(tmp_path, rank)
        for step, loss in enumerate((3.0, 2.5)):
            sink.step(
                RECORD._replace(step=step, loss=loss - rank, gpu_percent=90, gpu_memory_bytes=1 << 33, gpu_celsius=65)
            )
        sink.alarm(ALARM)
        sink.close()
    command = [sys.executable, "-m", "tensorboard.main", f"--logdir={tmp_path}", "--port=0", "--load_fast=false"]
    # it keeps a note of itself among the temporary files
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as board:
        try:
            assert board.stderr is not None
            address = next(found[0] for line in board.stderr if (found := re.search(r"http://\S+", line)))

            def ask(path: str) -> Any:
                return json.load(urlopen(f"{address}data/plugin/{path}"))

            # it answers before it has read all files
            wait_until(lambda: len(ask("text/tags")) == 2, lambda: ask("text/tags"))
            tags = ask("scalars/tags")
            assert tags.keys() == {"rank-0", "rank-1"}
            losses = ask("scalars/scalars?run=rank-1&tag=training/loss")
            assert [(step, value) for _, step, value in losses] == [(0, 2.0), (1, 1.5)]
            assert {
                name: ask(f"scalars/scalars?run=rank-0&tag={name}")[0][2] for name in tags["rank-0"]
            } == pytest.approx(
                {
                    "training/loss": 3.0,
                    "training/samples_per_second": 640.0,
                    "time/step_seconds": 0.05,
                    "time/compute_seconds": 0.03,
                    "time/communication_seconds": 0.015,
                    "time/input_seconds": 0.005,
                    "memory/allocated_bytes": 1 << 30,
                    "gpu/utilization_percent": 90,
                    "gpu/memory_used_bytes": 1 << 33,
                    "gpu/temperature_celsius": 65,
                }
            )
            assert "slow compute on rank 5" in ask("text/text?run=rank-1&tag=alarms/text_summary")[0]["text"]
        finally:
            board.terminate()


def test_a_structured_log_has_time_rank_step_loss_and_throughput(caplog: pytest.LogCaptureFixture) -> None:
    sink = StructuredLog()
    with caplog.at_level(logging.INFO, logger="labkit.monitoring"):
        sink.step(RECORD)
        sink.alarm(ALARM)
    step, alarm = (json.loads(record.getMessage()) for record in caplog.records)
    assert step == {"time": 100.5, "rank": 1, "step": 7, "loss": 2.5, "throughput": 640.0}
    assert (alarm["cause"], alarm["rank"]) == ("slow compute", 5)
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ImportError, match=r"prometheus-client: .* --require-hashes -r .*ranks.txt"):
        PrometheusSink(0)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"tensorboard: .* --require-hashes -r .*ranks.txt"):
        TensorBoardSink(tmp_path, 0)


def test_words_are_the_bits_of_each_element_in_the_tensors_order() -> None:
    assert words(torch.tensor([[1, 2], [3, 4]], dtype=torch.int16).mT).tolist() == [1, 3, 2, 4]
    assert words(torch.tensor([1.0, -0.0])).tolist() == [0x3F800000, -(1 << 31)]
    assert words(torch.tensor([True, False])).tolist() == [1, 0]
    assert words(torch.tensor(2.0, dtype=torch.bfloat16)).tolist() == [0x4000]
    assert words(torch.tensor([1 + 2j])).tolist() == [0x3F800000, 0x40000000]


def test_named_tensors_have_the_gradients_that_are_there() -> None:
    model = torch.nn.Linear(2, 1)
    model.weight.grad = torch.ones(1, 2)
    found = named_tensors(model)
    assert list(found) == ["weight", "weight.grad", "bias", "bias.grad"]
    assert found["weight.grad"] is model.weight.grad and found["bias.grad"] is None
