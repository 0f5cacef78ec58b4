"""`labkit launch NOTEBOOK.ipynb`."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from rank_lines import of_each_rank  # beside this file

from labkit.cli import main

RING = '''%%exercise ring_allreduce
"""Mine."""
__all__ = ["ring_all_reduce"]
def ring_all_reduce(tensor, group=None): return "mine"
'''


def write(folder: Path, *sources: str, tags: dict[int, list[str]] | None = None) -> None:
    cells = [new_code_cell(text, metadata={"tags": (tags or {}).get(i, [])}) for i, text in enumerate(sources, 1)]
    nbformat.write(new_notebook(cells=[new_markdown_cell("# %%torchrun"), *cells]), folder / "train.ipynb")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "helper.py").write_text("VALUE = 7\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LABKIT_WORKSPACE", str(tmp_path / "workspace"))
    return tmp_path


def test_each_torchrun_cell_is_a_program(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(
        folder,
        "%load_ext labkit\n%cluster local -n 4\nraise SystemExit",
        "%%torchrun -n 2 -o run\nimport os, sys, helper\nprint(os.environ['WORLD_SIZE'], helper.VALUE, sys.argv[1:])",
        f"%%time\n# mine\n{RING}",
        "%%torchrun -n 3\nfrom labkit.exercises import ring_allreduce\nprint(ring_allreduce.ring_all_reduce(0))",
        "%%torchrun\nprint('expected')\nsys",
        "%%torchrun\n\nmissing",
        "%%torchrun\nprint('never')",
        tags={5: ["raises-exception"]},
    )
    assert main(["launch", "--cluster", "virtual", "--nproc-per-node", "2", "train.ipynb", "--", "-v"]) == 1
    shown = capsys.readouterr()
    lines = ["2 7 ['-v']", "mine", "expected"]
    assert of_each_rank(shown.out) == {0: lines, 1: lines}
    errors = shown.err.splitlines()
    assert errors[:3] == [
        "note: 1 cells of train.ipynb that are not for ranks are left out",
        "cell 2 of train.ipynb",
        "cell 4 of train.ipynb",
    ]
    assert "  train.ipynb cell 5, line 3" in errors and "  train.ipynb cell 6, line 3" in errors
    assert not (folder / "workspace").exists()


def test_a_cells_own_options_hold_where_the_command_has_none(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(
        folder, "%%torchrun -n 3 --role a  # three\nimport os\nprint(os.environ['WORLD_SIZE'], os.environ['ROLE_NAME'])"
    )
    assert main(["launch", "--cluster", "virtual", "train.ipynb", "--role", "b"]) == 0
    assert of_each_rank(capsys.readouterr().out) == {rank: ["3 b"] for rank in range(3)}


def test_a_program_below_other_magics_is_one_if_they_run_it_once(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, "%%timeit\n%%torchrun -n 2\nprint('often')", "%%time\n\n%%torchrun -n 2\nprint('once')\nmissing")
    assert main(["launch", "--cluster", "virtual", "train.ipynb"]) == 1
    shown = capsys.readouterr()
    assert of_each_rank(shown.out) == {0: ["once"], 1: ["once"]}
    errors = shown.err.splitlines()
    assert errors[0] == "note: 1 cells of train.ipynb that are not for ranks are left out"
    assert "  train.ipynb cell 2, line 5" in errors


def test_without_torchrun_cells_all_are_one_script(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(
        folder,
        "%matplotlib inline\nimport os\nfiles = !ls\ntext = '''\n%kept\n'''",
        "%%bash\nexit 3",
        "%%time\nrank = int(os.environ['RANK'])\nif rank == 0:\n    %time missing()\nrank == 0 and print(text.strip())",
        "def half(x):\n    return x \\\n%2\nhalf(rank)\nprint(half(3))",
        "1 / 0",
    )
    assert main(["launch", "--cluster", "virtual", "-n", "2", "train.ipynb"]) == 1
    shown = capsys.readouterr()
    assert of_each_rank(shown.out) == {0: ["%kept", "1"], 1: ["1"]}
    assert "ZeroDivisionError: division by zero" in shown.err and "# cell 5 of train.ipynb" in shown.err
    assert "note: 1 cells of train.ipynb that are not Python are left out" in shown.err


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("print(1)", "train.ipynb is not a notebook: JSONDecodeError"),
        ('{"cells": []}', "train.ipynb has no Python cells"),
    ],
)
def test_a_file_without_cells_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], text: str, answer: str
) -> None:
    (folder / "train.ipynb").write_text(text)
    assert main(["launch", "train.ipynb"]) == 2
    assert answer in capsys.readouterr().err
