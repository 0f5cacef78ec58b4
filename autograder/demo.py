"""`./lab demo`: one exercise, from a notebook cell on real processes to a gradebook entry, in at most one minute."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.manager import KernelManager
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook, output_from_msg
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from traitlets.config import Config

from autograder.course_folder import Course, CourseFailed, Mark
from autograder.judge import hidden_rubric
from autograder.measurable import left_out
from autograder.mutants import Mutants
from autograder.sandbox import Sandbox, SandboxUnavailable, forkserver
from autograder.submissions import with_module
from labkit import catalogue
from labkit.checks import CannotJudge, CheckResult, Report, Rubric

EXERCISE = "ring_allreduce"
WRONG = "sends_whole_tensor"
"""The mutant used as the wrong submission: correct sums, too many bytes."""

RING_ON_PROCESSES = """%%torchrun -o mine --timeout 60
import torch, torch.distributed as dist
from labkit.exercises import ring_allreduce

dist.init_process_group()
tensor = torch.full((1_000_000,), float(dist.get_rank()))
ring_allreduce.ring_all_reduce(tensor)
print(f"the sum is {tensor[0]:g}")"""


def main() -> int:
    """Run the demo; return 0 when the check passes and both submissions get the expected marks."""
    console = Console(highlight=False)
    root = catalogue.root()
    results = (root if os.access(root, os.W_OK) else Path.cwd()) / "demo"  # an image's course is read-only
    results.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="labkit-demo-") as folder:
        try:
            passed = _notebook(console, Path(folder), results)
            marked = _round_trip(console, Path(folder) / "course", results)
        except (CannotJudge, CourseFailed) as problem:
            console.print(escape(str(problem)), style="red")
            return 1
        except KeyboardInterrupt:
            console.print("stopped")
            return 130
        finally:
            forkserver.close_all()
    return 0 if passed and marked else 1


def _notebook(console: Console, folder: Path, results: Path) -> bool:
    """Run a learner's notebook (exercise cell, four processes, check, plot); return whether the check passed."""
    console.rule("A learner's notebook, on 4 real processes", align="left")
    picture = results / "timeline.png"
    picture.unlink(missing_ok=True)
    exercise = catalogue.find(EXERCISE)
    cells = [
        "%load_ext labkit\n%cluster local --nproc-per-node 4",
        f"%%exercise {exercise.name}\n{exercise.source('solution')[0]}",
        RING_ON_PROCESSES,
        f"%check {EXERCISE}",
        f"mine.plot().savefig({str(picture)!r}, dpi=150)",
    ]
    notebook = new_notebook(cells=[new_code_cell(source) for source in cells])
    with _step(console, "the cells run"):
        error = _execute(notebook, folder)
    nbformat.write(notebook, results / "learner.ipynb")
    if error:
        console.print(escape(error), style="red")
        return False
    for cell in notebook.cells[2:4]:
        console.print(escape(cell.source.splitlines()[0]), style="bold")
        console.print(escape(_shown(cell)))
    console.print(f"timeline: {picture}\n")
    return picture.is_file() and "FAIL" not in _shown(notebook.cells[3])


def _execute(notebook: NotebookNode, folder: Path) -> str:
    """Run the cells in a kernel with working directory `folder`, storing outputs in the notebook; return the kernel's
    error.

    nbclient would do the same, but turns Ctrl-C into an assertion error.
    """
    environment = {**os.environ, "LABKIT_WORKSPACE": str(folder / "workspace")}
    kernel = KernelManager(kernel_name="python3", transport="ipc", connection_file=str(folder / "kernel.json"))
    kernel.start_kernel(cwd=str(folder), env=environment)
    client = kernel.blocking_client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=60)
        for number, cell in enumerate(notebook.cells, start=1):
            cell.execution_count = number

            def show(message: dict[str, Any], cell: NotebookNode = cell) -> None:
                if message["msg_type"] in ("stream", "display_data", "execute_result", "error"):
                    cell.outputs.append(output_from_msg(message))

            reply = client.execute_interactive(cell.source, allow_stdin=False, timeout=120, output_hook=show)
            if reply["content"]["status"] != "ok":
                return f"{cell.source.splitlines()[0]}: {reply['content'].get('evalue', 'stopped')}"
        return ""
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)


