"""The report on suspicious submissions: its findings, that it runs nothing, and that its page is safe to open."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import pytest
import ring_answers
import second_exercise
from nbformat import NotebookNode
from ring_answers import RING, answers

from autograder.integrity.material import material
from autograder.integrity.page import page
from autograder.integrity.reach import reaches
from autograder.integrity.report import NothingToCompare, Report, make_report
from autograder.integrity.workers import readings
from autograder.mutants import Mutants
from autograder.submissions import with_module
from labkit import cli

PHASE = RING.phase
SOLUTION = RING.source("solution")[0]
RELEASED = second_exercise.notebook(RING.name, RING.source("template")[0], points=25)

Change = Callable[[NotebookNode], object]


def hand_in(course: Path, student: str, source: str, change: Change = lambda notebook: None) -> None:
    notebook = with_module(RELEASED, RING.name, source)
    change(notebook)
    folder = course / "submitted" / student / PHASE
    folder.mkdir(parents=True)
    (folder / RING.notebook.name).write_text(json.dumps(notebook))


@pytest.fixture
def course(tmp_path: Path) -> Path:
    folder = tmp_path / "course"
    (folder / "release" / PHASE).mkdir(parents=True)
    nbformat.write(RELEASED, folder / "release" / PHASE / RING.notebook.name)
    return folder


def told(report: Report) -> list[tuple[str, str, str]]:
    return [(finding.kind, finding.where, finding.what) for finding in report.findings]


# Cells ----------------------------------------------------------------------------------------------------------------


def points(notebook: NotebookNode) -> None:
    notebook.cells[4].metadata.nbgrader.points = 100


CHANGES: dict[str, tuple[Change, tuple[str, str, str]]] = {
    "text": (
        lambda n: n.cells[4].update(source="25.0"),
        ("text", "grade_ring_allreduce", "the text of a locked cell differs"),
    ),
    "points": (points, ("metadata", "grade_ring_allreduce", "points: 25 became 100")),
    "deleted": (lambda n: n.cells.pop(4), ("deleted", "grade_ring_allreduce", "the cell is not there")),
    "duplicated": (
        lambda n: n.cells.append(n.cells[4]),
        ("duplicated", "grade_ring_allreduce", "2 cells have this id"),
    ),
    "no_metadata": (
        lambda n: [cell.update(metadata={}) for cell in n.cells],
        ("metadata", "all cells", "no cell has nbgrader's metadata any more"),
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_was_done_to_cells_is_told(name: str, course: Path) -> None:
    change, wanted = CHANGES[name]
    hand_in(course, "ann", SOLUTION, change)
    (finding,) = make_report(course, PHASE).findings
    assert (finding.kind, finding.where, finding.what) == wanted
    assert finding.innocent
    if name == "text":
        assert finding.detail == '- grade("ring_allreduce")\n+ 25.0'


def test_cells_that_are_the_learners_own_may_be_anything(course: Path) -> None:
    def change(notebook: NotebookNode) -> None:
        notebook.cells[1].source = "dist.all_reduce(x)"
        notebook.cells.insert(0, nbformat.v4.new_code_cell("import gc"))
        notebook.cells[5].source += "  \n"

    hand_in(course, "ann", SOLUTION, change)
    report = make_report(course, PHASE)
    assert told(report) == [] and report.pairs == []


# Uses in a module -----------------------------------------------------------------------------------------------------

HEAD = "import torch\nimport torch.distributed as dist\n"
FORBIDDEN = material(RING).forbidden
ALL_REDUCE = ("forbidden", "torch.distributed.all_reduce")

REACHING = {
    "dist.all_reduce(x)": ALL_REDUCE,
    "from torch.distributed import all_reduce as send\nsend(x)": ALL_REDUCE,
    "add = dist.all_reduce\nmore = add\nmore(x)": ALL_REDUCE,
    "getattr(dist, 'all_' + 'reduce')(x)": ALL_REDUCE,
    "name = 'ecuder_lla'[::-1]\ngetattr(dist, name)(x)": ALL_REDUCE,
    "getattr(dist, '_'.join(['all', 'reduce']))(x)": ALL_REDUCE,
    "dist.__dict__['all_reduce'](x)": ALL_REDUCE,
    "vars(dist)['all_reduce'](x)": ALL_REDUCE,
    "__import__('torch.distributed').all_reduce(x)": ALL_REDUCE,
    "from torch.distributed import *\nall_reduce(x)": ALL_REDUCE,
    "def f(x, go=dist.all_reduce):\n    go(x)": ALL_REDUCE,
    "import torch.distributed.nn.functional as other\nother.all_reduce(x)": (
        "forbidden",
        "torch.distributed.nn.functional.all_reduce",
    ),
    "group.allreduce([x])": ("forbidden", ".allreduce"),
    "dist.distributed_c10d._get_default_group()": (
        "private",
        "torch.distributed.distributed_c10d._get_default_group",
    ),
    "torch.ops.c10d.allreduce_(x)": ("private", "torch.ops.c10d.allreduce_"),
    "getattr(dist, chr(97) + 'll')": ("computed", "getattr(torch.distributed, …)"),
    "exec(text)": ("computed", "exec()"),
    "import gc": ("inspection", "gc"),
    "from sys import settrace as f\nf(g)": ("inspection", "sys.settrace"),
    "import importlib\nimportlib.import_module(a + b)": ("computed", "__import__(…)"),
    "().__class__.__base__.__subclasses__()": ("inspection", ".__subclasses__"),
    "from labkit.checks import expect": ("grader", "labkit.checks.expect"),
    "import autograder.judge": ("grader", "autograder.judge"),
    "import labkit.clusters.virtual.hosts.remote": (
        "grader",
        "labkit.clusters.virtual.hosts.remote",
    ),
    "import os\nos.fork()": ("process", "os.fork"),
    "from os import environ\nenviron['RANK']": ("surroundings", "os.environ"),
    "open('/proc/self/maps')": ("surroundings", "'/proc/self/maps'"),
    "torch.equal = lambda a, b: True": ("patched", "torch.equal"),
    "torch.Tensor.__eq__ = f": ("patched", "torch.Tensor.__eq__"),
    "setattr(dist, 'recv', f)": ("patched", "torch.distributed.recv"),
    "import sys\nsys.modules['torch'] = me": ("patched", "sys.modules"),
    "class Mine(torch.Tensor):\n    pass": ("pretending", "class Mine(torch.Tensor)"),
}


@pytest.mark.parametrize("code", REACHING)
def test_what_a_module_reaches_for_is_found(code: str) -> None:
    found = reaches(ast.parse(HEAD + code), FORBIDDEN)
    assert REACHING[code] in [(reach.rule, reach.what) for reach in found]
    assert all(reach.line > 2 for reach in found)


@pytest.mark.parametrize(
    "code",
    [
        "dist.isend(x, 1)",
        "torch.__version__",
        "torch.backends.cudnn.benchmark = True",
        "from labkit.exercises import ring_allreduce\nring_allreduce.ring_all_reduce(x)",
        "from labkit import virtual\nimport time, math, threading",
        "from labkit.course.phase2_advanced.tensor_parallel.given.parts import part_of\npart_of(4)",
        "def all_reduce(x):\n    return x\nall_reduce(x)",
        "class Ring:\n    def __init__(self):\n        self.rank = 0\nRing().rank = 2",
        "getattr(x, name)",
        "def f():\n    '''Reads /proc, unlike gc.'''",
    ],
)
def test_plain_work_reaches_for_nothing(code: str) -> None:
    assert reaches(ast.parse(HEAD + code), FORBIDDEN) == []


def test_of_all_modules_of_the_course_only_those_that_cheat_are_pointed_at() -> None:
    known, mutants = material(RING).known, Mutants(RING)
    names = {mutants.text(name): name for name in mutants}
    found = {
        names.get(text, text): {reach.rule for reach in reading.reaches}
        for text, reading in zip(known, readings((t, FORBIDDEN) for t in known), strict=True)
        if reading.reaches
    }
    assert found == {
        "calls_all_reduce": {"forbidden"},
        "right_on_virtual_ranks": {"forbidden"},
    }


HOSTILE = {
    "parentheses": "(" * 90_000 + ")" * 90_000,
    "minus": "-" * 90_000 + "1",
    "sum": "+".join(["1"] * 50_000),
    "blocks": "\n".join(" " * i + "if x:" for i in range(500)),
    "digits": "x = " + "9" * 100_000,
    "null": "x = 1\0",
    "surrogate": "x = '\udcff'",
    "encoding": "# coding: utf-7\nx = 1",
    "chain": "\n".join(f"x{i + 1} = x{i}.a" for i in range(3_000)),
    "repeated": "def f():\n" + "    g(a, b, c, d, e)\n" * 3_000,
}


def test_no_text_stops_the_reading_of_the_next() -> None:
    texts = [text for hostile in HOSTILE.values() for text in (hostile, SOLUTION)]
    read = list(readings((text, FORBIDDEN) for text in texts))
    assert all(reading.problem == "" and reading.grams for reading in read[1::2])
    unread = {name for name, reading in zip(HOSTILE, read[::2], strict=True) if reading.problem}
    assert {"parentheses", "minus", "sum", "blocks", "null"} <= unread


# The report -----------------------------------------------------------------------------------------------------------

SCRIPT = "<script>alert(1)</script>"


@pytest.fixture
def pair(course: Path) -> Path:
    """Two similar submissions, one under an invalid name, and others that are not similar."""
    original = answers()["parity"].replace("even = ", f"# {SCRIPT} my own words\n    even = ", 1)
    hand_in(course, "zoë", original)
    hand_in(course, f"<b>{SCRIPT.replace('/', '')}\x1b[31m", original.replace("even", "is_even"))
    hand_in(course, "plain", answers()["plain"])
    hand_in(course, "untouched", RING.source("template")[0])
    hand_in(course, "empty", "")
    return course


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def test_a_pair_is_told_with_its_passages_and_its_page_is_safe(pair: Path) -> None:
    report = make_report(pair, PHASE)
    (found,) = report.pairs
    assert {found.left.student[:3], found.right.student[:3]} == {"zoë", "<b>"}
    assert found.share > 0.9 and found.passages
    assert [text for _, _, text in found.comments] == [f"{SCRIPT} my own words"]
    assert report.left_out["the template as it was released"] == ["untouched"]
    assert report.left_out["empty or missing"] == ["empty"]
    html = page(report)
    assert "my own words" in html and "default-src 'none'" in html
    assert "\x1b" not in html and "\\u001b" in html
    tags = Tags(html)
    assert not tags.tags & {"script", "img", "a", "iframe", "link"}
    assert not {name for name in tags.attributes if name.startswith("on") or name in ("href", "src", "style")}


def test_names_can_be_hidden(pair: Path) -> None:
    report = make_report(pair, PHASE, anonymous=True)
    text = page(report) + json.dumps(report.to_json())
    assert "zo" not in text.replace("zoom", "") and "learner 1" in text
    assert all(name.startswith("learner ") for names in report.left_out.values() for name in names)


def test_earlier_courses_are_compared_too(pair: Path, tmp_path: Path) -> None:
    before = tmp_path / "earlier"
    hand_in(before, "max", ring_answers.FREELY)
    hand_in(before, "ann", answers()["rotated"])
    hand_in(pair, "eve", ring_answers.FREELY.replace("Neighbours", "Ring"))
    hand_in(pair, "ann", answers()["rotated"])  # a learner who repeats the course
    report = make_report(pair, PHASE, [before])
    across = [(p.left.student, p.right.student, p.right.course) for p in report.pairs if p.right.course]
    assert across == [("eve", "max", "earlier")]
    assert report.earlier == 2


def test_links_and_pipes_in_a_submission_are_not_followed(course: Path, tmp_path: Path) -> None:
    hand_in(course, "ann", SOLUTION)
    hand_in(tmp_path / "else", "bob", SOLUTION)
    (course / "submitted" / "bob").symlink_to(tmp_path / "else" / "submitted" / "bob")
    folder = course / "submitted" / "cid" / PHASE
    folder.mkdir(parents=True)
    (folder / RING.notebook.name).symlink_to(course / "submitted" / "ann" / PHASE / RING.notebook.name)
    report = make_report(course, PHASE)
    assert report.submissions == 2
    assert [(f.student, f.kind) for f in report.findings] == [("cid", "file")]


def test_the_command_writes_page_and_data(pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    assert cli.main(["integrity", PHASE, "--course", str(pair), "--also", str(nothing)]) == 0
    shown = capsys.readouterr().out
    assert "not compared, empty or missing: empty\n" in shown and f"0 submissions for {PHASE} in {nothing}\n" in shown
    assert "zoë" in shown and "for you to judge" in shown and "\x1b[31m" not in shown
    data = json.loads((pair / "integrity" / f"{PHASE}.json").read_text())
    assert data["pairs"][0]["share"] > 0.9 and "source" not in data["pairs"][0]["left"]
    assert (pair / "integrity" / f"{PHASE}.html").is_file()


def test_a_mistyped_assignment_is_told(pair: Path) -> None:
    with pytest.raises(NothingToCompare, match=f"did you mean {PHASE}"):
        make_report(pair, PHASE.replace("_", "", 1))
    with pytest.raises(NothingToCompare, match="there is no folder"):
        make_report(pair / "nowhere", PHASE)


def test_without_a_release_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NothingToCompare, match="generate_assignment"):
        make_report(tmp_path, PHASE)
