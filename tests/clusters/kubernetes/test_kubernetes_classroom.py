"""A classroom whose servers are pods, on the stand-in cluster: KubeSpawner, its manifests and the server are real."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import kubernetes_validate
import psutil
import pytest
import requests
import yaml
from site_manifests import built, needs_kubectl
from standin_cluster import StandInCluster
from standin_kinds import VERSION
from standin_store import epoch_seconds

from autograder.classroom import requirements
from autograder.classroom import site as sites
from autograder.classroom.gpus.jobs import Job as JobRecord
from autograder.classroom.gpus.kubernetes import rights
from autograder.classroom.gpus.kubernetes.runs import Runs
from autograder.classroom.gpus.ledger import DAY_SECONDS, Ledger
from autograder.classroom.spawners import kubernetes as kind
from autograder.sandbox import Sandbox
from labkit.clusters import Job, gpu_ledger
from labkit.clusters.kubernetes import KubernetesError, kubernetes, manifest
from labkit.clusters.kubernetes.login import HUB
from labkit.clusters.kubernetes.manifest import Names, Shape
from labkit.linux.free_port import free_port

TESTS = Path(__file__).parents[2]
sys.path.append(str(TESTS / "autograder"))
from classroom_person import FOUR_RANKS, Person, xsrf  # noqa: E402
from classroom_story import Place, three_people  # noqa: E402
from hub_api_attempts import ATTEMPTS, OPTIONS, TRIES, api_answers, seen_in  # noqa: E402
from looks_from_a_server import LOOKS  # noqa: E402
from small_classroom import ROOT, Classroom, Hub, small_classroom  # noqa: E402
from waiting import BROKEN_SECONDS, wait_until  # noqa: E402

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
        '[gpus]\ncluster = "kubernetes"\nnnodes = 2\nseconds_per_day = 5000\nlongest_minutes = 10\n'
        f'[gpus.kubernetes]\nimage = "lab:1"\nnamespace = "lab"\nhub_address = "http://127.0.0.1:{free_port()}"\n'
    )
    made.site.write_text(text.replace("[servers]\n", '[servers]\nkind = "kubernetes"\n') + table)
    made.moved_to = folder
    lab = made.learners_lab(tmp_path / "image")
    standin.kubelet.environment["LABKIT_ROOT"] = str(lab)
    standin.kubelet.image_folders.append(lab)
    made.environment["KUBECONFIG"] = str(standin.kubeconfig)
    return made


BORROWS = """
%load_ext labkit
%cluster kubernetes
get_ipython().run_cell_magic("torchrun", "", '''
import os, torch.distributed as dist
dist.init_process_group("gloo")
print("rank", dist.get_rank(), "of", dist.get_world_size(), "has a token:", "JUPYTERHUB_API_TOKEN" in os.environ)
''')
"""
"""A cell on borrowed GPUs, by the course's preset."""
WAITS = 'import time, torch.distributed as dist\ndist.init_process_group("gloo")\ntime.sleep(600)'
ASKS_DIRECTLY = """
import os, ssl, urllib.error, urllib.request
print("account:", os.path.exists("/var/run/secrets/kubernetes.io"))
try:
    urllib.request.urlopen("{api}/api/v1/namespaces/lab/pods", context=ssl._create_unverified_context())
except urllib.error.HTTPError as problem:
    print("the API says", problem.code)
"""


