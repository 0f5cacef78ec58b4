"""A classroom whose servers are pods, on the stand-in cluster: KubeSpawner, its manifests and the server are real."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from standin_cluster import StandInCluster

from autograder.classroom import site as sites
from autograder.classroom.spawners import kubernetes as kind
from autograder.sandbox import Sandbox
from labkit.linux.free_port import free_port

TESTS = Path(__file__).parents[2]
sys.path.append(str(TESTS / "autograder"))
from classroom_person import FOUR_RANKS, Person  # noqa: E402
from small_classroom import ROOT, small_classroom  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Sandbox().available, reason="needs namespaces, for the sandbox"),
]

LOOKS = """
import os
from pathlib import Path
from nbgrader.utils import check_directory, get_username

def tried(what, attempt):
    try:
        print(what, "=>", attempt())
    except Exception as problem:
        print(what, "=>", type(problem).__name__)

exchange = Path("/exchange/small-course")
print("name =>", get_username(), Path.home(), Path.cwd())
print("exchange =>", check_directory("/exchange", write=True, execute=True), sorted(os.listdir(exchange)))
tried("own home", lambda: Path.home().joinpath("note").write_text("mine"))
tried("own submission", lambda: (exchange / "inbound/x").write_text("mine"))
for part in ("outbound", "feedback"):
    tried(part, lambda: (exchange / part / "x").write_text("changed"))
"""


def claim(name: str) -> dict[str, object]:
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "10Gi"}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


def test_a_learner_works_in_a_pod(tmp_path: Path, standin: StandInCluster) -> None:
    classroom = small_classroom(tmp_path)
    # the claim's folder, in which the hub keeps the classroom
    folder = tmp_path / "kubelet/claims/classroom/class"
    text = classroom.site.read_text().replace("[hub]\n", f'[hub]\nfolder = "{folder}"\n')
    table = (
        f'[servers.kubernetes]\nimage = "lab:1"\nhub_address = "http://127.0.0.1:{free_port()}"\nnamespace = "lab"\n'
        'classroom_claim = "classroom"\nclassroom_path = "class"\n'
    )
    classroom.site.write_text(text.replace("[servers]\n", '[servers]\nkind = "kubernetes"\n') + table)
    site = sites.load(classroom.site)
    (problem,) = kind.missing(site)
    assert "there is no claim classroom in the namespace lab" in problem
    standin.store.create("persistentvolumeclaims", "lab", claim("classroom"))
    assert kind.missing(site) == []
    standin.kubelet.environment["LABKIT_ROOT"] = str(tmp_path)
    classroom.environment["KUBECONFIG"] = str(standin.kubeconfig)
    with classroom.running():
        ada = Person(classroom.address, "ada")
        ada.start_server()
        said = ada.run(LOOKS)
        found = dict(line.split(" => ", 1) for line in said.splitlines() if " => " in line)
        assert found["name"] == "ada /home/lab /home/lab", said
        assert found["exchange"] == "True ['feedback', 'inbound', 'outbound']"
        assert found["own home"] == found["own submission"] == "4"
        assert {found["outbound"], found["feedback"]} <= {"OSError", "PermissionError"}
        assert (folder / "exchange/small-course/inbound/ada/x").read_text() == "mine"
        home = tmp_path / "kubelet/claims/small-course-home-ada"
        assert (home / "note").read_text() == "mine" and "Course home" in (home / "HOME.md").read_text()
        assert "the sum is 10" in ada.run(FOUR_RANKS)
        (pod,) = standin.store.list("pods")
        (container,) = pod["spec"]["containers"]
        assert container["resources"]["limits"] == {"cpu": 4.0, "memory": int(1.5 * 2**30)}
        assert pod["spec"]["securityContext"]["runAsNonRoot"] and not pod["spec"]["automountServiceAccountToken"]
    assert standin.store.list("pods") == [], "they end with the hub"
    # the claim is kept
    (own,) = standin.store.list("persistentvolumeclaims", chosen=lambda one: "home" in one["metadata"]["name"])
    assert own["spec"]["resources"]["requests"] == {"storage": "0.25Gi"}


def test_the_image_of_notebooks_has_the_user_that_pods_expect() -> None:
    text = (ROOT / "cluster/containers/notebooks.Containerfile").read_text()
    assert "useradd --uid 1000" in text and "--home-dir /home/lab" in text and " jovyan " in text
