"""On ranks, DeepSpeed's collectives in shared memory are reported as not available here.

On Linux CPUs `deepspeed.init_distributed` otherwise compiles them at its first start, which takes a minute or two, and
waits without end for the lock of a compilation that was killed. Without them it uses gloo, as on other systems; the
values are the same. Virtual ranks could not use them: they bypass torch.distributed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType

_MODULE = "deepspeed.ops.op_builder.cpu.comm"
_BUILDER = "ShareMemCommBuilder"
"""DeepSpeed's class that compiles them, as of version 0.19.8. If it is missing, nothing is changed."""


def leave_out_when_imported() -> None:
    """Leave these collectives out in this process as soon as DeepSpeed is imported."""
    sys.meta_path.insert(0, _Finder())


def leave_out(module: ModuleType) -> None:
    """Leave them out if this is the module of DeepSpeed that defines how they are compiled."""
    if module.__name__ == _MODULE and hasattr(module, _BUILDER):
        getattr(module, _BUILDER).is_compatible = lambda self, verbose=False: False


class _Finder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        leave_out(module)
