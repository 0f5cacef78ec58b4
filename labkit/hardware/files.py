"""Clusters in files: JSON with the differences from a preset, written by hand or by `labkit calibrate`.

    {"format": "labkit cluster 1", "preset": "dgx-a100",
     "cluster": {"nnodes": 2, "inter_node": "ib-ndr", "gpu": {"memory_gb": 40.0}, "constants": {"host_seconds": 1e-5}}}

`preset` and every part of `cluster` are optional. Anything else in the file (`measured`) is for human readers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from labkit.hardware.settings import TABLES, with_settings
from labkit.hardware.topology import Topology
from labkit.linux.files import replace_text
from labkit.text_files import UnreadableText, read_text

FORMAT = "labkit cluster 1"
_LARGEST = 10_000_000


def is_file(name: str) -> bool:
    """Return whether a cluster's name is a file name: `mine.json`, `./mine`."""
    return name.endswith(".json") or "/" in name


def read(path: str | Path) -> dict[str, Any]:
    """Read the whole file. Raises ValueError with the problem and its position."""
    path = Path(path)
    try:
        if path.stat().st_size > _LARGEST:
            raise ValueError(f"{path}: more than {_LARGEST / 1e6:.0f} MB is no description of a cluster")
        content = json.loads(read_text(path))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}; `labkit calibrate` writes such a file") from None
    except (json.JSONDecodeError, UnreadableText) as error:
        raise ValueError(f"{path} is no JSON: {error}") from None
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        stated = content.get("format") if isinstance(content, dict) else type(content).__name__
        raise ValueError(f"{path}: format must be {FORMAT!r}, got {stated!r}")
    for name, kinds in (("preset", str | None), ("cluster", dict)):
        if not isinstance(content.get(name, None if name == "preset" else {}), kinds):
            raise ValueError(f"{path}: {name} must be {'a name' if name == 'preset' else 'a table'}")
    return content


def cluster(path: str | Path, presets: Mapping[str, Topology], default: Topology) -> Topology:
    """Return the cluster described by a file. Raises ValueError naming the file and the field."""
    content = read(path)
    name = content.get("preset")
    try:
        if name is not None and name not in presets:
            raise ValueError(f"unknown preset {name!r}; there are: {', '.join(presets)}")
        base = default if name is None else presets[name]
        return with_settings(base, _flat(content.get("cluster", {})))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def write(path: str | Path, made: Topology, measured: Mapping[str, Any]) -> None:
    """Write the file atomically: an existing file is kept until the new one is complete. Raises OSError."""
    path = Path(path)
    plain = {**asdict(made), "constants": dict(made.constants)}
    if made.gpus:
        plain["gpu"] = ",".join(gpu.name for gpu in made.gpus)
    del plain["gpus"]
    text = json.dumps({"format": FORMAT, "cluster": plain, "measured": measured}, indent=1, allow_nan=False)
    replace_text(path, text + "\n")


def _flat(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten `{"gpu": {"memory_gb": 40}}` into the setting `gpu.memory_gb`."""
    settings = {}
    for name, value in tables.items():
        if isinstance(value, dict) and (name in TABLES or name == "constants"):
            # `source` comes last, so that the file's own text is kept
            inner = sorted(value.items(), key=lambda item: item[0] == "source")
            settings.update({f"{name}.{field}": inside for field, inside in inner})
        else:
            settings[name] = value
    return settings
