"""The user's template, which is merged over that of a run's pods."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labkit.clusters.job import InvalidJob
from labkit.text_files import UnreadableText, read_text


def read_template(given: str | Path | Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return `metadata` and `spec` of a template, or of the YAML file that holds it; empty for None.

    Raises `InvalidJob` if it cannot be read or has other parts.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        import yaml

        try:
            read = yaml.safe_load(read_text(Path(given)))
        except (OSError, UnreadableText, yaml.YAMLError) as error:
            raise InvalidJob(f"the pod template {given} cannot be read: {error}") from None
        given = read.get("template", read) if isinstance(read, Mapping) else {"no": "map"}
    if not given or not given.keys() <= {"apiVersion", "kind", "metadata", "spec"}:
        raise InvalidJob("a pod template has `metadata` and `spec`, as a Pod has: spec: {nodeSelector: {...}}")
    if not (given.get("metadata") or {}).keys() <= {"labels", "annotations"}:
        raise InvalidJob("of a pod template's metadata, labels and annotations can be used; names are the lab's")
    return {key: given[key] for key in ("metadata", "spec") if key in given}
