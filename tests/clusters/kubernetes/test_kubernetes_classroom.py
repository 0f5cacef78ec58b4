"""A classroom whose servers are pods, on the stand-in cluster: KubeSpawner, its manifests and the server are real."""

from __future__ import annotations

import sys
from pathlib import Path
from urllib.parse import urlsplit

import kubernetes_validate
import psutil
import pytest
import yaml
from site_manifests import built, needs_kubectl
from standin_cluster import StandInCluster
from standin_kinds import VERSION

from autograder.classroom import site as sites
from autograder.classroom.spawners import kubernetes as kind
from autograder.sandbox import Sandbox
from labkit.linux.free_port import free_port

TESTS = Path(__file__).parents[2]
sys.path.append(str(TESTS / "autograder"))
from classroom_person import FOUR_RANKS, Person  # noqa: E402
from classroom_story import Place, three_people  # noqa: E402
from looks_from_a_server import LOOKS  # noqa: E402
from small_classroom import ROOT, Classroom, Hub, small_classroom  # noqa: E402
from waiting import wait_until  # noqa: E402

MANIFESTS = ROOT / "cluster/jupyterhub/kubernetes"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Sandbox().available, reason="needs namespaces, for the sandbox"),
]


def claim(name: str) -> dict[str, object]:
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "10Gi"}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


@pytest.fixture
def classroom(tmp_path: Path, standin: StandInCluster) -> Classroom:
    """Its folder is that of the claim, in which the hub keeps the classroom."""
    made = small_classroom(tmp_path)
    folder = tmp_path / "kubelet/claims/classroom/class"
    text = made.site.read_text().replace("[hub]\n", f'[hub]\nfolder = "{folder}"\n')
    table = (
        f'[servers.kubernetes]\nimage = "lab:1"\nhub_address = "http://127.0.0.1:{free_port()}"\nnamespace = "lab"\n'
        'classroom_claim = "classroom"\nclassroom_path = "class"\n'
    )
    made.site.write_text(text.replace("[servers]\n", '[servers]\nkind = "kubernetes"\n') + table)
    made.moved_to = folder
    lab = made.learners_lab(tmp_path / "image")
    standin.kubelet.environment["LABKIT_ROOT"] = str(lab)
    standin.kubelet.image_folders.append(lab)
    made.environment["KUBECONFIG"] = str(standin.kubeconfig)
    return made


def pods(standin: StandInCluster) -> list[str]:
    return [pod["metadata"]["name"] for pod in standin.store.list("pods")]


def test_a_learner_works_in_a_pod(tmp_path: Path, standin: StandInCluster, classroom: Classroom) -> None:
    site = sites.load(classroom.site)
    (problem,) = kind.missing(site)
    assert "there is no claim classroom in the namespace lab" in problem
    standin.store.create("persistentvolumeclaims", "lab", claim("classroom"))
    assert kind.missing(site) == []
    standin.api.forbidden |= {("create", "pods"), ("watch", "events")}
    (problem,) = kind.missing(site)
    assert "may not do this in the namespace lab of Kubernetes: create pods, watch events; the role of" in problem
    standin.api.forbidden.clear()
    standin.api.requests.clear()
    with classroom.running():
        ada = Person(classroom.address, "ada")
        ada.start_server()
        said = ada.run(LOOKS)
        found = dict(line.split(" => ", 1) for line in said.splitlines() if " => " in line)
        assert found["name"] == "ada /home/lab /home/lab", said
        assert found["exchange"] == "True ['feedback', 'inbound', 'outbound']"
        assert found["own home"] == found["own submission"] == "4"
        assert {found["outbound"], found["feedback"]} <= {"OSError", "PermissionError"}
        assert (classroom.exchange / "inbound/ada/x").read_text() == "mine"
        home = tmp_path / "kubelet/claims/small-course-home-ada"
        assert (home / "note").read_text() == "mine" and "Course home" in (home / "HOME.md").read_text()
        assert "the sum is 10" in ada.run(FOUR_RANKS)
        assert ada.get("/user/ada/labkit/course").json()["course"]["course"] == "small-course"
        (pod,) = standin.store.list("pods")
        (container,) = pod["spec"]["containers"]
        assert container["resources"]["limits"] == {"cpu": 4.0, "memory": int(1.5 * 2**30)}
        assert pod["metadata"]["labels"]["labkit/server"] == "small-course"
        assert pod["spec"]["securityContext"]["runAsNonRoot"] and not pod["spec"]["automountServiceAccountToken"]
        assert ada.stop_server().status_code in (202, 204)
        wait_until(lambda: pods(standin) == [])
    assert standin.api.requests <= permissions(), "of the hub's service account"
    # the claim is kept
    (own,) = standin.store.list("persistentvolumeclaims", chosen=lambda one: "home" in one["metadata"]["name"])
    assert own["spec"]["resources"]["requests"] == {"storage": "0.25Gi"}


