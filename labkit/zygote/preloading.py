"""What a zygote imports: all that servers, kernels and ranks of a class use."""

from __future__ import annotations

import importlib

from labkit.torch_versions import early_imports, prefork_warmup

_OF_SERVERS = (
    "jupyterhub.singleuser.extension",
    "jupyterlab.labapp",
    "jupyter_server_terminals.app",
    "jupyter_lsp",
    "nbgrader.server_extensions.assignment_list.handlers",
    "nbgrader.server_extensions.validate_assignment.handlers",
    "labkit.progress",
    "labkit.search",
)
_OF_KERNELS = ("ipykernel.kernelapp", "ipywidgets", "labkit.notebook", "labkit.zygote.kernel")
_OF_RANKS = ("labkit.clusters.forkserver.server",)


def load() -> None:
    """Import everything. Afterwards there is still one thread."""
    for module in (*_OF_SERVERS, *_OF_KERNELS, *_OF_RANKS, *early_imports.MODULES):
        importlib.import_module(module)
    prefork_warmup.warm_up_groups()