def _round_trip(console: Console, folder: Path, results: Path) -> bool:
    """Release, submit twice, autograde, write feedback, read the gradebook; return whether the marks are right."""
    console.rule("The course: release, submissions, autograde, feedback", align="left")
    exercise = catalogue.find(EXERCISE)
    rubric = hidden_rubric(exercise)
    mutants = Mutants(exercise)
    options = Config()
    try:
        Sandbox().check()
    except SandboxUnavailable as problem:
        options.Sandbox.allow_none = True
        console.print(escape(str(problem).split(". ")[0]), style="yellow", soft_wrap=True)
        console.print("The demo's own two submissions are graded without one.", style="yellow")
    course = Course(folder, options)
    sandbox = Sandbox(config=course.config)
    with _step(console, "what this machine can measure"):
        missing = left_out(rubric, sandbox)
    full, wrong = (_expected(rubric, loses, missing) for loses in (frozenset(), mutants[WRONG].loses))
    if full.left_out:
        console.print(escape(f"{full.left_out}. The other points count for them."), style="yellow", soft_wrap=True)
    with _step(console, "nbgrader generate_assignment: the release, without solutions"):
        course.release(exercise.phase)
    notebook = exercise.notebook.stem
    released = course.released(exercise.phase, notebook)
    submissions = {
        "right": (exercise.source("solution")[0], full.marks),
        "wrong": (mutants.text(WRONG), wrong.marks),
    }
    for student, (module, _) in submissions.items():
        course.submit(student, exercise.phase, notebook, with_module(released, exercise.name, module))
        with _step(console, f"nbgrader autograde: the submission of {student!r}"):
            course.autograde(exercise.phase, student)
    with _step(console, "nbgrader generate_feedback"):
        course.feedback(exercise.phase)
    marks = [mark for mark in course.marks(exercise.phase) if mark.notebook == notebook]
    console.print(_gradebook(exercise.phase, marks))
    for student in submissions:
        page = results / f"feedback-{student}.html"
        shutil.copyfile(folder / "feedback" / student / exercise.phase / f"{notebook}.html", page)
        console.print(f"feedback: {page}")
    wanted = {student: points for student, (_, points) in submissions.items()}
    seen = {mark.student: mark.score for mark in marks}
    if seen != wanted:
        console.print(f"the marks are not what they must be: {seen}, not {wanted}", style="red")
    return seen == wanted


def _expected(rubric: Rubric, loses: Set[str], missing: Mapping[str, str]) -> Report:
    """Return the expected report for a submission that fails these checks; others are missing for the given reasons."""
    results = [
        CheckResult(
            check.title,
            check.points,
            earned=0.0 if check.name in missing or check.name in loses else check.points,
            skipped=missing.get(check.name, ""),
        )
        for check in rubric.checks
    ]
    return Report(rubric.exercise.name, results, seed=0)


def _gradebook(assignment: str, marks: list[Mark]) -> Table:
    table = Table(title=f"Gradebook: {assignment}", title_justify="left")
    for name in ("learner", "notebook", "graded cell"):
        table.add_column(name)
    table.add_column("score", justify="right")
    table.add_column("of", justify="right")
    for mark in marks:
        table.add_row(mark.student, mark.notebook, mark.cell, f"{mark.score:g}", f"{mark.max_score:g}")
    return table


@contextmanager
def _step(console: Console, title: str) -> Iterator[None]:
    """Show that a step is running, then how long it took."""
    began = time.perf_counter()
    with console.status(title):
        yield
    console.print(f"[green]done[/green] {escape(title)}  [dim]{time.perf_counter() - began:.1f} s[/dim]")


def _shown(cell: NotebookNode) -> str:
    """Return a cell's output as text."""
    parts = []
    for output in cell.outputs:
        parts.append(output.get("text") or output.get("data", {}).get("text/plain", ""))
    return "\n".join(part.rstrip("\n") for part in parts if part)
