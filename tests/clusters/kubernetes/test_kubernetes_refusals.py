"""What a (stand-in) Kubernetes refuses, cannot do or does not answer is reported plainly at once; nothing is left."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from standin_cluster import StandInCluster
from waiting import wait_until

from labkit.clusters import InvalidJob, Job, State, kinds
from labkit.clusters.kubernetes import KubernetesError, kubernetes
from labkit.clusters.kubernetes.api import Api
from labkit.clusters.kubernetes.login import as_person
from labkit.clusters.kubernetes.sessions import delete_orphans
from labkit.command_line import finding
from labkit.installing import how_to_install

_JOB = Job(source="1")


def _told(**options: object) -> str:
    """Return the error message of a run that cannot be."""
    with pytest.raises(KubernetesError) as raised:
        kubernetes(image=str(options.pop("image", "lab:1")), nnodes=2, **options).run(_JOB)  # type: ignore[arg-type]
    return str(raised.value)


def test_an_image_that_cannot_be_pulled(standin: StandInCluster) -> None:
    told = _told(image="lab:nosuch")
    assert "the image lab:nosuch cannot be had (ImagePullBackOff: " in told and "not found" in told
    assert "imagePullSecrets" in told
    standin.wait_until_empty()


def test_an_image_that_runs_as_root(standin: StandInCluster) -> None:
    assert "CreateContainerConfigError" in (told := _told(image="rooted:1"))
    assert "USER 1000" in told
    standin.wait_until_empty()


def test_a_quota_that_leaves_no_room_for_pods(standin: StandInCluster) -> None:
    """The Job is accepted, its pods are not: only the Job's events show that."""
    standin.controllers.refuse_pods = (
        'pods "labkit-0" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=8, '
        "used: requests.nvidia.com/gpu=4, limited: requests.nvidia.com/gpu=8"
    )
    told = _told(gpus_per_node=8)
    assert "the cluster makes no pods" in told and "exceeded quota: gpus" in told and "fewer nodes or GPUs" in told
    standin.wait_until_empty()


def test_a_run_without_pods_that_the_course_s_hub_has_ended(standin: StandInCluster) -> None:
    standin.controllers.refuse_pods = "later"
    standin.api.ended_by_hub = "job x was cancelled by grace, an instructor"
    assert "ended before its ranks began" in (told := _told()) and "was cancelled by grace, an instructor" in told
    standin.wait_until_empty()


def test_a_quota_that_refuses_the_job_itself(standin: StandInCluster) -> None:
    standin.api.quota = "exceeded quota: jobs, requested: count/jobs.batch=1, used: 5, limited: 5"
    assert "exceeded quota: jobs" in (told := _told()) and "wait until other runs have ended" in told
    standin.wait_until_empty()


@pytest.mark.parametrize(
    ("verb", "plural"), [("create", "jobs"), ("create", "secrets"), ("patch", "secrets"), ("list", "pods")]
)
def test_a_role_that_lacks_a_right(standin: StandInCluster, verb: str, plural: str) -> None:
    standin.api.forbidden = {(verb, plural)}
    told = _told()
    assert "you may not do that in namespace 'lab'" in told and f"cannot {verb} resource" in told
    assert "docs/kubernetes.md" in told
    standin.wait_until_empty()


def test_pods_that_wait_for_gpus_are_a_state_and_not_an_error(standin: StandInCluster) -> None:
    """Two pods of five GPUs where two nodes have two and eight: one runs, one waits; then the learner gives up."""
    standin.controllers.gpus["node-b"] = 2
    states = list[State]()
    over = threading.Event()

    def on_state(state: State) -> None:
        states.append(state)
        if "Insufficient" in state.text and "1 running" in state.text:
            over.set()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kubernetes(nnodes=2, image="lab:1", gpus_per_node=5).run(_JOB, on_state=on_state)
    assert over.is_set()
    assert states[-1].phase == "queued"
    assert states[-1].text == ("2 pods: 1 running, 1 pending: 0/2 nodes are available: 2 Insufficient nvidia.com/gpu")
    standin.wait_until_empty()


