"""How to install a missing package: from the lab's lists, with the hashes of all files, where they are there."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path


def how_to_install(package: str, requirements: str) -> str:
    """Return the command that installs a missing package.

    requirements: the shortest list of `requirements/` that has it, without `.txt`. Where the lab's folder is not on
    this machine, the command takes the newest version of the package, and the text says so.
    """
    python = shlex.quote(sys.executable)
    for folder in (Path(__file__).parents[1], Path(sys.prefix).parent):  # an editable lab; the images' `.venv`
        listed = folder / "requirements" / f"{requirements}.txt"
        if listed.is_file():
            options = "--no-deps --no-build-isolation --require-hashes"
            return f"{python} -m pip install {options} -r {shlex.quote(str(listed))}"
    return f"{python} -m pip install {shlex.quote(package)} (its newest version, compared with no hash)"
