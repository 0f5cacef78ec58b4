"""The virtual cluster as a kind of clusters."""

from __future__ import annotations

import argparse
from typing import Any

from labkit.clusters.cluster import Cluster
from labkit.clusters.kind import ClusterKind, Option
from labkit.clusters.options import NNODES, NPROC_PER_NODE, at_least_one
from labkit.clusters.virtual.scheduler import faults
from labkit.command_line.finding import Finding
from labkit.hardware import GPUS, LINKS, PRESETS, STORAGE, settings


def _cluster() -> type:
    from labkit.clusters.virtual.cluster import VirtualCluster

    return VirtualCluster


def _make(settings: list[tuple[str, Any]] | None = None, **options: Any) -> Cluster:
    from labkit.clusters.virtual.cluster import virtual

    return virtual(settings=None if settings is None else dict(settings), **options)


def _setting(text: str) -> tuple[str, object]:
    try:
        return settings.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _rank_kind(text: str) -> str:
    if text not in ("threads", "processes"):
        raise argparse.ArgumentTypeError(f"virtual ranks are threads or processes, not {text!r}")
    return text


def _fault(text: str) -> faults.Fault:
    try:
        return faults.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _examine() -> Finding:
    from labkit.clusters.examination import all_reduce
    from labkit.clusters.virtual.cluster import virtual

    return all_reduce(virtual(nproc_per_node=4))


KIND = ClusterKind(
    name="virtual",
    cluster=_cluster,
    make=_make,
    options=(
        Option("preset", f"name of a machine ({', '.join(PRESETS)}) or a file", words=tuple(PRESETS)),
        NNODES,
        NPROC_PER_NODE,
        Option("--gpu", f"{', '.join(GPUS)}; several, with commas, are what the nodes have in turn"),
        Option("--intra-node", f"link inside a node ({', '.join(LINKS)})", metavar="LINK"),
        Option("--inter-node", "link between nodes", metavar="LINK"),
        Option("--nics-per-node", "network cards per node", at_least_one, "N"),
        Option("--switch-gb-per-s", "bandwidth between a node's GPUs", float, "X"),
        Option("--nodes-per-rack", "nodes per rack", at_least_one, "N"),
        Option("--oversubscription", "a rack's card bandwidth over its uplink's", float, "X"),
        Option("--host-link", "link of each GPU to host memory", metavar="LINK"),
        Option("--storage", f"a node's storage ({', '.join(STORAGE)})"),
        Option(
            "--set",
            "gpu.memory_gb=40, inter_node.gb_per_s=20, and any other field",
            _setting,
            "NAME=VALUE",
            keyword="settings",
            repeatable=True,
        ),
        Option(
            "--fault",
            '"kill(3, at=0.5)", "slow(2, factor=1.5)", "link(node=1)", "jitter(seed=0)"',
            _fault,
            "FAULT",
            keyword="faults",
            repeatable=True,
        ),
        Option(
            "--ranks",
            "threads of one process (the default), or processes: slower to start, and a crash ends one rank only",
            _rank_kind,
            "KIND",
            words=("threads", "processes"),
        ),
        Option("--fake", "tensors have shapes but no data, so that a model of any size runs", switch=True),
        Option("--processes", "number of processes that share the work of fake ranks (the cores)", at_least_one, "N"),
    ),
    example="dgx-a100 --nnodes 4",
    title="virtual cluster",
    examine=_examine,
)
