"""A visitor of the compose file's services, in their network: logs in, is scraped, asks. Prints JSON.

Arguments: the folder of the compose file, the folder of the volume `runs`, and a learner's name.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import requests
import yaml
from torch.utils.tensorboard import SummaryWriter

sys.path.insert(0, str(Path(__file__).parents[1] / "plugins"))
from waiting import BROKEN_SECONDS, wait_until

from labkit.course.phase4_production.monitoring.given import Alarm, Evaluation, PrometheusSink, StepRecord

RANKS = 4


def main(containers: Path, runs: Path, learner: str) -> None:
    with SummaryWriter(str(runs / "first")) as writer:
        writer.add_scalar("loss", 1.0, 0)
    sinks = [PrometheusSink(rank, port=9400 + rank, address="0.0.0.0") for rank in range(RANKS)]
    for rank, sink in enumerate(sinks):
        sink.step(record(rank))
    sinks[0].evaluation(Evaluation(time=0.0, step=9, figures={"top1": 0.9}))
    sinks[0].alarm(Alarm("slow compute", 2, 9))
    (source,) = yaml.safe_load((containers / "grafana/datasources/prometheus.yaml").read_text())["datasources"]
    queries = {
        f"{panel['title']}: {target['expr']}": target["expr"].replace("$job", ".*")
        for panel in panels(containers)
        for target in panel["targets"]
    }

    def series() -> dict[str, int]:
        """How many series each query has so far."""
        return {name: len(answers(source["url"], query)) for name, query in queries.items()}

    # Prometheus may scrape a rank between its port's opening and its first step, or its first alarm
    wait_until(lambda: len(answers(source["url"], "training_loss")) == RANKS and all(series().values()), series)
    wait_until(lambda: ask("http://tensorboard:6006/data/runs"))
    found = {
        "logged in": logged_in(learner, "correct horse"),
        "with another password": logged_in(learner, "incorrect horse"),
        "runs": ask("http://tensorboard:6006/data/runs"),
        "queries": series(),
    }
    print(json.dumps(found))


def record(rank: int) -> StepRecord:
    return StepRecord(
        time=0.0, rank=rank, step=9, loss=1.0, samples_per_second=100.0, step_seconds=0.08, compute_seconds=0.04,
        communication_seconds=0.03, input_seconds=0.01, memory_bytes=1000, gpu_percent=90, gpu_memory_bytes=2000,
        gpu_celsius=60, operations={"all_reduce": [0.01, 0.02]},
    )  # fmt: skip


def logged_in(name: str, password: str) -> str:
    """The user whom the hub's page names after a login; empty if it lets nobody in."""
    session = requests.Session()
    login = session.get("http://hub:8000/hub/login", timeout=BROKEN_SECONDS).text
    form = {"username": name, "password": password, "_xsrf": re.findall(r'name="_xsrf" value="([^"]+)"', login)[0]}
    session.post("http://hub:8000/hub/login", data=form, timeout=BROKEN_SECONDS, allow_redirects=False)
    page = session.get("http://hub:8000/hub/home", timeout=BROKEN_SECONDS, allow_redirects=False)
    return "".join(re.findall(r'user: "(\w+)"', page.text)[:1])


def panels(containers: Path) -> Iterator[dict[str, Any]]:
    for file in sorted((containers / "grafana/dashboards").glob("*.json")):
        yield from json.loads(file.read_text())["panels"]


def ask(url: str) -> Any:
    with urlopen(url, timeout=BROKEN_SECONDS) as reply:
        return json.load(reply)


def answers(prometheus: str, query: str) -> list[Any]:
    found: list[Any] = ask(f"{prometheus}/api/v1/query?{urlencode({'query': query})}")["data"]["result"]
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
