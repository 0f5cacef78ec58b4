"""Replaces any field of a cluster by its name: `gpu.memory_gb`, `inter_node`, `constants.host_seconds`."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import UnionType
from typing import Any, TypeVar, get_args, get_type_hints

from labkit.hardware.gpus import GPUS
from labkit.hardware.links import LINKS
from labkit.hardware.storage import STORAGE
from labkit.hardware.topology import Topology

T = TypeVar("T")
TABLES: dict[str, Mapping[str, Any]] = {
    "gpu": GPUS,
    "intra_node": LINKS,
    "inter_node": LINKS,
    "host_link": LINKS,
    "storage": STORAGE,
}
"""Parts of a cluster that can be given by name, with the table of each."""


def with_settings(cluster: Topology, settings: Mapping[str, Any]) -> Topology:
    """Replace fields of `cluster`: `{"inter_node": "ib-ndr", "gpu.memory_gb": 40, "constants.host_seconds": 1e-5}`.

    Named parts are replaced before their fields, in whatever order they are given; another `gpu` also brings its own
    link to the host. The part's `source` then lists what was set. Raises ValueError naming the setting.
    """
    if not isinstance(settings, Mapping):
        raise ValueError(f"settings must be a table such as {{'gpu.memory_gb': 40}}, got {settings!r}")
    parts = {name: value for name, value in settings.items() if name in TABLES}
    if "gpu" in parts:
        cluster = replace(cluster, **nodes_with(parts.pop("gpu")))
        parts.setdefault("host_link", cluster.gpu.host_link)
    for name, value in parts.items():
        cluster = _replaced(cluster, name, part(name, value), name)
    for name, value in settings.items():
        if name not in TABLES:
            cluster = _set(cluster, name, value)
    return cluster


def part(what: str, value: Any) -> Any:
    """Look up a part of a cluster by name; an object is returned unchanged. Raises ValueError."""
    if isinstance(value, str):
        return look_up(what, value, TABLES[what])
    kind = type(next(iter(TABLES[what].values())))
    if not isinstance(value, kind):
        raise ValueError(f"{what} must be a name or a {kind.__name__}, got {value!r}")
    return value


def nodes_with(gpu: Any) -> dict[str, Any]:
    """Return the fields of a cluster whose nodes have this GPU, a name or an object, or in turn these:
    `"a100-80gb,v100-32gb"` or a list.

    Raises ValueError.
    """
    given = [name.strip() for name in gpu.split(",")] if isinstance(gpu, str) else gpu
    kinds = [part("gpu", kind) for kind in (given if isinstance(given, list | tuple) and given else [given])]
    return {"gpu": kinds[0], "gpus": tuple(kinds) if len(kinds) > 1 else ()}


def look_up(what: str, name: str, table: Mapping[str, T]) -> T:
    """Look up `name` in `table`. Raises ValueError listing similar names."""
    if name in table:
        return table[name]
    raise ValueError(f"unknown {what} {name!r}; {_offer(name, table)}")


def parse(text: str) -> tuple[str, Any]:
    """Parse `gpu.memory_gb=40`, as typed at a shell. Raises ValueError."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"a setting is NAME=VALUE, such as gpu.memory_gb=40; got {text!r}")
    try:
        return name.strip(), json.loads(value)
    except ValueError:
        return name.strip(), value.strip()


def _set(cluster: Topology, name: str, value: Any) -> Topology:
    first, dot, rest = name.partition(".")
    if first == "constants" and dot:
        return replace(
            cluster, constants=(*(one for one in cluster.constants if one[0] != rest), (rest, _number(name, value)))
        )
    if not dot:
        return _replaced(cluster, first, value, name)
    if first not in TABLES:
        raise ValueError(f"unknown setting {name!r}; {_offer(first, [*TABLES, 'constants'])}")
    if first == "gpu" and cluster.gpus:
        raise ValueError(f"{name}: the nodes have different GPUs ({', '.join(gpu.name for gpu in cluster.gpus)})")
    old = getattr(cluster, first)
    new = _replaced(old, rest, value, name)
    if rest != "source":
        new = replace(new, source=f"{old.source}; {rest} set to {value}")
    changed: dict[str, Any] = {first: new}
    return replace(cluster, **changed)


def _replaced(owner: T, field: str, value: Any, name: str) -> T:
    """Replace one field of a dataclass, converted to the field's type."""
    types = get_type_hints(type(owner))
    if field not in types or field == "constants":
        raise ValueError(f"unknown setting {name!r}; {_offer(field, types)}")
    kind = types[field]
    allowed = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    if not (value is None and type(None) in allowed):
        if float in allowed:
            value = _number(name, value)
        elif int in allowed and (type(value) is not int):
            raise ValueError(f"{name} must be a whole number, got {value!r}")
        elif str in allowed and not isinstance(value, str):
            raise ValueError(f"{name} must be a text, got {value!r}")
    try:
        made: T = replace(owner, **{field: value})  # type: ignore[type-var]  # any of the dataclasses here
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    return made


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} must be a number, got {value!r}")
    return value


def _offer(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.4)
    return f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(known)}"
