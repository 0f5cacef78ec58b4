"""JSON schemas of custom resources, in parts: closed maps as the API server's strict validation wants them.

Fields that a schema does not list are refused. Types of Kubernetes itself are taken from its published schemas.
"""

from __future__ import annotations

import functools
import json
from importlib import resources
from typing import Any

import jsonschema
from referencing import Registry, Resource

Schema = dict[str, Any]

_DEFINITIONS = "_definitions.json"

TEXT: Schema = {"type": "string"}
TEXTS: Schema = {"type": "object", "additionalProperties": TEXT}
NAME: Schema = {
    "type": "string", "maxLength": 253, "pattern": r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
}  # fmt: skip
_NUMBER = r"([0-9]+(\.[0-9]*)?|\.[0-9]+)"
QUANTITY: Schema = {
    "type": ["integer", "string"], "pattern": rf"^(\+|-)?{_NUMBER}([KMGTPE]i|[numkMGTPE]|[eE](\+|-)?{_NUMBER})?$"
}  # fmt: skip


def of(kind: str, group: str = "api.core.v1") -> Schema:
    """Kubernetes' own type."""
    return {"$ref": f"{_DEFINITIONS}#/$defs/io.k8s.{group}.{kind}"}


def closed_map(required: tuple[str, ...] = (), **properties: Any) -> Schema:
    return {"type": "object", "additionalProperties": False, "required": list(required), "properties": properties}


def array(items: Any, most: int = 128, least: int = 0) -> Schema:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def one_of(*values: str) -> Schema:
    return {"enum": list(values)}


def resource(api_version: str, kind: str, spec: Schema) -> Schema:
    """Schema of an object with these and metadata."""
    return closed_map(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": api_version},
        kind={"const": kind},
        metadata=of("ObjectMeta", "apimachinery.pkg.apis.meta.v1"),
        spec=spec,
    )


def require(schema: Schema, thing: dict[str, Any]) -> None:
    """Raises `jsonschema.ValidationError`."""
    registry: Registry[Any] = Registry().with_resource(_DEFINITIONS, _definitions())
    jsonschema.Draft202012Validator(schema, registry=registry).validate(thing)


@functools.cache
def _definitions() -> Resource[Any]:
    folder = resources.files("kubernetes_validate") / "kubernetes-json-schema" / "v1.34.0-local-strict"
    return Resource.from_contents(json.loads((folder / _DEFINITIONS).read_text()))
