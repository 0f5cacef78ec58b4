"""TrainJob's schema, for tests: Kubeflow publishes one in its CRD, half a megabyte with all pod fields.

Written after pkg/apis/trainer/v1alpha1/trainjob_types.go of kubeflow/trainer; pod fields are taken from Kubernetes' own
schemas. Fields that are not listed here are refused, as the API server does with strict validation.
"""

from __future__ import annotations

import functools
import json
from importlib import resources
from typing import Any

import jsonschema
from referencing import Registry, Resource

_DEFINITIONS = "_definitions.json"


def _of(kind: str) -> dict[str, str]:
    return {"$ref": f"{_DEFINITIONS}#/$defs/io.k8s.api.core.v1.{kind}"}


def _map(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "required": list(required), "properties": properties}


def _list(items: Any, most: int = 128) -> dict[str, Any]:
    return {"type": "array", "items": items, "maxItems": most}


_TEXT = {"type": "string"}
_TEXTS = {"type": "object", "additionalProperties": _TEXT}
_METADATA = _map(labels=_TEXTS, annotations=_TEXTS)
_POD = {
    "serviceAccountName": _TEXT,
    "nodeSelector": _TEXTS,
    "affinity": _of("Affinity"),
    "tolerations": _list(_of("Toleration")),
    "volumes": _list(_of("Volume")),
    "imagePullSecrets": _list(_of("LocalObjectReference")),
    "schedulingGates": _list(_of("PodSchedulingGate")),
}


def _container(**more: Any) -> dict[str, Any]:
    return _map(("name",), name=_TEXT, env=_list(_of("EnvVar")), volumeMounts=_list(_of("VolumeMount")), **more)


def _nested(*names: str, inside: dict[str, Any]) -> dict[str, Any]:
    for name in reversed(names):
        inside = _map(**{name: inside})
    return inside


_PODS = {
    "podTemplateOverrides": _list(
        _map(
            ("targetJobs",),
            targetJobs=_list(_map(("name",), name={"enum": ["node", "dataset-initializer", "model-initializer"]})),
            metadata=_METADATA,
            spec=_map(**_POD, containers=_list(_container()), initContainers=_list(_container())),
        )
    ),
    "runtimePatches": _list(
        _map(
            ("manager",),
            manager={"type": "string", "minLength": 1, "maxLength": 253},
            trainingRuntimeSpec=_nested(
                "template",
                "spec",
                "replicatedJobs",
                inside=_list(
                    _map(
                        ("name",),
                        name=_TEXT,
                        template=_nested(
                            "spec",
                            "template",
                            inside=_map(
                                metadata=_METADATA,
                                spec=_map(
                                    **_POD,
                                    containers=_list(_container(securityContext=_of("SecurityContext")), 64),
                                    securityContext=_of("PodSecurityContext"),
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
        "runtimeRef": _map(("name",), name=_TEXT, apiGroup=_TEXT, kind=_TEXT),
        "trainer": _map(
            image={"type": "string", "maxLength": 500},
            command=_list(_TEXT),
            args=_list(_TEXT),
            env=_list(_of("EnvVar")),
            numNodes={"type": "integer"},
            numProcPerNode={"type": "integer"},
            resourcesPerNode=_of("ResourceRequirements"),
        ),
        "suspend": {"type": "boolean"},
        "managedBy": _TEXT,
        pods_field: _PODS[pods_field],
    }
    if pods_field == "runtimePatches":
        fields["activeDeadlineSeconds"] = {"type": "integer", "minimum": 1}
    return fields


def require_train_job(thing: dict[str, Any], pods_field: str) -> None:
    """Raises `jsonschema.ValidationError`."""
    schema = _map(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": "trainer.kubeflow.org/v1alpha1"},
        kind={"const": "TrainJob"},
        metadata={"$ref": f"{_DEFINITIONS}#/$defs/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"},
        spec={**_map(**spec_fields(pods_field)), "required": ["runtimeRef"]},
    )
    registry: Registry[Any] = Registry().with_resource(_DEFINITIONS, _definitions())
    jsonschema.Draft202012Validator(schema, registry=registry).validate(thing)


@functools.cache
def _definitions() -> Resource[Any]:
    folder = resources.files("kubernetes_validate") / "kubernetes-json-schema" / "v1.34.0-local-strict"
    return Resource.from_contents(json.loads((folder / _DEFINITIONS).read_text()))
