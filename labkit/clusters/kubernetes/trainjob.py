"""The same run as a TrainJob of Kubeflow Trainer, if the cluster has it: its queues and accounts then apply.

https://www.kubeflow.org/docs/components/trainer/. The runtime turns it into a JobSet, and that into an indexed Job:
pod i is node i here too. The field for additions to a runtime's pods, besides its trainer, differs between Trainer's
versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from labkit.clusters.kubernetes import manifest
from labkit.clusters.kubernetes.api import Api
from labkit.clusters.kubernetes.errors import ApiRefused
from labkit.clusters.kubernetes.manifest import Names, Object, Shape

GROUP, VERSION = "trainer.kubeflow.org", "v1alpha1"
RUNTIME = "torch-distributed"
"""The ClusterTrainingRuntime that Trainer installs."""
_CONTAINER = _REPLICATED_JOB = "node"
"""Names of the container and of the replicated job in the runtime."""

Patching = Literal["runtimePatches", "podTemplateOverrides"]
"""The field in which pods get their volumes: Trainer 2.2 and later, Trainer 2.1."""
_POD_FIELDS = ("serviceAccountName", "nodeSelector", "affinity", "tolerations", "volumes", "imagePullSecrets")


def patching(spec_fields: Mapping[str, Any]) -> Patching | None:
    """The field for volumes in this cluster's TrainJobs, from the fields of its TrainJobSpec; None: no known one."""
    if "runtimePatches" in spec_fields:
        return "runtimePatches"
    return "podTemplateOverrides" if "podTemplateOverrides" in spec_fields else None


def train_job(names: Names, shape: Shape, timeout: float, silence: float, patching: Patching) -> Object:
    """The TrainJob; times as for `manifest.job`."""
    plain = manifest.job(names, shape, timeout, silence)
    pod = plain["spec"]["template"]
    container = next(c for c in pod["spec"]["containers"] if c["name"] == manifest.CONTAINER)
    pod_spec = {key: pod["spec"][key] for key in _POD_FIELDS if key in pod["spec"]}
    patch: Object = {"name": _CONTAINER, "volumeMounts": container["volumeMounts"]}
    spec: Object = {
        "runtimeRef": {"apiGroup": GROUP, "kind": "ClusterTrainingRuntime", "name": RUNTIME},
        "trainer": {
            "image": container["image"],
            "command": container["command"],
            "env": container["env"],
            "numNodes": shape.nnodes,
            "numProcPerNode": shape.nproc_per_node,
            "resourcesPerNode": container["resources"],
        },
    }
    if patching == "runtimePatches":
        patch["securityContext"] = container["securityContext"]
        pod_spec["securityContext"] = pod["spec"]["securityContext"]
        of_pods = {"metadata": pod["metadata"], "spec": {**pod_spec, "containers": [patch]}}
        of_jobs = [{"name": _REPLICATED_JOB, "template": {"spec": {"template": of_pods}}}]
        spec["activeDeadlineSeconds"] = plain["spec"]["activeDeadlineSeconds"]
        spec["runtimePatches"] = [
            {"manager": "labkit/notebook", "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": of_jobs}}}}
        ]
    else:
        spec["podTemplateOverrides"] = [
            {
                "targetJobs": [{"name": _REPLICATED_JOB}],
                "metadata": pod["metadata"],
                "spec": {**pod_spec, "containers": [patch]},
            }
        ]
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "TrainJob",
        "metadata": plain["metadata"],
        "spec": spec,
    }


def master(names: Names) -> str:
    """Name of node 0 in the cluster's DNS: JobSet creates the Service, and names the pods' hosts."""
    return f"{names.run}-{_REPLICATED_JOB}-0-0.{names.run}"


def available(api: Api, pod_template: Mapping[str, Any]) -> tuple[Patching | None, str]:
    """The format of TrainJobs on this cluster; None and the reason if they cannot be used."""
    unknown = (pod_template.get("spec") or {}).keys() - {*_POD_FIELDS, "containers"}
    if unknown:
        return None, f"its pods cannot be given {', '.join(sorted(unknown))} of the pod template"
    if GROUP not in [group["name"] for group in api.get("/apis")["groups"]]:
        return None, "the cluster has no Kubeflow Trainer"
    try:
        may_create = api.may("create", f"trainjobs.{GROUP}")
    except ApiRefused:  # it does not answer such questions
        may_create = False
    if not may_create:
        return None, f"you may not create TrainJobs in namespace {api.namespace!r}"
    schemas = api.get(f"/openapi/v3/apis/{GROUP}/{VERSION}")["components"]["schemas"]
    fields: Mapping[str, Any] = {}
    for schema in schemas.values():
        kinds = [each.get("kind") for each in schema.get("x-kubernetes-group-version-kind", ())]
        if kinds == ["TrainJob"]:
            fields = schema["properties"]["spec"]["properties"]
    field = patching(fields)
    return field, "" if field else "this version of Kubeflow Trainer is not known here"
