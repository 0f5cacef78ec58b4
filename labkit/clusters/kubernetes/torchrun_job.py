"""A manifest for `kubectl apply`: torchrun in each pod of an indexed Job, without the lab."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import yaml

from labkit.clusters.job import InvalidJob
from labkit.clusters.kubernetes import manifest
from labkit.clusters.kubernetes.manifest import Names, Object, Shape

NODE_NUMBER = "$(JOB_COMPLETION_INDEX)"
"""A pod's number, as its command has it: Kubernetes replaces it."""
PROGRAM_FOLDER = "/run/program"
"""Mount path of the program's file."""
_CONFIG_MAP_LIMIT_BYTES = 1 << 20


def torchrun_job(names: Names, shape: Shape, command: Sequence[str], files: Mapping[str, str]) -> list[Object]:
    """Return a ConfigMap with `files`, if there are any, a headless Service, and the Job.

    command: of each pod; its parts that are not `NODE_NUMBER` are taken literally. files: text by name, in
    `PROGRAM_FOLDER`. Raises `InvalidJob` if Kubernetes would reject it.
    """
    volume = {"name": "program", "configMap": {"name": names.run}}
    mount = {"name": "program", "mountPath": PROGRAM_FOLDER, "readOnly": True}
    template = manifest.pods(
        names.labels,
        names.run,
        shape,
        [_literal(word) for word in command],
        [*([volume] if files else []), manifest.SHARED_MEMORY_VOLUME],
        [*([mount] if files else []), manifest.SHARED_MEMORY_MOUNT],
    )
    things = [manifest.service(names), manifest.indexed_job(manifest.metadata(names), shape, template)]
    if not files:
        return things
    if sum(len(text.encode()) for text in files.values()) + 1024 > _CONFIG_MAP_LIMIT_BYTES:
        raise InvalidJob(
            f"{', '.join(files)}: a ConfigMap holds at most 1 MiB; put the program into the image, and use -m"
        )
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": manifest.metadata(names),
        "data": dict(files),
    }
    return [config_map, *things]


def as_yaml(things: Sequence[Object]) -> str:
    """Return objects as YAML in which texts have their own lines."""
    return str(yaml.dump_all(things, Dumper=_Dumper, sort_keys=False, default_flow_style=False))


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]  # a class without types
    """Writes texts of several lines as they are."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _literal(word: str) -> str:
    """Kubernetes replaces `$(NAME)` in commands."""
    before, number, after = word.partition(NODE_NUMBER)
    return before.replace("$(", "$$(") + number + after.replace("$(", "$$(")