def running(standin: StandInCluster) -> list[dict[str, Any]]:
    return standin.store.list("pods", chosen=lambda one: one.get("status", {}).get("phase") == "Running")


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
    standin.write_kubeconfig("https://127.0.0.1:1")
    (problem,) = requirements.missing(site)
    assert "the API of Kubernetes does not answer: Failed to establish a new connection" in problem
    standin.write_kubeconfig(standin.api.url)
    standin.api.forbidden |= {("patch", "jobs"), ("create", "networkpolicies")}
    (problem,) = requirements.missing(site)
    assert (
        "namespace lab of Kubernetes: patch jobs.batch, create networkpolicies.networking.k8s.io; the role" in problem
    )
    standin.api.forbidden.clear()
    standin.api.requests.clear()
    with classroom.running() as hub:
        ada = Person(classroom.address, "ada")
        assert ada.get("/hub/home").ok
        assert ada.send("POST", "/hub", "/api/users/ada/server", **OPTIONS).status_code in (201, 202)
        ada.start_server()
        statuses = api_answers(ada)
        assert len(statuses) == len(ATTEMPTS) and set(statuses.values()) <= {"400", "403", "404", "405"}, statuses
        seen = seen_in(ada.run(TRIES))
        # the last one is the address of the hub's own front
        secret = "['JPY_API_TOKEN', 'JUPYTERHUB_API_TOKEN', 'LABKIT_KUBERNETES_API']"
        assert seen["secrets in the environment"] == secret
        assert seen["the account of a pod"] == "FileNotFoundError"
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
        assert site.gpus is not None and site.gpus.kubernetes is not None
        cells_borrow_gpus(classroom, hub, standin, ada, site.gpus.kubernetes.hub_address)
        (pod,) = standin.store.list("pods")
        (container,) = pod["spec"]["containers"]
        assert container["resources"]["limits"] == {"cpu": 4.0, "memory": int(1.5 * 2**30)}
        assert pod["metadata"]["labels"]["labkit/server"] == "small-course"
        own = container["securityContext"]
        assert own["allowPrivilegeEscalation"] is False and own["capabilities"] == {"drop": ["ALL"]}
        assert own["readOnlyRootFilesystem"] and own["runAsUser"] == 1000 and not own.get("privileged")
        assert container["image"] == "lab:1" and "LEFT" not in {each["name"] for each in container["env"]}
        volumes = {each["name"]: next(iter(each.keys() - {"name"})) for each in pod["spec"]["volumes"]}
        memory = dict.fromkeys(("exchange", "tmp", "shm"), "emptyDir")
        assert volumes == {**dict.fromkeys(("home", "classroom"), "persistentVolumeClaim"), **memory}
        assert not any(pod["spec"].get(name) for name in ("hostNetwork", "hostPID", "hostIPC"))
        assert pod["spec"]["securityContext"]["runAsNonRoot"] and not pod["spec"]["automountServiceAccountToken"]
        assert ada.stop_server().status_code in (202, 204)
        wait_until(lambda: pods(standin) == [])
    allowed = permissions() | permissions(MANIFESTS / "gpus/permissions.yaml")
    plurals = {(verb, name.partition(".")[0]) for verb, name in allowed}
    assert standin.api.requests <= plurals, "of the hub's service account"
    # the claim is kept
    (own,) = standin.store.list("persistentvolumeclaims", chosen=lambda one: "home" in one["metadata"]["name"])
    assert own["spec"]["resources"]["requests"] == {"storage": "0.25Gi"}


