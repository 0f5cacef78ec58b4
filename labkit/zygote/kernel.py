"""A notebook's kernel, in a process that a zygote has forked.

At its start, IPython visits all modules, their names and their files. This writes into each of them (their numbers of
references), and so copies 30 MB that are shared until then: here it gets what the zygote has found once.
"""

from __future__ import annotations

import contextlib
import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

from ipykernel import ipkernel, kernelapp
from IPython.core import shellapp
from traitlets import Type

NAME = "notebook kernel"

_names: set[str] = set()
_files: list[str] = []
"""Files of all modules that the zygote has imported."""


def remember_modules() -> None:
    """Note the modules imported so far; call it in the zygote."""
    for name, module in sys.modules.items():
        _names.add(name)
        if file := getattr(module, "__file__", None):
            _files.append(file)


def _sees_no_modules(seeing: ModuleType) -> contextlib.AbstractContextManager[object]:
    """Within it, `sys.modules` is empty for the code of one module."""
    return mock.patch.object(seeing, "sys", SimpleNamespace(**{**vars(sys), "modules": {}}))


class Kernel(ipkernel.IPythonKernel):
    """IPython's kernel."""

    def __init__(self, **options: Any) -> None:
        with _sees_no_modules(ipkernel):
            super().__init__(**options)  # type: ignore[no-untyped-call]
        if hasattr(self, "debugger"):
            self.debugger.kernel_modules = _files  # the debugger does not stop there


class KernelApp(kernelapp.IPKernelApp):
    """IPython's application that starts a kernel."""

    kernel_class = Type(Kernel, klass=ipkernel.IPythonKernel)

    def init_code(self) -> None:
        """Run the files and lines that are configured to run at the start."""
        with _sees_no_modules(shellapp):
            super().init_code()  # type: ignore[no-untyped-call]
        assert self.shell is not None
        self.shell._sys_modules_keys = _names  # `%reset -s aggressive` keeps these


def main(arguments: list[str], _: list[int]) -> None:
    """Be a kernel. arguments: those of `python -m ipykernel_launcher`."""
    sys.argv = [NAME, *arguments]
    # it ends with the zygote, which forked it, not with the server; ipykernel reads the variable when it is imported
    os.environ["JPY_PARENT_PID"] = str(os.getppid())
    KernelApp.launch_instance(parent_handle=os.getppid())
