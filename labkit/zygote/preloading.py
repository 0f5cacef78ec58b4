"""Imports of a zygote: all that servers, kernels and ranks of a class use.

Each process has to import anything else by itself, in memory of its own.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator, Sequence

from jupyter_core.paths import jupyter_config_path
from jupyter_server.extension.config import ExtensionConfigManager
from jupyter_server.extension.utils import ExtensionMetadataError, get_metadata
from jupyter_server.serverapp import JUPYTER_SERVICE_HANDLERS

from labkit.torch_versions import early_imports, prefork_warmup
from labkit.zygote import kernel

_OF_SERVERS = (
    "jinja2.ext",
    "jupyterhub.singleuser.extension",
    "jupyterlab.labapp",
    "labkit.hub.server",
    "labkit.search.jupyter_server",
    "nbgrader.server_extensions.assignment_list.handlers",
    "nbgrader.server_extensions.validate_assignment.handlers",
    "tornado.platform.asyncio",
)
_OF_KERNELS = (
    "IPython.core.completerlib",
    "IPython.core.debugger",
    "IPython.core.oinspect",
    "IPython.core.pylabtools",
    "IPython.extensions.storemagic",
    "IPython.utils.wildcard",
    "ipykernel.debugger",
    "ipykernel.kernelapp",
    "ipywidgets",
    "jupyter_client.localinterfaces",
    "labkit.notebook",
    "pdb",
    "psutil",
)
_OF_RANKS = ("labkit.clusters.forkserver.server", "labkit.clusters.forkserver.supervisor")


def load() -> None:
    """Import everything. Afterwards there is still one thread."""
    for module in (*_of_extensions(), *_OF_SERVERS):
        importlib.import_module(module)
    load_for_kernels()


def load_for_kernels(more: Sequence[str] = ()) -> None:
    """Import what kernels and their ranks use, and the modules `more`. Afterwards there is still one thread."""
    os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"  # the debugger would warn of Python's own frozen modules
    for module in (*_OF_KERNELS, *_OF_RANKS, *early_imports.MODULES, *more):
        importlib.import_module(module)
    prefork_warmup.warm_up_groups()
    kernel.remember_modules()


def _of_extensions() -> Iterator[str]:
    """Yield the modules of Jupyter's server, and import its extensions that are installed."""
    for modules in JUPYTER_SERVICE_HANDLERS.values():
        yield from modules or ()
    settings = ExtensionConfigManager(read_config_path=jupyter_config_path())
    installed = settings.get_jpserver_extensions()  # type: ignore[no-untyped-call]
    for extension in (name for name, enabled in installed.items() if enabled):
        with contextlib.suppress(ImportError, ExtensionMetadataError):  # the server will say so
            _, points = get_metadata(extension)  # type: ignore[no-untyped-call]
            for point in points:
                importlib.import_module(point["module"])