def cells_borrow_gpus(classroom: Classroom, hub: Hub, standin: StandInCluster, ada: Person, address: str) -> None:
    """A learner's cell borrows GPUs, the ledger counts them, and nobody gets at another's or beyond the limits."""
    said = ada.run(BORROWS + ASKS_DIRECTLY.format(api=standin.api.url))
    assert "rank 1 of 2 has a token: False" in said, said
    assert "account: False" in said and "the API says 401" in said, said
    ledger = Ledger(classroom.folder / "hub/gpus.sqlite")
    wait_until(lambda: not standin.store.list("jobs"))
    used = ledger.used(epoch_seconds())["ada"]
    assert used > 0

    front = f"{address}/kubernetes"
    grace, said_of_it = Person(classroom.address, "grace"), list[str]()
    headers = {one.name: {"Authorization": f"token {token(one)}"} for one in (ada, grace)}

    def ask(who: str, method: str, path: str, **more: object) -> tuple[int, str]:
        answer = requests.request(method, f"{front}{path}", headers=headers[who], timeout=BROKEN_SECONDS, **more)  # type: ignore[arg-type]
        return answer.status_code, answer.text

    def waits() -> None:
        try:
            said_of_it.append(as_learner.run(Job(source=WAITS, filename="Cell In[1]")).diagnosis())
        except KubernetesError as error:  # if it is stopped before its ranks begin
            said_of_it.append(str(error))

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HUB, front)
        patch.setenv("JUPYTERHUB_API_TOKEN", headers["ada"]["Authorization"].removeprefix("token "))
        patch.setenv(gpu_ledger.ADDRESS, f"{address}/mine")
        as_learner = kubernetes(1, image="lab:1", gpus_per_node=1, namespace="lab", objects="job", timeout=900)
        too_wide = kubernetes(5, image="lab:1", gpus_per_node=1, namespace="lab", objects="job")
        with pytest.raises(KubernetesError, match="it has 5 ranks, and the course allows 4"):
            too_wide.run(Job(source=WAITS, filename="Cell In[1]"))
        other = kubernetes(1, image="mine:1", gpus_per_node=1, namespace="lab", objects="job")
        with pytest.raises(KubernetesError, match="image is 'mine:1', and the course has 'lab:1'"):
            other.run(Job(source=WAITS, filename="Cell In[1]"))
        thread = threading.Thread(target=waits)
        thread.start()
        # a pod of the job before may run on for a moment
        wait_until(lambda: standin.store.list("jobs"))
        (job,) = standin.store.list("jobs")
        name, template = job["metadata"]["name"], job["spec"]["template"]
        wait_until(lambda: any(one["metadata"]["name"].startswith(name) for one in running(standin)))
        assert template["metadata"]["labels"]["labkit/user"] == "ada"
        assert template["spec"]["activeDeadlineSeconds"] == 600
        (pod,) = (one for one in pods(standin) if one.startswith(name))

        core, batch = "/api/v1/namespaces/lab", "/apis/batch/v1/namespaces/lab"
        beat = {"json": {"data": {"alive": "MQ=="}}}
        for who, status in (("grace", 404), ("ada", 200)):
            assert ask(who, "GET", f"{core}/pods", params={"labelSelector": f"job-name={name}"})[0] == status
            of_job = {"fieldSelector": f"involvedObject.name={name}"}
            assert ask(who, "GET", f"{core}/events", params=of_job)[0] == status
            assert ask(who, "GET", f"{core}/pods/{pod}/log")[0] == status
            assert ask(who, "PATCH", f"{core}/secrets/{name}", **beat)[0] == status
        for path in (f"{batch}/jobs/{name}", f"{core}/secrets/{name}", f"{core}/services/{name}"):
            assert ask("grace", "DELETE", path)[0] == 404
        names = Names(name, "lab", job["metadata"]["labels"]["labkit/session"])
        another = manifest.job(names, Shape("lab:1", 1, 1, 1), 900, 600)
        assert ask("grace", "POST", f"{batch}/jobs", json=another)[0] == 404, "the name is ada's"
        assert f"jobs/{name}" in standin.names() and f"secrets/{name}" in standin.names()
        for path, query in (
            (f"{core}/secrets/{name}", {}),
            (f"{core}/pods", {}),
            (f"{core}/pods", {"labelSelector": f"job-name={name},labkit/user!=x"}),
            (f"{core}/pods/{pod}/exec", {"command": "sh"}),
            (f"{core}/pods/..%2F..%2Fkube-system%2Fpods%2Fx/log", {}),
            ("/api/v1/namespaces/kube-system/pods", {"labelSelector": f"job-name={name}"}),
            ("/apis", {}),
        ):
            assert ask("ada", "GET", path, params=query)[0] == 403, path
        for change in ({"data": {"request": "eA=="}}, {"metadata": {"labels": {"labkit/user": "grace"}}}):
            assert ask("ada", "PATCH", f"{core}/secrets/{name}", json=change)[0] == 422
        assert ask("ada", "PATCH", f"{batch}/jobs/{name}", json={"spec": {"activeDeadlineSeconds": 99999}})[0] == 403
        assert ask("ada", "POST", f"{core}/pods", json={"kind": "Pod"})[0] == 403
        assert requests.get(f"{front}/version", timeout=BROKEN_SECONDS).status_code == 401
        # a page of the browser's, which has the hub's cookies
        for given in ({}, {"Authorization": "token x"}):
            assert ada.session.get(f"{front}/version", headers=given, timeout=BROKEN_SECONDS).status_code == 401
        assert ada.get("/services/gpus/kubernetes/version").status_code == 404
        (policy,) = standin.store.list("networkpolicies")
        assert policy["spec"]["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()

        instructor = Person(classroom.address, "instructor", hub.password)
        overview = f"{classroom.address}/services/gpus/"
        wait_until(lambda: name in instructor.session.get(overview, timeout=BROKEN_SECONDS).text)
        # in whole seconds: a job that is stopped in its first one has used nothing
        wait_until(lambda: ledger.used(epoch_seconds())["ada"] > used)
        page = instructor.session.get(overview, timeout=BROKEN_SECONDS).text
        form = {"job": name, "_xsrf": xsrf(page)}
        assert instructor.session.post(f"{overview}stop", data=form, timeout=BROKEN_SECONDS).status_code == 200
        thread.join(120)
        assert f"job {name} was cancelled by instructor, an instructor" in said_of_it[0]
        assert ask("ada", "POST", f"{batch}/jobs", json=another)[0] == 404, "the run has ended"
        assert "by instructor" in ask("ada", "GET", f"{core}/events", params=of_job)[1], "a cell without pods asks so"

        # of one learner there are 16 runs at a time; what an old one has left goes with the next
        runs = Runs(classroom.folder / "hub/gpus.sqlite")
        for number in range(16):
            assert runs.begin(f"labkit-{number:010x}", "grace", epoch_seconds())
        secret = manifest.secret(Names("labkit-00000000ff", "lab", names.session), b"x")
        status, text = ask("grace", "POST", f"{core}/secrets", json=secret)
        assert status == 403 and "you have 16 runs" in text
        assert runs.begin("labkit-00000000ff", "ada", epoch_seconds() - 10 * DAY_SECONDS)
        standin.store.create("secrets", "lab", secret)
        start = int(epoch_seconds()) - 10
        ended = JobRecord("x", "ada", "COMPLETED", start, start + 5, 60, 1, 1000)
        ledger.record([ended], {("x", start): 1000}, start + 5)
        with pytest.raises(KubernetesError, match="today's 5000 GPU-seconds are used; there are new ones at 00:00 UTC"):
            as_learner.run(Job(source=WAITS, filename="Cell In[1]"))
    wait_until(lambda: not [name for name in standin.names() if "labkit" in name])


def token(person: Person) -> str:
    """Return a new token of a person's, with all that they may do."""
    person.get("/hub/home")
    xsrf_token = next(c.value for c in person.session.cookies if c.name == "_xsrf" and c.path == "/hub/")
    address = f"{person.address}/hub/api/users/{person.name}/tokens"
    made = person.session.post(address, headers={"X-XSRFToken": str(xsrf_token)}, json={}, timeout=BROKEN_SECONDS)
    return str(made.json()["token"])


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


def test_what_the_hub_asks_to_be_allowed_is_what_its_roles_allow() -> None:
    for file, asked in (("permissions.yaml", kind.RIGHTS), ("gpus/permissions.yaml", rights.RIGHTS)):
        assert permissions(MANIFESTS / file) == {(verb, name) for name, verbs in asked.items() for verb in verbs}


def permissions(file: Path = MANIFESTS / "permissions.yaml") -> set[tuple[str, str]]:
    """Return (verb, kind) pairs of a role of the hub's, kinds as for kubectl: `jobs.batch`."""
    things = yaml.safe_load_all(file.read_text())
    found = set()
    for rule in [rule for thing in things if thing["kind"] == "Role" for rule in thing["rules"]]:
        (group,) = rule["apiGroups"]
        kinds = [f"{plural}.{group}".removesuffix(".") for plural in rule["resources"]]
        found |= {(verb, name) for verb in rule["verbs"] for name in kinds}
    return found


def with_gpus(folder: Path) -> sites.GpuPods:
    """Return the settings of borrowed GPUs, which are a comment in the manifests'."""
    before, _, after = (MANIFESTS / "site.toml").read_text().partition("# [gpus]\n")
    (folder / "site.toml").write_text(f"{before}[gpus]\n{after.replace('# ', '')}")
    found = sites.load(folder / "site.toml").gpus
    assert found is not None and found.kubernetes is not None
    return found.kubernetes


def test_the_hub_s_manifests_are_valid_and_agree_with_the_site_s_settings(tmp_path: Path) -> None:
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
    ports = {one["name"]: one["port"] for one in service["spec"]["ports"]}
    address, gpus = urlsplit(table.hub_address), urlsplit(with_gpus(tmp_path).hub_address)
    assert (address.hostname, address.port) == (f"hub.{table.namespace}.svc", ports["api"])
    assert (gpus.hostname, gpus.port) == (address.hostname, ports["gpus"])
    opened = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert opened == {"http": urlsplit(site.hub.address).port, "api": address.port, "gpus": gpus.port}
    # servers reach the hub's API and the ledger, and nobody else does
    leaves, arrives = (things["NetworkPolicy", name]["spec"] for name in ("servers", "hub"))
    (proxy, own) = arrives["ingress"]
    assert [one["port"] for one in leaves["egress"][0]["ports"]] == [address.port, gpus.port]
    assert [one["port"] for one in own["ports"]] == [address.port, gpus.port]
    assert own["from"] == [{"podSelector": leaves["podSelector"]}]
    assert [one["port"] for one in proxy["ports"]] == [opened["http"]]


def test_the_namespace_of_borrowed_gpus_belongs_to_the_hub_alone() -> None:
    needs_kubectl()
    things = [thing for thing in yaml.safe_load_all(built(MANIFESTS / "gpus")) if thing["kind"] != "Namespace"]
    for thing in things:
        kubernetes_validate.validate(thing, VERSION, strict=True)
        assert thing["metadata"]["namespace"] == "lab"
    names = {(thing["kind"], thing["metadata"]["name"]) for thing in things}
    assert {name for kind, name in names if kind == "NetworkPolicy"} == {
        *("nothing-by-default", "names", "ranks-of-training")
    }
    (binding,) = (thing for thing in things if thing["kind"] == "RoleBinding")
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "hub", "namespace": "hub"}]
    assert {name for kind, name in names if kind == "Role"} == {"hub-gpus"} == {binding["roleRef"]["name"]}


def test_the_image_of_notebooks_has_the_user_that_pods_expect() -> None:
    text = (ROOT / "cluster/containers/notebooks.Containerfile").read_text()
    assert "useradd --uid 1000" in text and "--home-dir /home/lab" in text and " jovyan " in text
