"""Objects sent to the cluster, against the schemas that Kubernetes and Kubeflow publish; and through real kubectl."""

from __future__ import annotations

import json
import pickle
import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from standin_cluster import StandInCluster
from system_packages import needs_packages
from trainjob_schema import require_train_job

from labkit.clusters.kubernetes import kubernetes, manifest, trainjob
from labkit.clusters.kubernetes.manifest import Names, Shape

_NAMES = Names("labkit-0", "lab", "a-session")
_SHAPE = Shape("registry/lab:1", nnodes=2, nproc_per_node=8, gpus_per_node=8, cpus="16", memory="64Gi")
_TEMPLATE = """
metadata: {labels: {kueue.x-k8s.io/queue-name: course}}
spec:
  nodeSelector: {gpu: h200}
  tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]
  imagePullSecrets: [{name: registry}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: course-data}}]
  containers:
  - name: ranks
    env: [{name: NCCL_DEBUG, value: WARN}]
    volumeMounts: [{name: data, mountPath: /data, readOnly: true}]
    resources: {limits: {rdma/hca: 1}}
"""


@pytest.fixture
def template(tmp_path: Path) -> Path:
    file = tmp_path / "pods.yaml"
    file.write_text(_TEMPLATE)
    return file


@pytest.mark.parametrize("version", ["1.28", "1.34", "1.37"])
def test_a_dry_run_is_valid_against_the_published_schemas(
    standin: StandInCluster, template: Path, version: str
) -> None:
    cluster = kubernetes(
        nnodes=2, gpus_per_node=8, image="lab:1", cpus=16, memory="64Gi", service_account="trainer",
        pod_template=template,
    )  # fmt: skip
    things = list(yaml.safe_load_all(cluster.dry_run()))
    assert [thing["kind"] for thing in things] == ["Secret", "Service", "Job"]
    for thing in things:
        kubernetes_validate.validate(thing, version, strict=True)
        assert thing["metadata"]["namespace"] == "lab"
    # nothing was made
    assert standin.names() == []


