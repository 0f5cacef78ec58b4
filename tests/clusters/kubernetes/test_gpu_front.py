"""Requests that no client of labkit's makes: the front alone, with the stand-in's API behind it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from standin_cluster import StandInCluster
from standin_store import epoch_seconds
from tornado import web
from tornado.httpclient import AsyncHTTPClient
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port
from waiting import BROKEN_SECONDS

from autograder.classroom.gpus.gpu_page import ForCells
from autograder.classroom.gpus.kubernetes import cluster as cluster_module
from autograder.classroom.gpus.kubernetes import front
from autograder.classroom.gpus.kubernetes.cluster import Cluster
from autograder.classroom.gpus.kubernetes.front import Front
from autograder.classroom.gpus.kubernetes.pod_jobs import PodJobs
from autograder.classroom.gpus.kubernetes.runs import Runs
from autograder.classroom.gpus.kubernetes.turns import TooMany, Turns
from autograder.classroom.gpus.ledger import Ledger
from autograder.classroom.gpus.watch import Watch
from autograder.classroom.site import GpuPods, Gpus
from labkit.clusters.kubernetes import manifest
from labkit.clusters.kubernetes.api import Api
from labkit.clusters.kubernetes.login import as_service
from labkit.clusters.kubernetes.manifest import Names, Shape

PODS = GpuPods(image="lab:1", hub_address="http://hub:8082", namespace="lab")
NAMES = Names("labkit-0000000001", "lab", "0123456789abcdef")
JOBS, SECRETS = "/apis/batch/v1/namespaces/lab/jobs", "/api/v1/namespaces/lab/secrets"


@dataclass
class Place:
    """A front that runs, and what is behind it."""

    address: str
    standin: StandInCluster
    watch: Watch
    runs: Runs
    turns: Turns

    async def ask(self, method: str, path: str, body: object = None) -> tuple[int, str]:
        data = None if body is None else json.dumps(body)
        client = AsyncHTTPClient(max_clients=200)
        answer = await client.fetch(
            self.address + path,
            method=method,
            body=data,
            raise_error=False,
            allow_nonstandard_methods=True,
            request_timeout=BROKEN_SECONDS,
        )
        return answer.code, answer.body.decode()


Attack = Callable[[Callable[[Place], Awaitable[None]]], None]


@pytest.fixture
def attack(standin: StandInCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Attack:
    """Returns what runs a coroutine beside the front, whose only user is ada."""
    standin.controllers.close()
    standin.kubelet.close()

    async def as_ada(page: ForCells) -> None:
        page.current_user = {"name": "ada"}

    monkeypatch.setattr(ForCells, "prepare", as_ada)

    async def run(steps: Callable[[Place], Awaitable[None]]) -> None:
        ledger = Ledger(tmp_path / "gpus.sqlite")
        runs = Runs(tmp_path / "gpus.sqlite")
        api = Api(as_service(), "lab")
        watch = Watch(PodJobs(api, runs), ledger, Gpus(cluster="kubernetes", kubernetes=PODS), ["ada"])
        given: dict[str, Any] = {"watch": watch, "cluster": Cluster(api), "runs": runs, "pods": PODS, "template": {}}
        given["turns"] = turns = Turns(20)
        socket, port = bind_unused_port()
        server = HTTPServer(web.Application([("/kubernetes/(.*)", Front, {"classroom": None})], **given))
        server.add_socket(socket)
        try:
            await steps(Place(f"http://127.0.0.1:{port}/kubernetes", standin, watch, runs, turns))
        finally:
            server.stop()
            await server.close_all_connections()

    return lambda steps: asyncio.run(run(steps))


def job(gpus: int) -> dict[str, Any]:
    return manifest.job(NAMES, Shape("lab:1", 1, gpus, gpus), 60, 600)


def test_a_run_has_one_job_ever(attack: Attack) -> None:
    """A second one would be counted as the first: with its GPUs."""

    async def steps(place: Place) -> None:
        assert (await place.ask("POST", SECRETS, manifest.secret(NAMES, b"x")))[0] == 201
        assert (await place.ask("POST", JOBS, job(0)))[0] == 201
        place.standin.store.delete("jobs", "lab", NAMES.run)  # as the cluster does when it is over for long
        status, text = await place.ask("POST", JOBS, job(4))
        assert status == 409 and "was made before" in text

    attack(steps)


def test_no_job_is_made_for_a_run_that_is_being_deleted(attack: Attack, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = Cluster.ask

    async def steps(place: Place) -> None:
        deleting: list[asyncio.Task[Any]] = []

        async def slow(cluster: Cluster, method: str, path: str, body: object) -> tuple[int, bytes]:
            if path.endswith("/networkpolicies"):
                deleting.append(asyncio.create_task(place.ask("DELETE", f"{SECRETS}/{NAMES.run}")))
                # the other of ada's two changes is the one that makes the Job
                while not (deleting[0].done() or place.turns._begun["ada"] == 2):
                    await asyncio.sleep(0.01)
            return await ask(cluster, method, path, body)

        monkeypatch.setattr(Cluster, "ask", slow)
        assert (await place.ask("POST", SECRETS, manifest.secret(NAMES, b"x")))[0] == 201
        assert (await place.ask("POST", JOBS, job(1)))[0] == 201
        assert (await deleting[0])[0] == 200
        assert [name for name in place.standin.names() if "policies" not in name] == []

    attack(steps)


def test_the_table_of_runs_grows_slowly(attack: Attack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "_MOST_A_DAY", 2)

    async def steps(place: Place) -> None:
        assert place.runs.begin("labkit-00000000ff", "ada", epoch_seconds() - 90_000)
        assert place.runs.begin("labkit-00000000fe", "grace", epoch_seconds())
        for number, expected in enumerate((201, 201, 429), start=1):
            each = Names(f"labkit-{number:010x}", "lab", NAMES.session)
            assert (await place.ask("POST", SECRETS, manifest.secret(each, b"x")))[0] == expected
            await place.ask("DELETE", f"{SECRETS}/{each.run}")
        assert place.runs.begun("ada", epoch_seconds() - 60) == 2

    attack(steps)


def test_who_reads_slowly_keeps_few_connections_and_none_of_the_hub_s_own(
    attack: Attack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front, "_MOST_STREAMS", 3)
    monkeypatch.setattr(cluster_module, "_THREADS", 3)

    async def steps(place: Place) -> None:
        place.standin.api.read_log = lambda *_: iter([b"x" * 100_000] * 200)
        log = pod_with_log(place)
        readers = [await opened(place, log) for _ in range(3)]
        assert (await place.ask("GET", log))[0] == 429
        await place.watch.in_thread(place.watch.look)
        assert place.watch.problem == ""
        for _, writer in readers:
            writer.close()

    attack(steps)


def pod_with_log(place: Place) -> str:
    """Make a pod of ada's; return the path of its log."""
    pod = f"{NAMES.run}-0-abcde"
    assert place.runs.begin(NAMES.run, "ada", epoch_seconds())
    status = {"containerStatuses": [{"state": {"running": {}}}]}
    place.standin.store.create("pods", "lab", {"metadata": {"name": pod, "labels": {}}, "status": status})
    return f"/api/v1/namespaces/lab/pods/{pod}/log"


