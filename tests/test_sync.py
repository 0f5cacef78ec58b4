"""`labkit sync`: one source for templates and notebook cells."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from labkit import sync

SOLUTION = '''"""Doubling."""

__all__ = ["double"]


def double(tensor):
    """Twice the tensor."""
    # TODO: twice
    ### BEGIN SOLUTION
    doubled = tensor * 2
    ### END SOLUTION
    return doubled
'''
TEMPLATE = SOLUTION.replace(
    "    ### BEGIN SOLUTION\n    doubled = tensor * 2\n    ### END SOLUTION\n",
    "    # YOUR CODE HERE\n    raise NotImplementedError()\n",
)
CELL = "%%exercise phase1_small/double\n" + SOLUTION.rstrip("\n")
GRADER = {"grade_id": "double", "solution": True, "grade": False, "locked": False, "schema_version": 3, "task": False}


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "course"
    for part in ("solutions", "notebooks", "templates"):
        (folder / part / "phase1_small").mkdir(parents=True)
    (folder / "solutions/phase1_small/double.py").write_text(SOLUTION)
    monkeypatch.setenv("LABKIT_ROOT", str(folder))
    return folder


def write_notebook(course: Path, source: str) -> Path:
    cell = new_code_cell(
        source, metadata={"nbgrader": GRADER}, execution_count=3, outputs=[new_output("stream", text="saved")]
    )
    other = new_code_cell("1 + 1", execution_count=4, outputs=[new_output("stream", text="kept")])
    path = course / "notebooks/phase1_small/double.ipynb"
    nbformat.write(new_notebook(cells=[new_markdown_cell("# Doubling"), cell, other]), path)
    return path


def test_writes_the_template_and_the_cell(course: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_notebook(course, "%%exercise phase1_small/double\nan older text")
    assert sync.main(check=True) == 1
    assert not (course / "templates/phase1_small/double.py").exists()
    said = capsys.readouterr().out
    assert "templates/phase1_small/double.py differs from its source" in said
    assert "    -an older text" in said
    assert '    +"""Doubling."""' in said
    assert "3 files to write: run `labkit sync`" in said

    assert sync.main() == 0
    assert (course / "templates/phase1_small/double.py").read_text() == TEMPLATE
    cells = nbformat.read(path, as_version=4).cells
    assert cells[1].source == CELL
    assert cells[1].metadata.nbgrader == GRADER
    assert (cells[1].outputs, cells[1].execution_count) == ([], None)
    assert cells[2].outputs[0].text == "kept"
    assert sync.main(check=True) == 0


def test_what_is_in_step_is_left_alone_with_its_outputs(course: Path) -> None:
    path = write_notebook(course, CELL)
    before = path.read_bytes()
    sync.main()
    assert path.read_bytes() == before


def test_a_drift_is_found_each_way(course: Path) -> None:
    path = write_notebook(course, CELL)
    sync.main()
    template = course / "templates/phase1_small/double.py"
    template.write_text(TEMPLATE.replace("twice", "thrice"))
    assert sync.main(check=True) == 1
    sync.main()
    path.write_text(path.read_text().replace("tensor * 2", "tensor * 3"))
    assert sync.main(check=True) == 1
    sync.main()
    assert sync.main(check=True) == 0


def test_the_template_is_what_nbgrader_releases(course: Path) -> None:
    """The whole notebook goes through nbgrader's preprocessor: its cell is the template."""
    from nbgrader.preprocessors import ClearSolutions

    path = write_notebook(course, CELL)
    sync.main()
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[2].metadata.nbgrader = {**GRADER, "solution": False, "grade_id": "other"}
    released, _ = ClearSolutions().preprocess(notebook, {})
    template = (course / "templates/phase1_small/double.py").read_text()
    assert released.cells[1].source + "\n" == f"%%exercise phase1_small/double\n{template}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SOLUTION.replace("### BEGIN SOLUTION", "").replace("### END SOLUTION", ""), "nothing is left to write"),
        (SOLUTION.replace("### END SOLUTION", ""), "no end solution"),
        (SOLUTION.replace("### END SOLUTION", "### BEGIN SOLUTION"), "nested begin solution"),
    ],
)
def test_a_solution_that_cannot_be_stripped(
    course: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (course / "solutions/phase1_small/double.py").write_text(text)
    assert sync.main() == 2
    assert message in capsys.readouterr().err


def test_titles_and_links_come_from_the_catalogue(course: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (course / "labkit").mkdir()
    names = ("phase1_small/double", "phase1_small/other", "phase2_big/more")
    entry = '[[exercise]]\nnumber = {}\nname = "{}"\ntitle = "{}"\nbuilds_on = []\nminutes = 5\npoints = 2\n'
    text = "".join(entry.format(at, name, name[-4:].title()) for at, name in enumerate(names, 3))
    (course / "labkit/catalogue.toml").write_text(text)
    source = write_notebook(course, CELL)
    paths = [course / "notebooks" / name for name in ("phase1_small/03_double", "phase1_small/04_other")]
    double, other = (source.with_name(f"{path.name}.ipynb") for path in paths)
    nbformat.write(nbformat.read(source, as_version=4), other)
    source.rename(double)
    sync.main()
    home, following = "[course home](../HOME.md)", "[05 · More →](../phase2_big/05_more.ipynb)"
    links = f"[← 03 · Uble](03_double.ipynb) · {home} · {following}"
    first, *_, last = nbformat.read(other, as_version=4).cells
    assert (first.source, last.source) == (f"# 04 · Ther\n\n{links}", links)
    first, *_, last = nbformat.read(double, as_version=4).cells
    assert last.source == f"{home} · [04 · Ther →](04_other.ipynb)"
    assert sync.main(check=True) == 0

    # another order: titles and links are written again, and nothing is added twice
    (course / "labkit/catalogue.toml").write_text(text.replace("Ther", "Another"))
    assert sync.main(check=True) == 1
    assert "04_other.ipynb differs from its source" in capsys.readouterr().out
    sync.main()
    cells = nbformat.read(other, as_version=4).cells
    assert (cells[0].source, len(cells)) == (f"# 04 · Another\n\n{links}", 4)

    # a course with a guide
    (course / "docs").mkdir()
    (course / "docs/guide.md").touch()
    sync.main()
    source = nbformat.read(other, as_version=4).cells[-1].source
    assert source == links.replace(home, f"{home} · [guide](../../docs/guide.md)")


def test_an_exercise_without_solution(course: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_notebook(course, "%%exercise phase1_small/treble\nx = 1")
    assert sync.main() == 2
    assert "is exercise 'phase1_small/treble', which has no solution" in capsys.readouterr().err
    (course / "templates/phase1_small/treble.py").write_text("x = 1\n")
    assert sync.main() == 2
    assert "templates/phase1_small/treble.py has no solution" in capsys.readouterr().err


def test_the_repository_is_in_step(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("LABKIT_ROOT", raising=False)
    assert sync.main(check=True) == 0, capsys.readouterr().out