def test_an_api_that_does_not_answer(standin: StandInCluster) -> None:
    told = _told(context="gone")
    assert "https://127.0.0.1:1 does not answer" in told and "VPN" in told and "refused" in told


def test_a_login_that_has_run_out(standin: StandInCluster) -> None:
    standin.write_kubeconfig(standin.api.url, token="an-old-token")
    assert "does not know you" in _told()


def test_no_kubeconfig(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(state / "nosuch"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    told = _told()
    assert "nothing says where the Kubernetes cluster is" in told and "nosuch" in told


def test_doctor_says_what_works_and_what_is_missing(standin: StandInCluster) -> None:
    looked = kinds.registered()["kubernetes"].examine
    found = looked()
    assert found.state is finding.State.OK and "namespace lab" in found.seen and "stand-in" in found.seen
    standin.api.forbidden = {("create", "jobs")}
    found = looked()
    assert found.state is finding.State.MISSING and "you may not create jobs there" in found.seen


def test_a_context_that_is_not_there(standin: StandInCluster) -> None:
    assert "no context 'prod'; there are: lab" in _told(context="prod")


def test_without_the_package(standin: StandInCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    assert how_to_install("kubernetes", "notebooks") in _told()


def test_a_request_that_is_too_large_for_a_secret(standin: StandInCluster) -> None:
    noise = os.urandom(2 << 20)
    with pytest.raises(InvalidJob, match=r"Kubernetes takes 1,048,576.*the function and what it closes over \(2,\d+"):
        kubernetes(nnodes=2, image="lab:1").run(Job.calling(lambda: len(noise)))
    assert standin.names() == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "--image"),
        ({"image": "lab:1", "nnodes": 0}, "nnodes must be"),
        ({"image": "lab:1", "nproc_per_node": "gpu"}, "--gpus-per-node"),
        ({"image": "lab:1", "nproc_per_node": "cpu"}, "--cpus"),
        ({"image": "lab:1", "timeout": 0}, "timeout must be"),
        ({"image": "lab:1", "objects": "pod"}, "objects must be"),
        ({"image": "lab:1", "pod_template": {"nodeSelector": {}}}, "`metadata` and `spec`"),
        ({"image": "lab:1", "pod_template": {"metadata": {"name": "mine"}}}, "names are the lab's"),
        ({"image": "lab:1", "pod_template": "/nosuch.yaml"}, "cannot be read"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, object], told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LABKIT_IMAGE", raising=False)
    with pytest.raises(InvalidJob, match=told):
        kubernetes(**options)  # type: ignore[arg-type]


def test_what_a_killed_kernel_left_is_deleted_by_the_next_one(standin: StandInCluster) -> None:
    """Its pods wait for GPUs; the kernel is killed; the next kernel's first run finds them. Others' are left alone."""
    script = textwrap.dedent("""
        from labkit.clusters import Job
        from labkit.clusters.kubernetes import kubernetes
        cluster = kubernetes(nnodes=2, image="lab:1", gpus_per_node=64)
        cluster.run(Job(source="1"), on_state=lambda state: print(state.text, flush=True))
    """)
    kernel = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert kernel.stdout is not None
    for line in kernel.stdout:
        if "Insufficient" in line:
            break
    alive = _kinds(standin)
    assert alive == {"jobs", "pods", "secrets", "services"}
    assert delete_orphans(Api(as_person())) == 0

    kernel.kill()
    kernel.wait()
    kernel.stdout.close()
    # another machine's, about which nothing is known here
    labels = {"app.kubernetes.io/managed-by": "labkit", "labkit/session": "0"}
    standin.store.create("secrets", "lab", {"metadata": {"name": "labkit-other", "labels": labels}, "data": {}})
    assert delete_orphans(Api(as_person())) == 3
    wait_until(lambda: standin.names() == ["secrets/labkit-other"], standin.names)
    assert delete_orphans(Api(as_person())) == 0


def _kinds(standin: StandInCluster) -> set[str]:
    return {name.split("/")[0] for name in standin.names()}