async def opened(place: Place, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Ask for a stream, and read its headers."""
    address = urlsplit(place.address)
    reader, writer = await asyncio.open_connection(address.hostname, address.port, limit=1000)
    writer.write(f"GET {address.path}{path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert b"200 OK" in await reader.readline()
    await reader.readuntil(b"\r\n\r\n")
    return reader, writer


def test_a_log_that_nobody_reads_any_more_has_no_thread(attack: Attack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "_THREADS", 1)
    monkeypatch.setattr(cluster_module, "_WAIT_SECONDS", BROKEN_SECONDS)
    over = threading.Event()

    def silent(*_: object) -> Iterator[bytes]:
        yield b"the first line\n"
        over.wait(BROKEN_SECONDS)

    async def steps(place: Place) -> None:
        place.standin.api.read_log = silent
        reader, writer = await opened(place, f"{pod_with_log(place)}?follow=true")
        assert b"the first line" in await reader.readuntil(b"line\n")
        writer.close()
        assert (await place.ask("GET", "/version"))[0] == 200
        over.set()

    attack(steps)


def test_a_log_that_the_cluster_cuts_is_cut_for_the_learner_too(attack: Attack) -> None:
    async def steps(place: Place) -> None:
        place.standin.api.read_log = lambda *_: iter([b"one\n", b"two\n"])
        place.standin.api.cut_logs_after = [6]
        reader, writer = await opened(place, f"{pod_with_log(place)}?follow=true")
        seen = await reader.read()
        assert b"one" in seen and not seen.endswith(b"0\r\n\r\n")
        writer.close()

    attack(steps)


def test_a_cluster_that_does_not_answer_is_told(attack: Attack) -> None:
    async def steps(place: Place) -> None:
        place.standin.api.close()
        status, text = await place.ask("GET", "/version")
        assert status == 502 and "the cluster's API does not answer: Failed to establish" in text

    attack(steps)


def test_few_changes_of_one_learner_wait_and_nobody_waits_for_another() -> None:
    async def steps() -> None:
        turns = Turns(1)
        async with turns.of("ada"), turns.of("grace"):
            with pytest.raises(TooMany):
                async with turns.of("ada"):
                    pass
        async with turns.of("ada"):
            pass

    asyncio.run(steps())


def test_cells_that_end_together_do_not_wait_for_each_other_s_threads(attack: Attack) -> None:
    async def steps(place: Place) -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
        names = [Names(f"labkit-{number:010x}", "lab", NAMES.session) for number in range(12)]
        for each in names:
            assert place.runs.begin(each.run, "ada", epoch_seconds())
        asked = [place.ask("DELETE", f"{SECRETS}/{each.run}") for each in names]
        assert [status for status, _ in await asyncio.wait_for(asyncio.gather(*asked), 60)] == [200] * len(names)
        assert place.runs.left("ada") == {}

    attack(steps)
