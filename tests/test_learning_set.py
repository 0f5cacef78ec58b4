"""The packages that `./lab start` installs suffice for a learner: those of labkit and of its `lab` extra, no others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from urllib.request import urlopen

import nbformat
import pytest
from jupyter_servers import printed_address
from nbformat.v4 import new_code_cell, new_notebook
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from waiting import BROKEN_SECONDS

ROOT = Path(__file__).resolve().parent.parent

HIDDEN = """
import sys

class Without:
    def __init__(self, finder):
        self._finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in {hidden!r} else self._finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self._finder, name)

sys.meta_path[:] = map(Without, sys.meta_path)
"""

CELLS = [
    "%load_ext labkit\n%cluster local --nproc-per-node 2",
    "%%torchrun\nimport os\nprint('rank', os.environ['RANK'])",
    "%cluster virtual --nproc-per-node 4",
    "%%torchrun\nimport torch, torch.distributed as dist\ndist.init_process_group()\n"
    "dist.all_reduce(torch.ones(2))\ndist.destroy_process_group()",
    "%check process_group",
    "%hint process_group",
    "%question tree_rounds",
    "%progress",
    "%search deadlock",
    "from labkit.notebook import explore, step_through\nfrom labkit.plots import ring_rounds\n"
    "step_through(lambda round: ring_rounds(4, round), last=6)\nexplore('gpt-1.3b')",
]


def in_the_set() -> set[str]:
    """Names of the packages that pip installs for a learner."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    queue = [(Requirement(text), "") for text in project["dependencies"] + project["optional-dependencies"]["lab"]]
    found: set[tuple[str, str]] = set()
    while queue:
        requirement, extra = queue.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        for wanted in {"", *requirement.extras}:
            name = canonicalize_name(requirement.name)
            if (name, wanted) not in found:
                found.add((name, wanted))
                try:
                    queue += [(Requirement(text), wanted) for text in metadata.requires(name) or []]
                except metadata.PackageNotFoundError:  # CUDA's, which a CPU build of torch asks for as well
                    continue
    return {name for name, _ in found}


def modules_of_others() -> set[str]:
    """Modules that belong to packages outside of the set alone."""
    # in a process of its own: where setuptools is imported, as by other tests, the packages in it are found, too
    program = "import json; from importlib import metadata; print(json.dumps(metadata.packages_distributions()))"
    found = json.loads(subprocess.check_output([sys.executable, "-c", program]))
    packages = {module: {canonicalize_name(name) for name in names} for module, names in found.items()}
    learners = in_the_set() | {"labkit", "pip", "setuptools"}
    return {module for module, names in packages.items() if not names & learners} | {"autograder"}


@pytest.fixture
def environment(tmp_path: Path, workspace: Path) -> dict[str, str]:
    """Environment in which Python does not find the modules of other packages, in kernels and ranks as well."""
    hidden = modules_of_others()
    assert {"pytest", "playwright", "mypy", "kubernetes"} <= hidden
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden/sitecustomize.py").write_text(HIDDEN.format(hidden=hidden))
    places = {"JUPYTER_CONFIG_DIR": tmp_path / "config", "JUPYTER_RUNTIME_DIR": tmp_path / "runtime"}
    return {
        **os.environ,
        **{name: str(place) for name, place in places.items()},
        "PYTHONPATH": str(tmp_path / "hidden"),
    }


def test_labkit_start_opens_the_home(environment: dict[str, str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("w") as output:
        command = [sys.executable, "-m", "labkit", "start", "--no-browser", "--port=0"]
        server = subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=output, stderr=output)
    try:
        address = printed_address(server, log)
        assert urlopen(address).status == 200
    finally:
        server.terminate()
        server.wait(BROKEN_SECONDS)
    assert (Path(environment["LABKIT_WORKSPACE"]) / "HOME.md").is_file()


def test_a_notebook_s_cells_run(environment: dict[str, str], tmp_path: Path) -> None:
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(
        new_notebook(cells=[new_code_cell(cell) for cell in CELLS], metadata=kernel), tmp_path / "cells.ipynb"
    )
    execute = [sys.executable, "-m", "nbconvert", "--to", "notebook", "--execute", "--inplace", "cells.ipynb"]
    done = subprocess.run(execute, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    outputs = [str(cell.outputs) for cell in nbformat.read(tmp_path / "cells.ipynb", as_version=4).cells]
    assert "No module named" not in "".join(outputs)
    assert "rank 1" in outputs[1] and "0 of 25 points" in outputs[4]
    assert "Glossary: deadlock" in outputs[CELLS.index("%search deadlock")]
