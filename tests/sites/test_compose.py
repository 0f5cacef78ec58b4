"""The compose file comes up: by the runner that needs neither podman nor a registry."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from overlays import needs_overlays
from system_packages import needs_packages
from waiting import BROKEN_SECONDS

from autograder.classroom import proxy

ROOT = Path(__file__).parents[2]
CONTAINERS = ROOT / "cluster" / "containers"
RUNNER = CONTAINERS / "without_registry" / "compose.py"
VISITOR, CLASS = (Path(__file__).with_name(f"compose_{name}.py") for name in ("visitor", "class"))


def compose(file: Path, into: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, RUNNER, file, "--into", into, "--patience", f"{BROKEN_SECONDS:g}", *options]
    return subprocess.run(command, capture_output=True, text=True)


def patient(folder: Path) -> Path:
    """Copy the compose file and what is beside it, with a hub that may be slow; return the copy."""
    shutil.copytree(CONTAINERS, folder)
    with (folder / "site.toml").open("a") as file:
        file.write(f"[servers]\nstart_seconds = {BROKEN_SECONDS:.0f}\n")
    return folder / "compose.yaml"


def classroom_of_ada(into: Path) -> Path:
    """Make the folder of a class of one learner in the volume of the hub; return it."""
    proxy.install()  # the services have no network to do it
    classroom = into / "volumes" / "classroom" / "classroom"
    classroom.mkdir(parents=True)
    (classroom / "learners.txt").write_text("ada\n")
    return classroom


@pytest.mark.slow
def test_the_lab_of_the_compose_file_comes_up(tmp_path: Path) -> None:
    """Hub, JupyterLab, TensorBoard and Prometheus: a learner logs in, ranks are scraped, every panel has data."""
    needs_packages("prometheus")
    needs_overlays(tmp_path)
    into = tmp_path / "lab"
    classroom = classroom_of_ada(into)
    visit = shlex.join(["python", str(VISITOR), str(CONTAINERS), f"{into}/volumes/runs", "ada"])
    done = compose(patient(tmp_path / "containers"), into, "--run", visit)
    assert done.returncode == 0, done.stdout + done.stderr
    states = dict(line.split(": ", 1) for line in done.stdout.partition("$ ")[0].splitlines() if line)
    assert {name: states[name] for name in ("notebooks", "hub", "tensorboard")} == dict.fromkeys(
        ("notebooks", "hub", "tensorboard"), "healthy"
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    queries = found.pop("queries")
    assert found == {"logged in": "ada", "with another password": "", "runs": ["first"]}
    assert queries and all(queries.values()), queries
    # the first password is kept where the class's files are: in the volume
    assert list((classroom / "hub").glob("passwords*")) and (classroom / "homes" / "ada").is_dir()


@pytest.mark.exhaustive
def test_a_learner_of_the_compose_file_is_graded_on_submit(tmp_path: Path) -> None:
    """From the formgrader's release to the feedback in the learner's home, through the hub's address."""
    needs_overlays(tmp_path)
    into = tmp_path / "lab"
    classroom = classroom_of_ada(into)
    visit = shlex.join(["python", str(CLASS), str(into), "ada"])
    done = compose(patient(tmp_path / "containers"), into, "--service", "hub", "--run", visit)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "fetched": ["fetched"], "with solutions": False, "ranks": ["[0-3] the sum is 10"],
        "submitted": ["fetched", "submitted"], "feedback": "01_process_group: 25 of 25 points",
    }  # fmt: skip
    (record,) = (classroom / "graded").glob("*/*")
    assert json.loads(record.read_text())["score"] == 25


def test_the_image_trainer_of_the_compose_file_trains_and_goes_on(tmp_path: Path) -> None:
    """One epoch of the service's own command, then another one by the same volume, which TensorBoard shows."""
    needs_overlays(tmp_path)
    into, configs = tmp_path / "lab", tmp_path / "cluster" / "configs"
    file = patient(tmp_path / "cluster" / "containers")
    shutil.copytree(CONTAINERS.parent / "configs", configs)
    runs, log = into / "volumes" / "runs", into / "training.log"
    small = (
        (configs / "ddp.yaml").read_text().replace("resnet8", "mlp").replace("nproc_per_node: 4", "nproc_per_node: 2")
    )
    ended = f"until grep -qE '\"epoch\"|Traceback|labkit: ' {shlex.quote(str(log))}; do sleep 0.1; done"
    shown = "until curl -sf http://tensorboard:6006/data/runs | grep -q images/tensorboard/rank-1; do sleep 0.2; done"
    services = ["--service", "training", "--service", "tensorboard"]
    for epochs in (1, 2):
        (configs / "ddp.yaml").write_text(small.replace("epochs: 8", f"epochs: {epochs}"))
        done = compose(file, into, *services, "--run", ended, "--run", shown)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f'"epoch": {epochs}, "step": {23 * epochs}, ' in log.read_text(), log.read_text()
        assert (runs / "images" / f"step_{23 * epochs:08}").is_dir()
    assert "from step 23" in log.read_text() and "note: it trains with the solution of" in log.read_text()


def test_services_see_their_volumes_and_a_root_that_is_read_only(tmp_path: Path) -> None:
    needs_overlays(tmp_path)
    file = tmp_path / "compose.yaml"
    (tmp_path / "note").write_text("from the host\n")
    script = (
        "cat /etc/lab/note; touch /new /etc/lab/note /runs/x; echo kept >/data/mine; ls /runs; echo $WORD; sleep 99"
    )
    service = {
        "image": "lab:1", "build": {"dockerfile": "cluster/containers/notebooks.Containerfile"},
        "read_only": True, "command": ["sh", "-c", script], "environment": {"WORD": "said"}, "tmpfs": ["/runs"],
        "volumes": ["./note:/etc/lab/note:ro", "data:/data"], "healthcheck": {"test": ["CMD", "test", "-e", "/"]},
    }  # fmt: skip
    file.write_text(json.dumps({"services": {"one": service}, "volumes": {"data": {}}}))
    kept = tmp_path / "lab" / "volumes" / "data" / "mine"
    wait = f"until grep -q said '{tmp_path}/lab/one.log'; do sleep 0.1; done"
    done = compose(file, tmp_path / "lab", "--run", f"{wait}; getent hosts one")
    assert done.returncode == 0 and done.stdout.rstrip().endswith("one"), done.stdout + done.stderr
    assert (tmp_path / "lab" / "one.log").read_text().splitlines() == [
        "from the host",
        "touch: cannot touch '/new': Read-only file system",
        "touch: cannot touch '/etc/lab/note': Read-only file system",
        "x",
        "said",
    ]
    assert kept.read_text() == "kept\n"
    # a service that ends, and what the runner does not know, are errors
    service |= {"command": ["sh", "-c", "echo cannot start; exit 3"], "healthcheck": {"test": ["CMD", "false"]}}
    file.write_text(json.dumps({"services": {"one": service}, "volumes": {"data": {}}}))
    ended = compose(file, tmp_path / "lab")
    assert ended.returncode == 1 and "one has ended:\ncannot start" in ended.stderr
    file.write_text(json.dumps({"services": {"one": {**service, "privileged": True}}}))
    unknown = compose(file, tmp_path / "lab")
    assert unknown.returncode == 1 and "service one: privileged is not known here" in unknown.stderr
