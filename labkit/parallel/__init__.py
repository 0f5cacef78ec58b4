"""The old path of exercises' given parts: `labkit.parallel.ddp` is `labkit.course.phase3_multi_node.ddp.given`.

For modules written before the course had a folder for each exercise. Imports warn; the next release has no such path.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import FrameType, ModuleType

from labkit.catalogue import all_exercises

_RENAMED = {"pipeline": "pipeline_parallel", "tensor": "tensor_parallel"}
_CLUSTERS = str(Path(__file__).parents[1] / "clusters")
_SHARED = ("collective_arguments", "training_step")


class _Moved(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Replaces a module that is imported by its old name by the module of today."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_loader(fullname, self) if _new_name(fullname) else None

    def exec_module(self, module: ModuleType) -> None:
        new = _new_name(module.__name__)
        file, line = _importer()
        warnings.warn_explicit(f"{module.__name__} has moved: import {new}", FutureWarning, file, line)
        sys.modules[module.__name__] = importlib.import_module(new)


def _importer() -> tuple[str, int]:
    """File and line of the import: above Python's import system, and the import hook of virtual ranks."""
    frame: FrameType | None = sys._getframe(1)
    while frame and frame.f_code.co_filename.startswith(("<frozen importlib", __file__, _CLUSTERS)):
        frame = frame.f_back
    return (frame.f_code.co_filename, frame.f_lineno) if frame else ("sys", 1)


def _new_name(old: str) -> str:
    """Today's name of a module; empty for one that is not below this package."""
    if not old.startswith(f"{__name__}."):
        return ""
    package, *rest = old.removeprefix(f"{__name__}.").split(".")
    if package in _SHARED:
        return f"labkit.course.{package}"
    package = _RENAMED.get(package, package)
    names = (exercise.name.replace("/", ".") for exercise in all_exercises() if exercise.short_name == package)
    return next((".".join(("labkit.course", name, "given", *rest)) for name in names), "")


sys.meta_path.insert(0, _Moved())
