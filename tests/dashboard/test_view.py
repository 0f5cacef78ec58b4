"""What the dashboard shows of a log: medians and sums by step, bounded however long the job runs."""

from __future__ import annotations

import json
import math
import threading
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from urllib.request import HTTPCookieProcessor, build_opener

import pytest

from labkit.cli import main
from labkit.course.phase4_production.monitoring.given import Alarm, Evaluation, JsonLines, StepRecord
from labkit.dashboard import DashboardView
from labkit.dashboard.server import DashboardServer
from labkit.dashboard.view import MOST_BINS


def write(folder: Path, ranks: int, steps: range, slow: int = -1) -> list[JsonLines]:
    """Write the steps of all ranks; rank r has r GB, and `slow` computes twice as long."""
    sinks = [JsonLines(folder, rank, ranks) for rank in range(ranks)]
    for step in steps:
        for rank, sink in enumerate(sinks):
            compute = 0.02 if rank == slow else 0.01
            sink.step(StepRecord(5.0 + step, rank, step, 1.0, 100.0, 0.03, compute, 0.005, 0.01, rank * 10**9))
    return sinks


def test_columns_are_medians_and_throughput_is_a_sum(tmp_path: Path) -> None:
    sinks = write(tmp_path, 3, range(4), slow=1)
    sinks[0].alarm(Alarm("slow compute", 1, 3))
    data = DashboardView(tmp_path).refresh()
    assert (data["ranks"], data["world_size"], data["last_step"], data["width"]) == ([0, 1, 2], 3, 3, 1)
    assert data["steps"] == [0, 1, 2, 3]
    assert data["samples_per_second"] == [300.0] * 4
    assert data["compute_seconds"] == [0.01] * 4
    assert (data["memory_bytes"], data["largest_memory_bytes"]) == ([1e9] * 4, [2e9] * 4)
    assert data["own_over_median"] == [[0.0] * 4, [0.5] * 4, [0.0] * 4]
    assert data["alarms"] == [{"cause": "slow compute", "detail": "", "rank": 1, "step": 3}]


def test_gpus_operations_and_evaluations_are_shown_where_they_are_measured(tmp_path: Path) -> None:
    sinks = write(tmp_path, 3, range(1))
    data = DashboardView(tmp_path).refresh()
    assert (data["gpu_percent"], data["gpus"], data["operations"], data["evaluation"]) == ([None], [], {}, None)
    for step in (1, 2):
        for rank, sink in enumerate(sinks):
            gpu = (None, None, None) if rank == 2 else (90 - 40 * rank, 10**9, 60 + step)
            record = StepRecord(9.0, rank, step, 1.0, 100.0, 0.03, 0.01, 0.005, 0.01, 5, *gpu)
            sink.step(record._replace(operations={"all_reduce": [0.01, 0.0000001, 99.0]}))
    sinks[0].evaluation(Evaluation(9.0, 2, {"loss": math.nan, "top1": 0.75}))
    data = DashboardView(tmp_path).refresh()
    assert (data["gpu_percent"], data["lowest_gpu_percent"]) == ([None, 70.0, 70.0], [None, 50.0, 50.0])
    assert [list(gpu.values()) for gpu in data["gpus"]] == [[0, 90, 10**9, 62], [1, 50, 10**9, 62]]
    operation = data["operations"]["all_reduce"]
    assert operation["seconds"] == pytest.approx(6 * 99.0100001)
    bins = {place: number for place, number in enumerate(operation["calls"]) if number}
    assert bins == {0: 6, data["operation_bounds"].index(0.01): 6, len(data["operation_bounds"]): 6}
    assert data["evaluation"] == {"step": 2, "figures": {"loss": None, "top1": 0.75}}
    json.dumps(data, allow_nan=False)


def test_a_log_is_read_on_from_where_it_was(tmp_path: Path) -> None:
    view = DashboardView(tmp_path / "log")
    assert view.refresh()["ranks"] == []
    write(tmp_path / "log", 2, range(2))
    assert view.refresh()["last_step"] == 1
    write(tmp_path / "log", 2, range(2, 5))
    data = view.refresh()
    assert data["last_step"] == 4
    assert data["samples_per_second"] == [200.0] * 5


def test_bins_become_wider_so_that_the_page_stays_small(tmp_path: Path) -> None:
    write(tmp_path, 2, range(1000), slow=1)
    view = DashboardView(tmp_path)
    data = view.refresh()
    assert data["width"] == 16 and data["steps"] == [16 * place for place in range(63)]
    assert len(data["steps"]) <= MOST_BINS
    assert data["samples_per_second"] == pytest.approx([200.0] * 63)
    assert data["own_over_median"][1] == pytest.approx([0.2] * 63)  # of two ranks the median is in the middle
    write(tmp_path, 2, range(1000, 1001))
    assert view.refresh()["width"] == 16


def test_the_page_of_many_ranks_and_steps_has_bounded_data(tmp_path: Path) -> None:
    write(tmp_path, 64, range(300))
    text = json.dumps(DashboardView(tmp_path).refresh(), allow_nan=False)
    assert len(text) < 100_000


def test_a_long_log_is_read_in_parts(tmp_path: Path) -> None:
    write(tmp_path, 2, range(3000))
    view = DashboardView(tmp_path)
    assert view.refresh(seconds=0)["reading"]
    data = view.refresh()
    assert (data["reading"], data["last_step"]) == (False, 2999)
    assert view.refresh(seconds=60)["reading"] is False


def test_nan_and_foreign_lines_do_no_harm(tmp_path: Path) -> None:
    (sink,) = write(tmp_path, 1, range(1))
    sink.step(StepRecord(1.0, 0, 1, math.nan, 1.0, 1.0, 1.0, 0.0, 0.0, 5))
    with (tmp_path / "rank-00000.jsonl").open("a") as file:
        file.write('{"kind": "step", "rank": 0}\n{"kind": "step", "rank": -1, "step": 1}\nnonsense\n[]\n')
    data = DashboardView(tmp_path).refresh()
    assert data["loss"] == [1.0, None] and data["last_step"] == 1
    json.dumps(data, allow_nan=False)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[DashboardServer]:
    with DashboardServer(tmp_path) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_the_server_answers_with_page_and_data_and_nothing_else(server: DashboardServer, tmp_path: Path) -> None:
    write(tmp_path, 2, range(3))
    browser = build_opener(HTTPCookieProcessor())
    assert b"<title>Training dashboard</title>" in browser.open(server.address).read()
    folder = server.address.partition("?")[0]
    assert json.load(browser.open(f"{folder}data"))["last_step"] == 2
    with pytest.raises(urllib.error.HTTPError, match="404"):
        browser.open(f"{folder}../view.py")


def test_a_folder_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboard", str(tmp_path / "nowhere")]) == 2
    assert "there is no folder" in capsys.readouterr().err
