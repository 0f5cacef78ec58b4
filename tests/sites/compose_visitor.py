"""A visitor of the compose file's services, in their network: logs in, is scraped, asks. Prints JSON.

Arguments: the folder of the compose file, the folder of the volume `runs`, and a learner's name.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import requests
import yaml
from torch.utils.tensorboard import SummaryWriter

from labkit.parallel.monitoring import Alarm, PrometheusSink, StepRecord

RANKS = 4


def main(containers: Path, runs: Path, learner: str) -> None:
    with SummaryWriter(str(runs / "first")) as writer:
        writer.add_scalar("loss", 1.0, 0)
    sinks = [PrometheusSink(rank, port=9400 + rank) for rank in range(RANKS)]
    for rank, sink in enumerate(sinks):
        sink.step(record(rank))
    sinks[0].alarm(Alarm("slow compute", 2, 9))
    (source,) = yaml.safe_load((containers / "grafana/datasources/prometheus.yaml").read_text())["datasources"]
    found = {
        "logged in": logged_in(learner, "correct horse"),
        "with another password": logged_in(learner, "incorrect horse"),
        "scraped": until(RANKS, lambda: len(answers(source["url"], "training_loss"))),
        "runs": until(["first"], lambda: ask("http://tensorboard:6006/data/runs")),
        "queries": {
            f"{panel['title']}: {target['expr']}": len(answers(source["url"], target["expr"].replace("$job", ".*")))
            for panel in panels(containers)
            for target in panel["targets"]
        },
    }
    print(json.dumps(found))


def record(rank: int) -> StepRecord:
    return StepRecord(
        time=0.0, rank=rank, step=9, loss=1.0, samples_per_second=100.0, step_seconds=0.08, compute_seconds=0.04,
        communication_seconds=0.03, input_seconds=0.01, memory_bytes=1000, gpu_percent=90,
    )  # fmt: skip


def logged_in(name: str, password: str) -> str:
    """The user whom the hub's page names after a login; empty if it lets nobody in."""
    session = requests.Session()
    login = session.get("http://hub:8000/hub/login", timeout=60).text
    form = {"username": name, "password": password, "_xsrf": re.findall(r'name="_xsrf" value="([^"]+)"', login)[0]}
    session.post("http://hub:8000/hub/login", data=form, timeout=60, allow_redirects=False)
    page = session.get("http://hub:8000/hub/home", timeout=60, allow_redirects=False)
    return "".join(re.findall(r'user: "(\w+)"', page.text)[:1])


def panels(containers: Path) -> Iterator[dict[str, Any]]:
    for file in sorted((containers / "grafana/dashboards").glob("*.json")):
        yield from json.loads(file.read_text())["panels"]


def ask(url: str) -> Any:
    with urlopen(url, timeout=60) as reply:
        return json.load(reply)


def answers(prometheus: str, query: str) -> list[Any]:
    found: list[Any] = ask(f"{prometheus}/api/v1/query?{urlencode({'query': query})}")["data"]["result"]
    return found


def until(wanted: Any, question: Any) -> Any:
    """The answer once it is the wanted one, else the last one of two minutes."""
    limit = time.monotonic() + 120
    while (found := question()) != wanted and time.monotonic() < limit:
        time.sleep(0.3)
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
