"""What the hub passes on of a learner's objects: labkit's own shape, made anew, and nothing else."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import kubernetes_validate
import pytest
from standin_kinds import VERSION

from autograder.classroom.gpus.kubernetes import shapes
from autograder.classroom.gpus.kubernetes.shapes import OtherShape, label, user_of
from autograder.classroom.site import GpuPods
from labkit.clusters.kubernetes import manifest
from labkit.clusters.kubernetes.manifest import Names, Object, Shape

PODS = GpuPods(image="lab:1", hub_address="http://hub:8082", namespace="lab", cpus="8", memory="64Gi")
NAMES = Names("labkit-0123456789", "lab", "0123456789abcdef")
LONGEST_SECONDS = 600


def sent_job(nnodes: int = 2, gpus: int = 1, timeout: float = 60, **more: Any) -> Object:
    """Return a Job as labkit's client makes it."""
    shape = Shape(PODS.image, nnodes, gpus, gpus, PODS.cpus, PODS.memory, **more)
    return manifest.job(NAMES, shape, timeout, 600)


def changed(thing: Object, place: str, value: object) -> Object:
    """Return a copy with a value at a place: a JSON pointer (RFC 6901) without the first /."""
    copied = copy.deepcopy(thing)
    *way, last = (int(part) if part.isdigit() else part.replace("~1", "/") for part in place.split("/"))
    at: Any = copied
    for part in way:
        at = at[part] if isinstance(part, int) else at.setdefault(part, {})
    at[last] = value
    return copied


def as_ada(thing: Object) -> Object:
    return shapes.job(thing, "ada", PODS, LONGEST_SECONDS, {}).job


def test_a_job_of_labkit_s_is_made_anew_with_its_user_and_the_course_s_limit() -> None:
    run = shapes.job(sent_job(), "ada", PODS, LONGEST_SECONDS, {})
    assert (run.nnodes, run.gpus) == (2, 2)
    spec = run.job["spec"]["template"]["spec"]
    assert spec["activeDeadlineSeconds"] == LONGEST_SECONDS
    assert run.job["spec"]["activeDeadlineSeconds"] == LONGEST_SECONDS + manifest.WAIT_LIMIT_SECONDS
    for thing in (run.job, run.job["spec"]["template"]):
        assert thing["metadata"]["labels"].pop("labkit/user") == "ada"
    # of a learner's objects nothing else differs
    expected = sent_job(timeout=LONGEST_SECONDS - manifest.PULL_SECONDS)
    assert run.job == expected
    kubernetes_validate.validate(shapes.job(sent_job(), "ada", PODS, LONGEST_SECONDS, {}).job, VERSION, strict=True)
    without = shapes.job(sent_job(1, 0), "ada", PODS, LONGEST_SECONDS, {})
    assert (without.nnodes, without.gpus) == (1, 0)