@pytest.mark.exhaustive
def test_three_people_at_once_in_pods(tmp_path: Path, standin: StandInCluster, classroom: Classroom) -> None:
    standin.store.create("persistentvolumeclaims", "lab", claim("classroom"))

    def processes(_: Hub, learner: str) -> list[psutil.Process]:
        (pod,) = [
            one for one in standin.kubelet.pods.values() if learner in one.pod["metadata"]["name"] and not one.ended
        ]
        server = psutil.Process(pod.init)
        return [server, *server.children(recursive=True)]

    claims = tmp_path / "kubelet/claims"
    three_people(Place(classroom, lambda name: claims / f"small-course-home-{name}", processes, goes_on=True))


def test_what_the_hub_asks_to_be_allowed_is_what_its_role_allows() -> None:
    assert permissions() == {(verb, plural) for plural, verbs in kind.RIGHTS.items() for verb in verbs}


def permissions() -> set[tuple[str, str]]:
    """Return (verb, plural) pairs of the role in cluster/jupyterhub/kubernetes."""
    things = yaml.safe_load_all((MANIFESTS / "permissions.yaml").read_text())
    rules = [rule for thing in things if thing["kind"] == "Role" for rule in thing["rules"]]
    return {(verb, plural) for rule in rules for verb in rule["verbs"] for plural in rule["resources"]}


def test_the_hub_s_manifests_are_valid_and_agree_with_the_site_s_settings() -> None:
    needs_kubectl()
    things = {(thing["kind"], thing["metadata"]["name"]): thing for thing in yaml.safe_load_all(built(MANIFESTS))}
    for thing in things.values():
        kubernetes_validate.validate(thing, VERSION, strict=True)
        assert thing["metadata"]["namespace"] == "hub"
    (settings,) = [thing["data"]["site.toml"] for (name, _), thing in things.items() if name == "ConfigMap"]
    assert settings == (MANIFESTS / "site.toml").read_text()
    site = sites.load(MANIFESTS / "site.toml")
    table = site.servers.kubernetes
    assert table is not None and ("PersistentVolumeClaim", table.classroom_claim) in things
    pod = things["Deployment", "hub"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    # the folder that servers mount is the hub's
    (mount,) = [one for one in container["volumeMounts"] if one["name"] == "classroom"]
    assert f"{mount['mountPath']}/{table.classroom_path}" == site.hub.folder
    service = things["Service", "hub"]
    address, ports = urlsplit(table.hub_address), {one["name"]: one["port"] for one in service["spec"]["ports"]}
    assert address.hostname == f"hub.{table.namespace}.svc" and address.port == ports["api"]
    opened = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert opened == {"http": urlsplit(site.hub.address).port, "api": address.port}
    allowed = things["NetworkPolicy", "servers"]["spec"]
    assert allowed["egress"][0]["ports"][0]["port"] == address.port


def test_the_image_of_notebooks_has_the_user_that_pods_expect() -> None:
    text = (ROOT / "cluster/containers/notebooks.Containerfile").read_text()
    assert "useradd --uid 1000" in text and "--home-dir /home/lab" in text and " jovyan " in text
