"""The kinds of clusters: their modules, one line each, in the order of `%cluster`'s help."""

from __future__ import annotations

import importlib

from labkit.clusters.kind import ClusterKind, Option

MODULES = [
    "labkit.clusters.virtual.kind",
    "labkit.clusters.local.kind",
    "labkit.clusters.slurm.kind",
    "labkit.clusters.kubernetes.kind",
]
"""Modules that declare a kind, `KIND`; loaded at first use."""


def registered() -> dict[str, ClusterKind]:
    """All kinds by name."""
    kinds: list[ClusterKind] = [importlib.import_module(module).KIND for module in MODULES]
    return {kind.name: kind for kind in kinds}


def with_ability(ability: type) -> list[str]:
    """Names of the kinds whose clusters have an ability, a protocol of methods such as `DryRunCluster`."""
    return [kind.name for kind in registered().values() if issubclass(kind.cluster, ability)]


def options() -> dict[str, tuple[Option, list[str]]]:
    """All options by name, with the names of the kinds that take each. Raises `ValueError` where kinds disagree."""
    found: dict[str, tuple[Option, list[str]]] = {}
    for kind in registered().values():
        for option in kind.options:
            known, takers = found.setdefault(option.name, (option, []))
            if known != option:
                raise ValueError(f"{option.flag} of {kind.name} clusters differs from that of {', '.join(takers)}")
            takers.append(kind.name)
    return found