def test_the_course_s_template_is_laid_over_what_learners_send() -> None:
    selector, labels = {"gpu": "h100"}, {"kueue.x-k8s.io/queue-name": "course", "labkit/user": "nobody"}
    template = {"metadata": {"labels": labels}, "spec": {"nodeSelector": selector}}
    made = shapes.job(sent_job(), "ada", PODS, LONGEST_SECONDS, template).job
    assert made["spec"]["template"]["spec"]["nodeSelector"] == selector
    for thing in (made, made["spec"]["template"]):
        assert thing["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "course"
        assert user_of(thing) == "ada"


POD, CONTAINER = "spec/template/spec", "spec/template/spec/containers/0"
HOST = [{"name": "host", "hostPath": {"path": "/"}}]
OTHERS_SECRET = [{"name": "request", "secret": {"secretName": "labkit-9999999999", "defaultMode": 0o444}}]
REFUSED: dict[str, object] = {
    # the container, and what it may do on its node
    f"{CONTAINER}/image": "mine:1",
    f"{CONTAINER}/imagePullPolicy": "Always",
    f"{CONTAINER}/command": ["sh", "-c", "id", "600"],
    f"{CONTAINER}/args": ["x"],
    f"{CONTAINER}/name": "other",
    f"{CONTAINER}/env": [{"name": "HOME", "value": "/root"}],
    f"{CONTAINER}/envFrom": [{"secretRef": {"name": "labkit-9999999999"}}],
    f"{CONTAINER}/workingDir": "/",
    f"{CONTAINER}/ports": [{"containerPort": 80, "hostPort": 80}],
    f"{CONTAINER}/lifecycle": {"preStop": {"exec": {"command": ["x"]}}},
    f"{CONTAINER}/livenessProbe": {"exec": {"command": ["x"]}},
    f"{CONTAINER}/securityContext/privileged": True,
    f"{CONTAINER}/securityContext/allowPrivilegeEscalation": True,
    f"{CONTAINER}/securityContext/capabilities": {"add": ["SYS_ADMIN"]},
    f"{CONTAINER}/securityContext/runAsUser": 0,
    f"{CONTAINER}/volumeMounts/0/mountPath": "/etc",
    f"{CONTAINER}/volumeMounts/0/subPath": "..",
    f"{CONTAINER}/volumeDevices": [{"name": "disk", "devicePath": "/dev/sda"}],
    # what it may take
    f"{CONTAINER}/resources/limits/cpu": "64",
    f"{CONTAINER}/resources/limits/memory": "1Ti",
    f"{CONTAINER}/resources/limits/amd.com~1gpu": "8",
    f"{CONTAINER}/resources/requests/nvidia.com~1gpu": "0",
    f"{CONTAINER}/resources/claims": [{"name": "gpu"}],
    # the pod
    f"{POD}/containers": [],
    f"{POD}/initContainers": [{"name": "first", "image": "lab:1"}],
    f"{POD}/ephemeralContainers": [{"name": "first", "image": "lab:1"}],
    f"{POD}/volumes": HOST,
    f"{POD}/volumes/0": OTHERS_SECRET[0],
    f"{POD}/serviceAccountName": "hub",
    f"{POD}/serviceAccount": "hub",
    f"{POD}/automountServiceAccountToken": True,
    f"{POD}/imagePullSecrets": [{"name": "registry"}],
    f"{POD}/hostNetwork": True,
    f"{POD}/hostPID": True,
    f"{POD}/hostIPC": True,
    f"{POD}/shareProcessNamespace": True,
    f"{POD}/securityContext/runAsNonRoot": False,
    f"{POD}/securityContext/seccompProfile": {"type": "Unconfined"},
    f"{POD}/nodeName": "node-a",
    f"{POD}/nodeSelector": {"a": "b"},
    f"{POD}/affinity": {},
    f"{POD}/tolerations": [{"operator": "Exists"}],
    f"{POD}/priorityClassName": "system-node-critical",
    f"{POD}/schedulerName": "mine",
    f"{POD}/runtimeClassName": "mine",
    f"{POD}/resourceClaims": [{"name": "gpu", "resourceClaimName": "all"}],
    f"{POD}/restartPolicy": "Always",
    f"{POD}/terminationGracePeriodSeconds": 100_000,
    f"{POD}/activeDeadlineSeconds": "60",
    f"{POD}/subdomain": "labkit-9999999999",
    f"{POD}/enableServiceLinks": True,
    # the Job
    "kind": "CronJob",
    "apiVersion": "batch/v2",
    "status": {},
    "spec/completions": 0,
    "spec/parallelism": 100,
    "spec/backoffLimit": 1000,
    "spec/suspend": True,
    "spec/selector": {"matchLabels": {"labkit/user": "grace"}},
    "spec/manualSelector": True,
    "spec/managedBy": "mine.example/controller",
    "spec/podFailurePolicy": {"rules": []},
    "spec/ttlSecondsAfterFinished": 0,
    # names, and whose it is
    "metadata/name": "labkit-0123456789x",
    "metadata/namespace": "kube-system",
    "metadata/generateName": "labkit-",
    "metadata/finalizers": ["mine.example/never"],
    "metadata/ownerReferences": [{"uid": "1", "kind": "Job", "name": "x", "apiVersion": "batch/v1"}],
    "metadata/annotations": {"a": "b"},
    "metadata/labels/labkit~1user": "grace",
    "metadata/labels/labkit~1session": "x",
    "metadata/labels/labkit~1run": "labkit-9999999999",
    "spec/template/metadata/labels/labkit~1user": "grace",
    "spec/template/metadata/labels/labkit~1run": "labkit-9999999999",
    "spec/template/metadata/annotations": {"container.apparmor.security.beta.kubernetes.io/ranks": "unconfined"},
    "spec/template/metadata/name": "x",
}
"""Places of a Job, and what a learner writes there."""


@pytest.mark.parametrize("place", REFUSED)
def test_a_job_that_differs_anywhere_is_refused(place: str) -> None:
    wrong = changed(sent_job(), place, REFUSED[place])
    assert wrong != sent_job()
    with pytest.raises(OtherShape):
        as_ada(wrong)


@pytest.mark.parametrize(
    "given",
    [
        lambda job: sent_job(gpus=-1),
        lambda job: sent_job(timeout=-manifest.PULL_SECONDS),
        lambda job: sent_job(service_account="hub"),
        lambda job: sent_job(pod_template={"spec": {"nodeSelector": {"a": "b"}}}),
        lambda job: sent_job(pod_template={"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "others"}}}),
        lambda job: changed(job, "spec/completions", True),
        lambda job: changed(job, "spec/completions", 2.0),
        lambda job: changed(job, f"{CONTAINER}/resources/limits", {"nvidia.com/gpu": "1e3"}),
        lambda job: changed(job, f"{CONTAINER}/resources/limits", {"nvidia.com/gpu": "9" * 5000}),
        lambda job: changed(job, f"{POD}/containers", [job["spec"]["template"]["spec"]["containers"][0]] * 2),
        lambda job: changed(job, f"{CONTAINER}/command", [*manifest.command(600)[:-1], "inf"]),
        lambda job: changed(job, f"{CONTAINER}/command", [*manifest.command(600)[:-1], "nan"]),
        lambda job: {key: value for key, value in job.items() if key != "spec"},
        lambda job: {},
        lambda job: [job],
        lambda job: None,
        lambda job: "labkit-0123456789",
    ],
)
def test_what_is_no_job_of_labkit_s_is_refused(given: Callable[[Object], Object]) -> None:
    with pytest.raises(OtherShape):
        as_ada(given(sent_job()))


def test_the_message_says_what_differs() -> None:
    with pytest.raises(OtherShape, match=r"containers\[0\]\.image is 'mine:1', and the course has 'lab:1'"):
        as_ada(changed(sent_job(), f"{CONTAINER}/image", "mine:1"))
    with pytest.raises(OtherShape, match=r"template\.spec\.hostNetwork is not allowed"):
        as_ada(changed(sent_job(), f"{POD}/hostNetwork", True))
    with pytest.raises(OtherShape, match=r"spec\.a\\nb\\ud800 is not allowed"):
        as_ada(changed(sent_job(), "spec/a\nb\ud800", True))
    missing = sent_job()
    del missing["spec"]["template"]["spec"]["automountServiceAccountToken"]
    with pytest.raises(OtherShape, match="automountServiceAccountToken is missing"):
        as_ada(missing)


def test_secrets_and_services_have_labkit_s_shape_too() -> None:
    secret, service = manifest.secret(NAMES, b"request"), manifest.service(NAMES)
    made = shapes.secret(secret, "ada", PODS)
    assert made["metadata"]["labels"].pop("labkit/user") == "ada" and made == secret
    made = shapes.service(service, "ada", PODS)
    assert made["metadata"]["labels"].pop("labkit/user") == "ada" and made == service
    for place, value in (
        ("type", "kubernetes.io/service-account-token"),
        ("metadata/annotations", {"kubernetes.io/service-account.name": "hub"}),
        ("metadata/namespace", "hub"),
        ("metadata/name", "classroom"),
        ("data/request", 1),
        ("data/request", "not base 64!"),
        ("data/other", "eA=="),
        ("stringData", {"request": "x"}),
        ("immutable", True),
    ):
        with pytest.raises(OtherShape):
            shapes.secret(changed(secret, place, value), "ada", PODS)
    for place, value in (
        ("spec/type", "LoadBalancer"),
        ("spec/externalIPs", ["10.0.0.1"]),
        ("spec/externalName", "hub.hub.svc"),
        ("spec/clusterIP", ""),
        ("spec/ports", [{"port": 80}]),
        ("spec/selector", {"labkit/user": "grace"}),
    ):
        with pytest.raises(OtherShape):
            shapes.service(changed(service, place, value), "ada", PODS)


def test_of_a_run_its_number_and_its_owner_can_be_changed() -> None:
    owner = manifest.owned_by({**sent_job(), "metadata": {"name": NAMES.run, "uid": "0f-1"}})
    for change, of_secret in (({"data": {"alive": "MQ=="}}, True), (owner, True), (owner, False)):
        assert shapes.patch(change, NAMES.run, of_secret) == change
    reference = owner["metadata"]["ownerReferences"][0]
    for wrong in (
        {"data": {"request": "MQ=="}},
        {"data": {"alive": "MQ==", "request": "MQ=="}},
        {"data": {"alive": "MQ=="}, "metadata": {"labels": {"labkit/user": "grace"}}},
        {"data": {"alive": None}},
        {"data": {"alive": "M" * 64}},
        {"metadata": {"ownerReferences": [{**reference, "kind": "Node"}]}},
        {"metadata": {"ownerReferences": [{**reference, "name": "labkit-9999999999"}]}},
        {"metadata": {"ownerReferences": [{**reference, "blockOwnerDeletion": True}]}},
        {"metadata": {"ownerReferences": [reference, reference]}},
        {"metadata": {"ownerReferences": [{**reference, "uid": "../x"}]}},
        {"metadata": {"finalizers": ["x"]}},
        {"spec": {"type": "NodePort"}},
        {},
        [],
        None,
    ):
        with pytest.raises(OtherShape):
            shapes.patch(wrong, NAMES.run, secret=True)
    with pytest.raises(OtherShape):
        shapes.patch({"data": {"alive": "MQ=="}}, NAMES.run, secret=False)


def test_labels_tell_users_apart() -> None:
    names = ("ada", "ada.", "ada-", "ada_", "a.d-a_1")
    assert len({label(name) for name in names}) == len(names)
    for name in names:
        assert label(name)[-1].isalnum()
        assert user_of({"metadata": {"labels": {"labkit/user": label(name)}}}) == name
    assert user_of({"metadata": {}}) == ""


def test_a_learner_s_ranks_reach_each_other_alone() -> None:
    made = shapes.policy("grace.", PODS)
    kubernetes_validate.validate(made, VERSION, strict=True)
    pods = made["spec"].pop("podSelector")
    assert pods == {"matchLabels": {"labkit/user": "grace.X"}}
    assert made["spec"] == {
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [{"podSelector": pods}]}],
        "egress": [{"to": [{"podSelector": pods}]}],
    }
    assert made["metadata"]["name"] != shapes.policy("grace-", PODS)["metadata"]["name"]
