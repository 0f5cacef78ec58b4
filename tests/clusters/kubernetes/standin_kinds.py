"""The kinds of objects that the stand-in API serves: paths, scope and validation."""

from __future__ import annotations

from dataclasses import dataclass

import kubernetes_validate
from custom_resources_schema import KINDS as CUSTOM
from custom_resources_schema import require_custom_resource
from standin_store import Object
from trainjob_schema import require_train_job, spec_fields

VERSION = "1.34"
TRAINER = "trainer.kubeflow.org/v1alpha1"


@dataclass(frozen=True)
class Kind:
    name: str
    api_version: str
    plural: str
    namespaced: bool = True

    @property
    def root(self) -> str:
        return root(self.api_version)


def root(api_version: str) -> str:
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


_TABLE = """
v1                            pods services secrets events configmaps persistentvolumeclaims resourcequotas limitranges
apps/v1                       statefulsets
autoscaling/v2                horizontalpodautoscalers
batch/v1                      jobs
networking.k8s.io/v1          networkpolicies
policy/v1                     poddisruptionbudgets
rbac.authorization.k8s.io/v1  roles rolebindings
kueue.x-k8s.io/v1beta2        localqueues
monitoring.coreos.com/v1      podmonitors
trainer.kubeflow.org/v1alpha1 trainjobs
"""
_CLUSTER_WIDE = """
v1                            namespaces
kueue.x-k8s.io/v1beta2        clusterqueues resourceflavors
"""
_NAMES = """
Pod Service Secret Event ConfigMap PersistentVolumeClaim ResourceQuota LimitRange StatefulSet HorizontalPodAutoscaler
Job PodDisruptionBudget Role RoleBinding LocalQueue PodMonitor TrainJob Namespace ClusterQueue ResourceFlavor
"""
_BY_PLURAL = {f"{name.lower()}s": name for name in _NAMES.split()} | {"networkpolicies": "NetworkPolicy"}


def _kinds(table: str, namespaced: bool) -> list[Kind]:
    rows = (line.split() for line in table.strip().splitlines())
    return [Kind(_BY_PLURAL[name], version, name, namespaced) for version, *plurals in rows for name in plurals]


ALL = _kinds(_TABLE, True) + _kinds(_CLUSTER_WIDE, False)


def served(trainer: str | None) -> list[Kind]:
    """trainer: the field for pods of this cluster's TrainJobs; None: no Kubeflow Trainer."""
    return [kind for kind in ALL if trainer or kind.api_version != TRAINER]


def require_valid(kind: Kind, thing: Object, trainer: str | None) -> None:
    """Raises an exception that says what is invalid."""
    if kind.api_version == TRAINER:
        require_train_job(thing, trainer or "")
    elif (kind.api_version, kind.name) in CUSTOM:
        require_custom_resource(thing)
    else:
        kubernetes_validate.validate(thing, VERSION, strict=True)


def discovery(path: str, trainer: str | None) -> Object | None:
    """What the API says of itself under this path; None: nothing."""
    kinds = served(trainer)
    versions = list(dict.fromkeys(kind.api_version for kind in kinds))
    if path == "/version":
        return {"major": "1", "minor": VERSION[2:], "gitVersion": f"v{VERSION}.0+stand-in"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        groups = [{"groupVersion": version, "version": version.split("/")[1]} for version in versions if "/" in version]
        found = [
            {"name": group["groupVersion"].split("/")[0], "versions": [group], "preferredVersion": group}
            for group in groups
        ]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": found}
    for version in versions:
        if path == root(version):
            verbs = ["create", "delete", "get", "list", "patch", "watch"]
            resources = [
                {
                    "name": kind.plural,
                    "singularName": kind.name.lower(),
                    "namespaced": kind.namespaced,
                    "kind": kind.name,
                    "verbs": verbs,
                }
                for kind in kinds
                if kind.api_version == version
            ]
            return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources}
    if path == f"/openapi/v3{root(TRAINER)}" and trainer:
        return {"components": {"schemas": {"org.kubeflow.trainer.v1alpha1.TrainJob": {
            "properties": {"spec": {"properties": spec_fields(trainer)}},
            "x-kubernetes-group-version-kind": [{"group": "trainer.kubeflow.org", "kind": "TrainJob"}],
        }}}}  # fmt: skip
    return None
