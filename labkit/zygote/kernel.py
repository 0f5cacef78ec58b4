"""A notebook's kernel, in a process that a zygote has forked."""

from __future__ import annotations

import os
import sys

NAME = "notebook kernel"


def main(arguments: list[str], _: list[int]) -> None:
    """Be a kernel. arguments: those of `python -m ipykernel_launcher`."""
    from ipykernel import kernelapp

    os.environ["JPY_PARENT_PID"] = str(os.getppid())  # it watches the zygote, which forked it, not the server
    sys.argv = [NAME, *arguments]
    kernelapp.launch_new_instance()