def test_a_dry_run_needs_no_cluster(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(state / "nosuch"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert "namespace: course" in kubernetes(image="lab:1", namespace="course").dry_run()


def test_a_pod_template_is_laid_over_what_is_rendered(template: Path) -> None:
    job = yaml.safe_load_all(kubernetes(image="lab:1", cpus=4, pod_template=template, objects="job").dry_run())
    *_, job = job
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["nodeSelector"] == {"gpu": "h200"}
    # Kueue reads the Job's labels
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "course"
    assert [volume["name"] for volume in pod["volumes"]] == ["request", "shared-memory", "data"]
    assert [mount["mountPath"] for mount in container["volumeMounts"]] == ["/run/labkit", "/dev/shm", "/data"]
    assert {entry["name"] for entry in container["env"]} == {"HOME", "NCCL_DEBUG"}
    assert container["resources"]["limits"] == {"cpu": "4", "rdma/hca": 1}
    assert container["image"] == "lab:1" and pod["restartPolicy"] == "Never"


def test_pods_keep_to_the_restricted_pod_security_standard() -> None:
    """https://kubernetes.io/docs/concepts/security/pod-security-standards/: what strict namespaces require."""
    pod = manifest.job(_NAMES, _SHAPE, 60, 600)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert not pod["automountServiceAccountToken"]
    assert all("secret" in volume or "emptyDir" in volume for volume in pod["volumes"])


def test_times_bound_a_run_at_each_level() -> None:
    spec = manifest.job(_NAMES, _SHAPE, 100.0, 600)["spec"]
    assert spec["template"]["spec"]["activeDeadlineSeconds"] > 100
    # waiting for nodes is not counted against the ranks
    assert spec["activeDeadlineSeconds"] >= spec["template"]["spec"]["activeDeadlineSeconds"] + 24 * 3600
    assert spec["ttlSecondsAfterFinished"] and spec["backoffLimit"] == 0


def test_nothing_of_the_request_is_in_the_job() -> None:
    """The request may hold a learner's keys: it is in the Secret, not in a command line or the environment."""
    secret = manifest.secret(_NAMES, b"the-request")
    job = json.dumps(manifest.job(_NAMES, _SHAPE, 60, 600))
    assert "dGhlLXJlcXVlc3Q" in json.dumps(secret) and "request" in secret["data"]
    assert "the-request" not in job and "dGhlLXJlcXVlc3Q" not in job
    kubernetes_validate.validate(secret, "1.34", strict=True)


@pytest.mark.parametrize("field", ["runtimePatches", "podTemplateOverrides"])
def test_a_train_job_is_valid_for_both_versions_of_kubeflow_trainer(field: trainjob.Patching, template: Path) -> None:
    shape = Shape(
        "lab:1", 2, 8, gpus_per_node=8, service_account="trainer", pod_template=yaml.safe_load(template.read_text())
    )
    thing = trainjob.train_job(_NAMES, shape, 60, 600, field)
    require_train_job(thing, field)
    other = {"runtimePatches": "podTemplateOverrides", "podTemplateOverrides": "runtimePatches"}[field]
    with pytest.raises(Exception, match=f"'{field}'"):
        require_train_job(thing, other)
    text = json.dumps(thing)
    for part in ("course-data", "h200", "NCCL_DEBUG", "/run/labkit", "nvidia.com/gpu", "labkit/run"):
        assert part in text


def test_a_template_that_train_jobs_cannot_carry_makes_a_plain_job(standin: StandInCluster) -> None:
    standin.api.trainer = "runtimePatches"
    plain = kubernetes(image="lab:1", pod_template={"spec": {"hostNetwork": True}})
    assert "kind: TrainJob" in kubernetes(image="lab:1").dry_run()
    assert "kind: TrainJob" not in plain.dry_run()
    with pytest.raises(Exception, match="hostNetwork of the pod template"):
        kubernetes(image="lab:1", pod_template={"spec": {"hostNetwork": True}}, objects="trainjob").describe()


def test_the_role_for_learners_is_valid_and_grants_what_is_used() -> None:
    file = Path(__file__).parents[3] / "cluster" / "kubernetes" / "base" / "role.yaml"
    things = list(yaml.safe_load_all(file.read_text()))
    for thing in things:
        kubernetes_validate.validate(thing, "1.34", strict=True)
    rules = next(thing for thing in things if thing["kind"] == "Role")["rules"]
    granted = {(verb, what) for rule in rules for what in rule["resources"] for verb in rule["verbs"]}
    assert granted >= {
        *((verb, what) for verb in ("create", "delete") for what in ("jobs", "services", "secrets")),
        *(("patch", what) for what in ("services", "secrets")),
        *((verb, "pods") for verb in ("list", "watch")),
        ("get", "pods/log"),
        ("list", "events"),
    }
    assert not any(verb == "*" for verb, _ in granted)
    assert not {("get", "secrets"), ("list", "secrets")} & granted


def test_the_real_kubectl_takes_a_dry_run(standin: StandInCluster, tmp_path: Path) -> None:
    """kubectl is real; the API that it talks to is the stand-in."""
    needs_packages("kubernetes-client")
    file = tmp_path / "run.yaml"
    file.write_text(kubernetes(nnodes=2, image="nosuch:1").dry_run())

    def run(*words: str) -> str:
        done = subprocess.run(
            ["kubectl", "--kubeconfig", str(standin.kubeconfig), *words], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("create", "--validate=false", "-f", str(file)).splitlines() == [
        "secret/labkit-dry-run created",
        "service/labkit-dry-run created",
        "job.batch/labkit-dry-run created",
    ]
    assert "labkit-dry-run" in run("get", "jobs", "--no-headers")
    run("delete", "-f", str(file), "--wait=false")
    assert not [name for name in standin.names() if not name.startswith("pods/")]


def test_a_request_survives_its_secret() -> None:
    from labkit.clusters import Job
    from labkit.clusters.agent import LaunchPlan
    from labkit.clusters.local.rank import ENTRY

    plan = LaunchPlan(run="labkit-0", entry=ENTRY, job=Job(source="1"), nnodes=1, nproc_per_node=1)
    assert manifest.unpacked(manifest.packed(plan)) == pickle.loads(pickle.dumps(plan))
