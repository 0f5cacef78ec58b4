"""Write the lists of this folder: the packages of each use of the lab, with the hashes of all their files.

    .venv/bin/python requirements/update.py              # after a change of pyproject.toml; versions stay if they can
    .venv/bin/python requirements/update.py --upgrade    # the newest versions

All lists come from one resolution by uv, for Python 3.11 and newer and for every platform. A list begins with others
and has what they lack. No list has torch, nor what only its CUDA builds require: the build depends on the machine, its
files on the index. The version of torch is in torch.txt, which is edited by hand.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
TORCH = FOLDER / "torch.txt"
NOT_LISTED = re.compile(r"(torch|triton|nvidia-(?!ml-py).*|cuda-.*)==")


@dataclass(frozen=True)
class List:
    """A file of this folder."""

    purpose: str
    requirements: tuple[str, ...]
    """As in a requirements file at the root of the repository."""
    begins_with: tuple[str, ...] = ()
    """Names of other lists, which are above this one in `LISTS`."""
    group: str = ""
    """Dependency group of pyproject.toml."""


LISTS = {
    "tools": List("installs and builds packages", ("pip", "setuptools")),
    "uv": List("installs packages for ./lab", ("uv",), ("tools",)),
    "ranks": List("labkit, and the metrics of ranks", ("-e .[monitoring]",)),
    "learning": List("./lab start: labkit[lab]", ("-e .[lab]",), ("ranks",)),
    "notebooks": List("the image of notebooks", ("-e .[kubernetes]", "jupyterhub"), ("learning",)),
    "grading": List("./lab demo and other commands of instructors", ("-e ./autograder",), ("learning",)),
    "documenting": List("./lab docs", (), ("grading",), group="docs"),
    "hub": List("./lab hub", ("-e ./autograder[hub]",), ("grading",)),
    "spawners": List("a hub with servers in containers", ("-e ./autograder[docker,kubernetes]",), ("hub",)),
    "testing": List("./lab test", ("-e .[deepspeed]",), ("notebooks", "documenting", "spawners"), group="dev"),
}


def members(name: str) -> list[str]:
    """Return the names of the list and of all that it begins with."""
    return list(dict.fromkeys([*(each for other in LISTS[name].begins_with for each in members(other)), name]))


def entries(text: str) -> list[str]:
    """Return the packages of a list, each with its hashes."""
    return re.findall(r"^[^\s#-].*(?:\n[ ]+--hash=.*)*", text, re.MULTILINE)


def resolve(names: Iterable[str], output: Path, *options: str | Path) -> list[str]:
    """Return the entries of what the lists require. Versions that are in the output file stay."""
    lists = [LISTS[name] for name in names]
    wanted = dict.fromkeys(requirement for each in lists for requirement in each.requirements)
    groups = [f"--group={name}" for name in dict.fromkeys(each.group for each in lists if each.group)]
    command = [
        *(
            sys.executable,
            "-m",
            "uv",
            "pip",
            "compile",
            "-",
            *groups,
            *options,
            "--constraints",
            TORCH,
            "--output-file",
            output,
        ),
        *("--universal", "--python-version=3.11", "--fork-strategy=fewest"),
        *("--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links", "--quiet"),
        *("--no-emit-package=labkit", "--no-emit-package=autograder"),
    ]
    subprocess.run(command, cwd=FOLDER.parent, input="\n".join(wanted), text=True, check=True)
    return [entry for entry in entries(output.read_text()) if not NOT_LISTED.match(entry)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions")
    upgrade = ["--upgrade"] if parser.parse_args().upgrade else []
    with tempfile.TemporaryDirectory() as scratch:
        versions, output = Path(scratch, "versions.txt"), Path(scratch, "output.txt")
        present = [entry for name in LISTS for entry in entries(_path(name).read_text())]
        versions.write_text("".join(f"{entry.split()[0]}\n" for entry in dict.fromkeys(present)))
        resolve(LISTS, versions, *upgrade)
        # all that the rest needs is in uv's cache now
        options = "--constraints", versions, "--generate-hashes", "--offline"
        found = {name: resolve(members(name), output, *options) for name in LISTS}
    for name, each in LISTS.items():
        above = {entry for other in each.begins_with for entry in found[other]}
        lines = [
            f"# {each.purpose}. Written by update.py.",
            *(f"-r {other}.txt" for other in each.begins_with),
            *(entry for entry in found[name] if entry not in above),
        ]
        _path(name).write_text("".join(f"{line}\n" for line in lines))


def _path(name: str) -> Path:
    return FOLDER / f"{name}.txt"


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
