"""The dashboard for Grafana: each of its queries, run by a real Prometheus that scrapes four ranks."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
from system_packages import needs_packages, program
from waiting import wait_until

from labkit.cli import main
from labkit.course.phase4_production.monitoring.given import Alarm, Evaluation, PrometheusSink, StepRecord
from labkit.installing import how_to_install

RANKS = 4


def record(rank: int) -> StepRecord:
    """Rank 2 computes for 60 ms, the others for 40, and wait; each has 10 bytes more than the one before."""
    compute = 0.06 if rank == 2 else 0.04
    return StepRecord(
        time=0.0,
        rank=rank,
        step=9,
        loss=1.0 + rank,
        samples_per_second=100.0,
        step_seconds=0.08,
        compute_seconds=compute,
        communication_seconds=0.08 - compute - 0.01,
        input_seconds=0.01,
        memory_bytes=1000 + 10 * rank,
        gpu_percent=90 + rank,
        gpu_memory_bytes=500 + rank,
        gpu_celsius=60 + rank,
        operations={"all_reduce": [0.01] * 4, "broadcast": [0.0001]},
    )


class Prometheus:
    """`answers(query)` returns its values by the labels that are not Prometheus's own."""

    def __init__(self, address: str) -> None:
        self.address = address

    def ask(self, path: str, **parameters: str) -> Any:
        with urlopen(f"{self.address}/api/v1/{path}?{urlencode(parameters)}") as reply:
            answer = json.load(reply)
        assert answer["status"] == "success", answer
        return answer["data"]

    def answers(self, query: str) -> dict[str, float]:
        found = {}
        for series in self.ask("query", query=query)["result"]:
            labels = {
                name: value
                for name, value in series["metric"].items()
                if name in ("cause", "figure", "operation", "rank")
            }
            found[" ".join(labels.values())] = float(series["value"][1])
        return found


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that has scraped four ranks."""
    needs_packages("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    with ExitStack() as stack:
        sinks = [PrometheusSink(rank, port=0) for rank in range(RANKS)]
        for rank, sink in enumerate(sinks):
            stack.callback(sink.close)
            sink.step(record(rank))
        sinks[0].alarm(Alarm("slow compute", 2, 9))
        sinks[0].evaluation(Evaluation(0.0, 9, {"top1": 0.75}))
        targets = [f"127.0.0.1:{sink.port}" for sink in sinks]
        jobs = [{"job_name": "training", "scrape_interval": "200ms", "static_configs": [{"targets": targets}]}]
        (folder / "prometheus.yml").write_text(json.dumps({"scrape_configs": jobs}))  # JSON is YAML, too
        command = [program("prometheus") or "", f"--config.file={folder}/prometheus.yml"]
        command += [f"--storage.tsdb.path={folder}/data", "--web.listen-address=127.0.0.1:0", "--log.format=json"]
        with open(folder / "log", "w") as log:
            process = stack.enter_context(subprocess.Popen(command, stderr=log, stdout=log))
        stack.callback(process.kill)

        def log_so_far() -> str:
            text = (folder / "log").read_text()
            assert process.poll() is None, text
            return text

        wait_until(lambda: "Server is ready to receive web requests" in log_so_far(), log_so_far)
        listening = re.search(r'"address":"([^"]+)".*"Listening on"', log_so_far())
        assert listening, log_so_far()
        found = Prometheus(f"http://{listening[1]}")
        wait_until(lambda: len(found.answers("training_loss")) == RANKS, log_so_far)
        wait_until(lambda: found.answers("training_alarms_total"), log_so_far)
        yield found


@pytest.fixture
def page(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What `labkit dashboard --grafana` prints."""
    assert main(["dashboard", "--grafana"]) == 0
    page: dict[str, Any] = json.loads(capsys.readouterr().out)
    return page


def test_every_query_has_an_answer(prometheus: Prometheus, page: dict[str, Any]) -> None:
    seen = {
        (panel["title"], target["legendFormat"]): prometheus.answers(target["expr"].replace("$job", ".*"))
        for panel in page["panels"]
        for target in panel["targets"]
    }
    split, memory = "Where a step's time goes", "Memory"
    wanted = {
        ("Throughput", "samples per second"): {"": 400.0},
        ("Loss", "mean of all ranks"): {"": 2.5},
        (split, "compute"): {"": 0.045},
        (split, "communication"): {"": 0.025},
        (split, "input"): {"": 0.01},
        ("Compute and input over the ranks' median", "rank {{rank}}"): {"0": 0.0, "1": 0.0, "2": 0.4, "3": 0.0},
        (memory, "largest"): {"": 1030.0},
        (memory, "median"): {"": 1015.0},
        ("GPU utilization", "rank {{rank}}"): {"0": 90.0, "1": 91.0, "2": 92.0, "3": 93.0},
        ("GPU memory in use", "rank {{rank}}"): {"0": 500.0, "1": 501.0, "2": 502.0, "3": 503.0},
        ("GPU temperature", "rank {{rank}}"): {"0": 60.0, "1": 61.0, "2": 62.0, "3": 63.0},
        # within the bin from 5 to 10 ms, and that from 50 to 100 microseconds
        ("Waiting in 99 % of the calls so far", "{{operation}}"): {"all_reduce": 0.00995, "broadcast": 0.0000995},
        ("Last evaluation", "{{figure}}"): {"top1": 0.75},
        ("Alarms so far", "{{cause}}, rank {{rank}}"): {"slow compute 2": 1.0},
    }
    assert seen.keys() == wanted.keys()
    for name, answer in seen.items():
        assert answer == pytest.approx(wanted[name], abs=1e-9), name


def test_jobs_to_choose_from_are_those_that_prometheus_scrapes(prometheus: Prometheus, page: dict[str, Any]) -> None:
    source, job = page["templating"]["list"]
    assert (source["type"], source["query"]) == ("datasource", "prometheus")
    found = re.fullmatch(r"label_values\((\w+), (\w+)\)", job["query"])
    assert found and prometheus.ask(f"label/{found[2]}/values", **{"match[]": found[1]}) == ["training"]
    assert {panel["datasource"]["uid"] for panel in page["panels"]} == {"${source}"}


def test_panels_fill_rows_of_two(page: dict[str, Any]) -> None:
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in page["panels"]]
    assert places == [(12 * (number % 2), 8 * (number // 2)) for number in range(len(places))]


def test_without_grafanas_package_the_command_says_how_to_install_it(monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "grafana_foundation_sdk.builders", None)
    assert main(["dashboard", "--grafana"]) == 2
    assert how_to_install("grafana-foundation-sdk", "learning") in capsys.readouterr().err


def test_a_rank_without_a_gpu_exports_none_of_its_figures() -> None:
    sink = PrometheusSink(0)
    sink.step(record(0)._replace(gpu_percent=None, gpu_memory_bytes=None, gpu_celsius=None))
    for name in ("gpu_utilization_percent", "gpu_memory_used_bytes", "gpu_temperature_celsius"):
        assert sink.registry.get_sample_value(name, {"rank": "0"}) is None
