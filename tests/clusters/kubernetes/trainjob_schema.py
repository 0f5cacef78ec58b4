"""TrainJob's schema, for tests: Kubeflow publishes one in its CRD, half a megabyte with all pod fields.

Written after pkg/apis/trainer/v1alpha1/trainjob_types.go of kubeflow/trainer; pod fields are taken from Kubernetes' own
schemas. Fields that are not listed here are refused, as the API server does with strict validation.
"""

from __future__ import annotations

from typing import Any

from schema_parts import TEXT, TEXTS, array, closed_map, of, require, resource

_METADATA = closed_map(labels=TEXTS, annotations=TEXTS)
_POD = {
    "serviceAccountName": TEXT,
    "nodeSelector": TEXTS,
    "affinity": of("Affinity"),
    "tolerations": array(of("Toleration")),
    "volumes": array(of("Volume")),
    "imagePullSecrets": array(of("LocalObjectReference")),
    "schedulingGates": array(of("PodSchedulingGate")),
}


def _container(**more: Any) -> dict[str, Any]:
    return closed_map(("name",), name=TEXT, env=array(of("EnvVar")), volumeMounts=array(of("VolumeMount")), **more)


def _nested(*names: str, inside: dict[str, Any]) -> dict[str, Any]:
    for name in reversed(names):
        inside = closed_map(**{name: inside})
    return inside


_PODS = {
    "podTemplateOverrides": array(
        closed_map(
            ("targetJobs",),
            targetJobs=array(
                closed_map(("name",), name={"enum": ["node", "dataset-initializer", "model-initializer"]})
            ),
            metadata=_METADATA,
            spec=closed_map(**_POD, containers=array(_container()), initContainers=array(_container())),
        )
    ),
    "runtimePatches": array(
        closed_map(
            ("manager",),
            manager={"type": "string", "minLength": 1, "maxLength": 253},
            trainingRuntimeSpec=_nested(
                "template",
                "spec",
                "replicatedJobs",
                inside=array(
                    closed_map(
                        ("name",),
                        name=TEXT,
                        template=_nested(
                            "spec",
                            "template",
                            inside=closed_map(
                                metadata=_METADATA,
                                spec=closed_map(
                                    **_POD,
                                    containers=array(_container(securityContext=of("SecurityContext")), 64),
                                    securityContext=of("PodSecurityContext"),
                                ),
                            ),
                        ),
                    )
                ),
            ),
        ),
        16,
    ),
}


def spec_fields(pods_field: str) -> dict[str, Any]:
    """Return fields of TrainJobSpec, of the version with this field for pods."""
    fields = {
        "runtimeRef": closed_map(("name",), name=TEXT, apiGroup=TEXT, kind=TEXT),
        "trainer": closed_map(
            image={"type": "string", "maxLength": 500},
            command=array(TEXT),
            args=array(TEXT),
            env=array(of("EnvVar")),
            numNodes={"type": "integer"},
            numProcPerNode={"type": "integer"},
            resourcesPerNode=of("ResourceRequirements"),
        ),
        "suspend": {"type": "boolean"},
        "managedBy": TEXT,
        pods_field: _PODS[pods_field],
    }
    if pods_field == "runtimePatches":
        fields["activeDeadlineSeconds"] = {"type": "integer", "minimum": 1}
    return fields


def require_train_job(thing: dict[str, Any], pods_field: str) -> None:
    """Raises `jsonschema.ValidationError`."""
    spec = {**closed_map(**spec_fields(pods_field)), "required": ["runtimeRef"]}
    require(resource("trainer.kubeflow.org/v1alpha1", "TrainJob", spec), thing)
