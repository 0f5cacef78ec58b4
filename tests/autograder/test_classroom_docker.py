"""A classroom whose servers are Docker's containers, on a stand-in for the engine: see standin_docker.py."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from classroom_person import FOUR_RANKS, Person
from hub_api_attempts import ATTEMPTS, OPTIONS, TRIES, api_answers, seen_in
from looks_from_a_server import LOOKS
from small_classroom import small_classroom
from standin_docker import StandInDocker

from autograder.classroom import site as sites
from autograder.classroom.spawners import docker as kind
from autograder.sandbox import Sandbox
from labkit.hub.server import terminal
from labkit.linux.free_port import free_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Sandbox().available, reason="needs namespaces, for the sandbox"),
]

MORE_LOOKS = """
tried("course", lambda: os.listdir(OUTSIDE))
tried("system", lambda: Path("/usr/x").write_text("changed"))
tried("capabilities", lambda: [line.split()[1] for line in open("/proc/self/status") if line.startswith("CapBnd")])
"""


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[StandInDocker]:
    engine = StandInDocker({"lab-notebooks:1"}, {"lab"}, tmp_path)
    yield engine
    engine.close()


def test_a_learner_works_in_a_container(tmp_path: Path, engine: StandInDocker, monkeypatch: pytest.MonkeyPatch) -> None:
    classroom = small_classroom(tmp_path)
    text = classroom.site.read_text().replace("[servers]\n", '[servers]\nkind = "docker"\n')
    table = f'[servers.docker]\nimage = "lab-notebooks:1"\nhub_address = "http://127.0.0.1:{free_port()}"\n'
    classroom.site.write_text(text + table)
    monkeypatch.setenv("DOCKER_HOST", engine.url)
    classroom.environment["DOCKER_HOST"] = engine.url
    assert kind.missing(sites.load(classroom.site)) == []
    with classroom.running():
        grace = Person(classroom.address, "grace")
        assert grace.get("/hub/home").ok
        asked = grace.send("POST", "/hub", "/api/users/grace/server", image="evil:1")
        assert asked.status_code == 400 and "image" in asked.json()["message"], asked.text
        ada = Person(classroom.address, "ada")
        assert ada.get("/hub/home").ok
        assert ada.send("POST", "/hub", "/api/users/ada/server", **OPTIONS).status_code in (201, 202)
        ada.start_server()
        statuses = api_answers(ada)
        assert len(statuses) == len(ATTEMPTS) and set(statuses.values()) <= {"400", "403", "404", "405"}, statuses
        seen = seen_in(ada.run(TRIES))
        assert seen.pop("secrets in the environment") == "['JPY_API_TOKEN', 'JUPYTERHUB_API_TOKEN']"
        assert seen.pop("another's home") == "[]"
        assert [seen.pop(name) for name in ("CapEff", "CapBnd", "NoNewPrivs")] == ["0", "0", "1"]
        assert set(seen.values()) <= {"FileNotFoundError", "PermissionError", "NotADirectoryError"}, seen
        said = ada.run(LOOKS + MORE_LOOKS.replace("OUTSIDE", repr(str(classroom.folder))))
        found = dict(line.split(" => ", 1) for line in said.splitlines() if " => " in line)
        assert found["name"] == "ada /home/lab /home/lab", said
        assert found["exchange"] == "True ['feedback', 'inbound', 'outbound']"
        assert found["own home"] == found["own submission"] == "4"
        assert {found["outbound"], found["feedback"], found["system"]} <= {"OSError", "PermissionError"}
        assert found["course"] in ("FileNotFoundError", "PermissionError")
        assert (classroom.folder / "homes/ada/note").read_text() == "mine"
        assert (classroom.exchange / "inbound/ada/x").read_text() == "mine"
        assert "Course home" in (classroom.folder / "homes/ada/HOME.md").read_text()
        assert "the sum is 10" in ada.run(FOUR_RANKS)
        assert ada.get("/user/ada/labkit/course").json()["course"]["course"] == "small-course"
    assert engine.containers == {}, "they end with the hub"
    (made,) = engine.created
    host = made["HostConfig"]
    assert host["Memory"] == host["MemorySwap"] == int(1.5 * 2**30) and host["PidsLimit"] == 1024
    assert host["CpuQuota"] == 4 * host["CpuPeriod"] and host["CapDrop"] == ["ALL"] and host["ReadonlyRootfs"]
    assert not host.get("Privileged") and host["SecurityOpt"] == ["no-new-privileges"]
    assert {bind.split(":")[1] for bind in host["Binds"]} == {
        *("/home/lab", "/etc/passwd", "/etc/group"),
        *(f"/exchange/small-course/{part}" for part in ("outbound", "inbound", "feedback")),
    }
    assert made["Image"] == "lab-notebooks:1" and not any("LEFT=" in variable for variable in made["Env"])
    assert host["PortBindings"] == {"8888/tcp": [{"HostIp": "127.0.0.1", "HostPort": ""}]}


def test_a_server_of_a_hub_without_this_course_has_the_learner_s_own_notebooks(tmp_path: Path) -> None:
    classroom = small_classroom(tmp_path / "lab")
    home = tmp_path / "home"
    home.mkdir()
    environment = {**classroom.environment, "HOME": str(home), "LABKIT_WORKSPACE": str(home)}
    command = [sys.executable, "-P", "-m", "labkit.hub.server", "--version"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (copy,) = home.rglob("*.ipynb")
    assert "BEGIN SOLUTION" not in copy.read_text() and (home / "HOME.md").is_file()
    # in a terminal, whose login sets PATH
    programs = str(Path(sys.executable).parent)
    bare = {**environment, "PATH": os.defpath}
    asked = subprocess.run(terminal(programs), input="command -v labkit", env=bare, capture_output=True, text=True)
    assert asked.stdout == f"{programs}/labkit\n", asked


def test_what_docker_lacks_is_named(tmp_path: Path, engine: StandInDocker, monkeypatch: pytest.MonkeyPatch) -> None:
    table = sites.Docker(image="lab-notebooks:2", hub_address="http://172.17.0.1:8081", network="other")
    site = sites.Site(servers=sites.Servers(kind="docker", docker=table))
    monkeypatch.setenv("DOCKER_HOST", engine.url)
    image, network = kind.missing(site)
    assert "docker pull lab-notebooks:2" in image and "enable_icc=false other" in network
    engine.close()
    (problem,) = kind.missing(site)
    assert "Docker's daemon does not answer" in problem
