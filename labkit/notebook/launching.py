"""torchrun's own options for `%%torchrun`, and the reverse: save a cell as a script and show its torchrun command."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from IPython.core.error import UsageError

from labkit.clusters import Cluster, InvalidJob, launch_options
from labkit.clusters.torchrun_command import TorchrunCommand, exercises_used, torchrun_command
from labkit.notebook.magics import Magic

_ELSEWHERE = "use this with torchrun itself: --print-command shows the command for this cell"
_REFUSED = {
    ("--rdzv-endpoint", "--rdzv-id", "--rdzv-conf", "--master-addr", "--node-rank", "--local-addr"): (
        f"the cluster sets up the rendezvous of a cell's ranks; {_ELSEWHERE}"
    ),
    ("--log-dir", "--logs-specs", "--tee", "-t", "--redirects", "-r"): (
        "each rank's output is always shown and saved in its own file: run.logs"
    ),
    ("--local-ranks-filter", "--duplicate-stdout-filters", "--duplicate-stderr-filters"): (
        "all ranks' output is shown, equal lines once; run.logs has each rank's"
    ),
    ("--monitor-interval", "--start-method", "--module", "-m", "--no-python", "--run-path"): (
        f"ranks are forked, with torch imported, and run this cell; {_ELSEWHERE}"
    ),
    ("--signals-to-handle", "--shutdown-timeout"): (
        "the kernel's interrupt stops a cell's ranks, and they have 5 s to save if they handle SIGTERM"
    ),
    ("--event-log-handler",): "starts and ends of ranks are in the cell's Run: run.ranks, run.notes",
    ("--numa-binding",): f"a cell's ranks share the cores of their node; {_ELSEWHERE}",
    ("--virtual-local-rank",): "LOCAL_RANK is a rank's number in its node, and its GPU is cuda:LOCAL_RANK",
}
"""torchrun's options that mean nothing in a cell, and why."""


def add_options(magic: Magic) -> None:
    """torchrun's own options, limits of time, and `--save` and `--print-command`."""
    launch_options.add_options(magic.option, "cell", _REFUSED, _c10d)
    magic.option(
        "--save", type=Path, metavar="FILE.py", help="write the cell as a script for torchrun instead of running it"
    )
    magic.option("--force", action="store_true", help="--save may overwrite a file")
    magic.option(
        "--print-command", action="store_true", help="show the torchrun command for this cell instead of running it"
    )


def job_options(options: argparse.Namespace) -> dict[str, Any]:
    """The options of `add_options` as fields of `Job`."""
    try:
        return launch_options.job_options(options)
    except InvalidJob as error:
        raise UsageError(f"%%torchrun: {error}") from None


def instead_of_running(options: argparse.Namespace, cluster: Cluster, cell: str, number: int) -> bool:
    """Save the cell or show its command, if requested; return False when it should run. `number`: In[number]."""
    if options.save is None and not options.print_command:
        return False
    file = str(options.save or f"cell_{number}.py")
    try:
        command = torchrun_command((file,), cell, options, cluster)
    except InvalidJob as error:
        raise UsageError(f"%%torchrun: {error}") from None
    if options.save is not None:
        _save(options.save, cell, number, command, options.force)
    if options.print_command:
        if options.save is None:
            print(f"# the cell as a script: %%torchrun --save {file}")
        print(command.explained(cluster))
    return True


def _save(path: Path, cell: str, number: int, command: TorchrunCommand, force: bool) -> None:
    if path.suffix != ".py":
        raise UsageError(f"%%torchrun: --save needs the name of a Python file, got {str(path)!r}")
    if path.exists() and not force:
        raise UsageError(f"%%torchrun: {path} exists; --force overwrites it")
    used = exercises_used(cell)
    needs = f"It needs {'torch and labkit' if used else 'torch'}."
    if used:
        needs += (
            f" Your {', '.join(used)}: labkit.exercises looks in workspace/ of the\ncourse's folder; to use other"
            " folders, set LABKIT_WORKSPACE (your modules) and LABKIT_ROOT (the course)."
        )
    text = f'"""In[{number}] of a notebook. To run it:\n\n    {command.line}\n\n{needs}\n"""\n\n{cell.strip()}\n'
    try:
        path.write_text(text)
    except OSError as error:
        raise UsageError(f"%%torchrun: {path} cannot be written: {error.strerror}") from None
    print(f"saved as {path}")


def _c10d(text: str) -> str:
    if text != "c10d":
        raise argparse.ArgumentTypeError(f"ranks of a cell use the c10d rendezvous, got {text!r}; {_ELSEWHERE}")
    return text
