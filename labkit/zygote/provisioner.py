"""Starts Jupyter's kernels from a zygote, if there is one: `JUPYTER_DEFAULT_PROVISIONER_NAME=labkit-zygote`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.provisioning.local_provisioner import LocalProvisioner

from labkit.forking.client import NoForkServer, fork
from labkit.forking.request import Request
from labkit.zygote import ADDRESS, kernel

PROVISIONER = "labkit-zygote"
"""Its name as an entry point of `jupyter_client.kernel_provisioners`."""


class ForkedKernel(LocalProvisioner):
    """Forks Python's kernels from the zygote that their environment names, and starts all others as programs."""

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        """Launch a kernel."""
        if cmd[1:3] != ["-m", "ipykernel_launcher"]:
            return await super().launch_kernel(cmd, **kwargs)
        folder = kwargs.get("cwd") or os.getcwd()
        environment = kwargs.get("env") or dict(os.environ)
        request = Request(kernel.main, cmd[3:], environment, str(folder), kernel.NAME, prints=True)
        try:
            process = fork(request, [2], environment.get(ADDRESS, ""))
        except (NoForkServer, ValueError) as problem:
            self.log.warning("The kernel is started as a program: %s", problem)
            return await super().launch_kernel(cmd, **kwargs)
        self.process = process  # type: ignore[assignment]  # it has the interface of Popen
        self.pid = self.pgid = process.pid  # a session of its own
        self.cwd = Path(folder)
        return self.connection_info
