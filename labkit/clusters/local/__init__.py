"""Ranks as real processes on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from labkit.clusters.local.cluster import LocalCluster as LocalCluster
    from labkit.clusters.local.cluster import local as local

# looked up at first use: the options of `labkit launch` are read without torch
_PUBLIC = {
    "LocalCluster": "labkit.clusters.local.cluster",
    "local": "labkit.clusters.local.cluster",
}
__all__ = sorted(_PUBLIC)

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, _PUBLIC)
