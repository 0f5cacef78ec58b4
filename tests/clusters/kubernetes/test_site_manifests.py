"""The manifests of cluster/kubernetes: each one is valid, fits the others, and is taken by the stand-in API."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from site_manifests import BUILDS, ROOT, needs_kubectl, one, things
from standin_cluster import StandInCluster
from standin_kinds import ALL

from labkit.course.phase4_production.monitoring.given import PrometheusSink


@pytest.fixture(autouse=True)
def _kubectl() -> None:
    needs_kubectl()


@pytest.mark.parametrize("build", BUILDS)
def test_objects_have_a_namespace_where_their_kind_has_one(build: str) -> None:
    """kustomize does not know custom resources, and the API server refuses a namespace where there is none."""
    kinds = {(kind.api_version, kind.name): kind for kind in ALL}
    for thing in things(build):
        kind = kinds[thing["apiVersion"], thing["kind"]]
        assert ("namespace" in thing["metadata"]) == kind.namespaced, thing["metadata"]["name"]


def test_every_file_is_used_or_for_another_tool() -> None:
    """A manifest that no kustomization names would be valid, and never applied."""
    named = set[str]()
    for file in ROOT.rglob("kustomization.yaml"):
        folder, content = file.parent, yaml.safe_load(file.read_text())
        parts = [*content.get("resources", ()), *content.get("configurations", ())]
        parts += [patch["path"] for patch in content.get("patches", ()) if "path" in patch]
        parts += [name for each in content.get("configMapGenerator", ()) for name in each["files"]]
        named |= {str((folder / part).resolve()) for part in parts}
    left = {file for file in ROOT.rglob("*.yaml") if file.name != "kustomization.yaml" and str(file) not in named}
    assert {file.relative_to(ROOT).as_posix() for file in left} == {
        "components/elastic/prometheus-adapter.yaml",
        "components/gpu/gpu-operator.yaml",
        "jupyterhub.yaml",
        "overlays/runs/pod-template.yaml",  # labkit launch --pod-template
    }


@pytest.mark.parametrize("build", BUILDS)
def test_every_object_is_valid_and_a_real_kubectl_applies_it(standin: StandInCluster, build: str) -> None:
    """The stand-in API refuses what is not strictly valid: standin_kinds.py."""
    standin.api.trainer = "runtimePatches"
    done = subprocess.run(
        ["kubectl", "--kubeconfig", str(standin.kubeconfig), "apply", "--validate=false", "-k", str(ROOT / build)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(" created") == len(things(build))


def _pods() -> list[tuple[str, dict[str, Any]]]:
    """Pod specs by their builds."""
    found = []
    for build in BUILDS:
        for thing in things(build):
            if thing["kind"] in ("StatefulSet", "Job"):
                found.append((build, thing["spec"]["template"]["spec"]))
            if thing["kind"] == "TrainJob":
                (patch,) = thing["spec"]["runtimePatches"]
                (job,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
                found.append((build, job["template"]["spec"]["template"]["spec"]))
    return found


def test_pods_have_no_root_no_capabilities_no_token_and_a_read_only_image() -> None:
    """The restricted Pod Security Standard, which the namespace enforces, and beyond it a root that is read-only."""
    assert {build for build, _ in _pods()} == {build for build in BUILDS if build.startswith("overlays/")}
    for build, pod in _pods():
        security = pod["securityContext"]
        assert security["runAsNonRoot"] and security["runAsUser"] == 1000, build
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, build
        allowed = {"name", "configMap", "emptyDir", "persistentVolumeClaim"}
        assert all(volume.keys() <= allowed for volume in pod["volumes"])
    labels = one("overlays/small", "Namespace")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    # a TrainJob's token is its runtime's affair
    assert not any(pod.get("automountServiceAccountToken", False) for _, pod in _pods())


def test_prometheus_scrapes_the_ports_that_ranks_have_and_may_reach_them() -> None:
    pod = one("overlays/gpu", "StatefulSet")["spec"]["template"]["spec"]["containers"][0]
    ports = {port["name"]: port["containerPort"] for port in pod["ports"]}
    endpoints = one("overlays/gpu", "PodMonitor")["spec"]["podMetricsEndpoints"]
    assert [endpoint["port"] for endpoint in endpoints] == list(ports)
    variables = {entry["name"]: entry.get("value") for entry in pod["env"]}
    assert variables["NPROC_PER_NODE"] == str(len(ports)) == pod["resources"]["limits"]["nvidia.com/gpu"]
    (policy,) = [thing for thing in things("overlays/gpu") if thing["metadata"]["name"] == "metrics-of-training"]
    (allowed,) = policy["spec"]["ingress"][0]["ports"]
    assert list(ports.values()) == list(range(allowed["port"], allowed["endPort"] + 1))


def test_workers_grow_and_shrink_by_one_number() -> None:
    """torchrun takes as many pods as the autoscaler makes, and the autoscaler's metric is made of what ranks export."""
    stateful_set, scaler = one("overlays/gpu", "StatefulSet")["spec"], one("overlays/gpu", "HorizontalPodAutoscaler")
    assert "replicas" not in stateful_set
    variables = {
        entry["name"]: entry.get("value") for entry in stateful_set["template"]["spec"]["containers"][0]["env"]
    }
    assert variables["NNODES"] == f"{scaler['spec']['minReplicas']}:{scaler['spec']['maxReplicas']}"
    adapter = yaml.safe_load((ROOT / "components/elastic/prometheus-adapter.yaml").read_text())
    (rule,) = adapter["rules"]["custom"]
    assert rule["name"]["as"] == scaler["spec"]["metrics"][0]["pods"]["metric"]["name"]
    exported = {metric.name for metric in PrometheusSink(0).registry.collect()}
    used = {name for name in ("communication_time_seconds", "input_time_seconds", "training_step_time_seconds")}
    assert used <= exported and all(name in rule["metricsQuery"] for name in used)


def test_a_queue_of_the_course_exists_for_what_is_sent_to_it() -> None:
    local, wide = one("overlays/job", "LocalQueue"), one("queue", "ClusterQueue")
    assert local["spec"]["clusterQueue"] == wide["metadata"]["name"]
    assert one("overlays/job", "Job")["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == local["metadata"]["name"]
    flavors = {thing["metadata"]["name"] for thing in things("queue") if thing["kind"] == "ResourceFlavor"}
    (group,) = wide["spec"]["resourceGroups"]
    assert {flavor["name"] for flavor in group["flavors"]} == flavors
    # all that a pod asks for is covered: Kueue never admits what it does not know
    pod = one("overlays/job", "Job")["spec"]["template"]["spec"]["containers"][0]
    assert pod["resources"]["requests"].keys() <= set(group["coveredResources"])


def test_the_stand_in_api_refuses_an_invalid_object(standin: StandInCluster, tmp_path: Path) -> None:
    queue = one("overlays/job", "LocalQueue")
    queue["spec"]["clusterQueues"] = ["course"]
    file = tmp_path / "queue.yaml"
    file.write_text(yaml.safe_dump(queue))
    done = subprocess.run(
        ["kubectl", "--kubeconfig", str(standin.kubeconfig), "apply", "--validate=false", "-f", str(file)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and "LocalQueue is invalid" in done.stderr and "clusterQueues" in done.stderr
