"""The kinds of clusters: their modules, one line each, in the order of `%cluster`'s help."""

from __future__ import annotations

import difflib
import importlib
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

from labkit.clusters.cluster import Cluster
from labkit.clusters.job import InvalidJob
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
    return [kind.name for kind in registered().values() if issubclass(kind.cluster(), ability)]


def options() -> dict[str, tuple[Option, list[str]]]:
    """All options by name, with the names of the kinds that take each. Raises `ValueError` where kinds disagree."""
    by_name: dict[str, tuple[Option, list[str]]] = {}
    for kind in registered().values():
        for option in kind.options:
            known, takers = by_name.setdefault(option.name, (option, []))
            if known != option:
                raise ValueError(f"{option.flag} of {kind.name} clusters differs from that of {', '.join(takers)}")
            takers.append(kind.name)
    return by_name


class UnfitOption(InvalidJob):
    """A kind of clusters that does not exist, or that does not take an option."""


def add_option(add: Callable[..., Any], option: Option, takers: Sequence[str]) -> None:
    """Add an option with `add`, an `add_argument` of argparse; its value is None unless it is given.

    takers: the kinds that its help names; empty if all take it.
    """
    only_taker = option.takers or (takers[0] if len(takers) == 1 else "")
    conditions = [f"{only_taker} only"] if only_taker else list(takers)
    if option.repeatable:
        conditions.append("repeatable")
    text = ": ".join([*([", ".join(conditions)] if conditions else []), option.help])
    if option.is_positional:
        add(option.flag, nargs="?", type=option.type, help=text)
        return
    flags = [option.short, option.flag] if option.short else [option.flag]
    if option.switch:
        add(*flags, dest=option.name, action="store_const", const=True, help=text)
    else:
        action = "append" if option.repeatable else "store"
        add(*flags, dest=option.name, action=action, type=option.type, metavar=option.metavar, help=text)


PRESETS = "LABKIT_CLUSTER_PRESETS"
"""Environment variable: a course's values of options by kind, JSON: `{"slurm": {"partition": "gpu"}}`."""


def preset(name: str) -> dict[str, Any]:
    """Return the course's values of options for clusters of kind `name`; empty outside of a course that has some."""
    presets: dict[str, dict[str, Any]] = json.loads(os.environ.get(PRESETS, "{}"))
    return presets.get(name, {})


def make(name: str, given: dict[str, Any], before: str = "") -> Cluster:
    """Make a cluster of kind `name` with the values of options that are given; others are the course's, see `preset`.

    before: what a user writes before the name, for suggestions: `%cluster `.
    Raises `UnfitOption`, or `InvalidJob` for a value.
    """
    require_fit(name, given, before)
    return registered()[name].make(**{**preset(name), **given})


def require_fit(name: str, given: dict[str, Any], before: str = "") -> None:
    """Raise `UnfitOption` unless there is such a kind, and it takes the options; their values are not examined."""
    known, known_options = registered(), options()
    if name not in known:
        offered = known_options.values()
        pairs = [f"{taker} {word}" for option, takers in offered for taker in takers for word in option.words]
        near = difflib.get_close_matches(name, [*known, *pairs], n=1, cutoff=0.5)
        offer = f"did you mean {before}{near[0]}?" if near else f"available: {', '.join(known)}"
        raise UnfitOption(f"unknown kind of cluster {name!r}; {offer}")
    kind = known[name]
    for argument, value in given.items():
        option, takers = known_options[argument]
        if name in takers:
            continue
        if option.is_positional:
            raise UnfitOption(f"unexpected argument {value!r}; {option.flag}s are for {' and '.join(takers)} clusters")
        raise UnfitOption(f"{option.flag} is not an option of {name} clusters")
    if not kind.counts_ranks and isinstance(words := given.get("nproc_per_node"), str):
        able = " and ".join(other.name for other in known.values() if other.counts_ranks)
        raise UnfitOption(f"--nproc-per-node {words} is for {able} clusters; on {name}, give a number")
