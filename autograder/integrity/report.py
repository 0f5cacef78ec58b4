"""The report on one assignment: findings by learner, and submissions with rare passages in common."""

from __future__ import annotations

import difflib
import hashlib
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import nbformat

from autograder.intake import IntakeFailed, SubmittedCell, read_cells, read_release
from autograder.integrity import locked, similar
from autograder.integrity.handed_in import Notebook, blank, modules, submissions
from autograder.integrity.material import Material, material
from autograder.integrity.reach import RULES
from autograder.integrity.workers import Reading, readings
from labkit.catalogue import Exercise

MAX_PAIRS = 200
"""Maximum pairs reported for one exercise, the most similar first."""

ALIKE_INNOCENT = (
    "Work in pairs, a tutorial, a lecture or an assistant's answer gives two people the same lines, and short "
    "exercises have few right answers. Who wrote first cannot be told from the text."
)


class NothingToCompare(ValueError):
    """The release or the submissions are missing; the message says which, and what to do."""


@dataclass(frozen=True)
class Finding:
    """One finding in one submission."""

    student: str
    notebook: str
    kind: str
    title: str
    where: str
    """`line 12` of the exercise's module, or a cell's id."""
    what: str
    innocent: str
    """A possible innocent reason."""
    detail: str = ""
    same_in: int = 1
    """Number of submissions with the same finding."""

    @property
    def place(self) -> str:
        """Return for example `ring_allreduce, line 12`."""
        return f"{self.notebook}, {self.where}" if self.where else self.notebook


@dataclass(frozen=True)
class Side:
    """One submission of a pair."""

    student: str
    course: str
    """Folder of an earlier course; empty for the current one."""
    source: str = field(repr=False)


@dataclass(frozen=True)
class Pair:
    """Two submissions with rare passages in common."""

    exercise: str
    left: Side
    right: Side
    share: float
    """Shared fraction of the shorter one's own code, by weight: 0 to 1."""
    weight: float
    passages: Sequence[similar.Passage]
    comments: Sequence[tuple[int, int, str]]
    """Comments in both that were not given to learners: lines on both sides, text."""


@dataclass(frozen=True)
class Report:
    """Findings for an instructor to review. No part of it is a mark."""

    phase: str
    submissions: int
    """Number of learners with a submission."""
    earlier: int
    """Number of modules of earlier courses that were compared too."""
    findings: Sequence[Finding]
    pairs: Sequence[Pair]
    left_out: Mapping[str, Sequence[str]]
    """Learners whose modules were not compared, by reason; one name for each module."""
    without: Sequence[str] = ()
    """Folders of earlier courses without submissions for this assignment."""
    more_pairs: int = 0
    anonymous: bool = False

    @property
    def groups(self) -> list[list[str]]:
        """Return learners connected through pairs, for groups of more than two; the largest group first."""
        together: dict[tuple[str, str], set[tuple[str, str]]] = {}
        for pair in self.pairs:
            sides = [(side.student, side.course) for side in (pair.left, pair.right)]
            joined = set(sides).union(*(together.get(side, set()) for side in sides))
            together.update(dict.fromkeys(joined, joined))
        groups = {id(group): group for group in together.values() if len(group) > 2}.values()
        named = [
            sorted(f"{student} ({course})" if course else student for student, course in group) for group in groups
        ]
        return sorted(named, key=lambda group: (-len(group), group))

    def to_json(self) -> dict[str, Any]:
        """Return plain data, without the modules' texts."""
        data = asdict(self) | {"groups": self.groups}
        for pair in data["pairs"]:
            for side in ("left", "right"):
                del pair[side]["source"]
        data["note"] = f"Things to look at, not marks and not accusations. {ALIKE_INNOCENT}"
        return data


@dataclass
class _Module:
    """One submitted module."""

    notebook: Notebook
    source: str
    reading: Reading


def make_report(course: Path, phase: str, also: Sequence[Path] = (), *, anonymous: bool = False) -> Report:
    """Compare the submissions in `course/submitted` with `course/release` and with earlier courses' folders.

    Raises NothingToCompare; ValueError when a rubric's FORBIDDEN is not a set of names.
    """
    if not course.is_dir():
        raise NothingToCompare(f"there is no folder {course}")
    try:
        release = read_release(course / "release" / phase)
    except IntakeFailed as problem:
        there = sorted({path.parent.name for path in (course / "release").glob("*/*.ipynb")})
        like = difflib.get_close_matches(phase, there, 1)
        if phase in there or not like:
            raise NothingToCompare(str(problem)) from None
        raise NothingToCompare(f"{phase} is not released in {course}; did you mean {like[0]}?") from None
    if not (course / "submitted").is_dir():
        raise NothingToCompare(f"{course} has no submitted/: run `nbgrader collect {phase}` first")
    exercises_only = blank(release)
    handed_in = list(submissions(course / "submitted", phase, exercises_only))
    if not handed_in:
        raise NothingToCompare(f"nothing was handed in for {phase} in {course / 'submitted'}")
    students = sorted({notebook.student for notebook in handed_in})
    folders = Counter(folder.resolve().name for folder in also)
    without = []
    for folder in also:
        label = folder.resolve().name
        earlier = list(submissions(folder, phase, exercises_only, label if folders[label] == 1 else str(folder)))
        handed_in += earlier
        if not earlier:
            without.append(str(folder))

    given = {name: read_cells(nbformat.writes(notebook).encode()).cells for name, notebook in release.notebooks.items()}
    findings = [f for notebook in handed_in if not notebook.course for f in _cells(notebook, given[notebook.name])]
    pairs: list[Pair] = []
    left_out: dict[str, list[str]] = defaultdict(list)
    more = 0
    for name, released in exercises_only.notebooks.items():
        ours = [notebook for notebook in handed_in if notebook.name == name]
        for exercise, untouched in modules(released).items():
            looked = _Exercise(material(Exercise(exercise)), untouched, ours, left_out)
            findings += looked.findings()
            alike = looked.pairs()
            pairs += alike[:MAX_PAIRS]
            more += max(len(alike) - MAX_PAIRS, 0)
    report = Report(
        phase,
        len(students),
        len({(notebook.course, notebook.student) for notebook in handed_in if notebook.course}),
        _counted(findings),
        pairs,
        {reason: sorted(names) for reason, names in left_out.items()},
        without,
        more_pairs=more,
        anonymous=anonymous,
    )
    return _without_names(report) if anonymous else report


def _cells(notebook: Notebook, given: Sequence[SubmittedCell]) -> list[Finding]:
    changes = [locked.Change("file", "", note) for note in notebook.notes] + locked.changes(given, notebook.cells)
    titles = {
        "file": "the file, or its exercise cell, is odd",
        "text": "a locked cell was changed",
        "metadata": "a cell's metadata was changed",
    }
    return [
        Finding(
            notebook.student,
            notebook.name,
            change.kind,
            titles.get(change.kind, f"a cell was {change.kind}"),
            change.cell,
            change.what,
            locked.INNOCENT[change.kind],
            change.detail,
        )
        for change in changes
    ]


class _Exercise:
    """All submitted modules of one exercise."""

    def __init__(
        self, course: Material, released: str, notebooks: Sequence[Notebook], left_out: dict[str, list[str]]
    ) -> None:
        self._name = course.exercise.name
        untouched = (_bare(released), _bare(course.template))
        self._left_out = left_out
        taken: list[tuple[Notebook, str]] = []
        for notebook in notebooks:
            source = notebook.modules.get(self._name, "")
            if not source.strip():
                left_out["empty or missing"].append(_name(notebook))
            elif _bare(source) in untouched:
                left_out["the template as it was released"].append(_name(notebook))
            else:
                taken.append((notebook, source))
        texts = [*course.known, *(source for _, source in taken)]
        read = list(readings((text, course.forbidden) for text in texts))
        given = read[: len(course.known)]
        self._known = similar.known_grams(given)
        self._known_comments = {text for reading in given for _, text in reading.comments}
        # template and solution come first: learners may use whatever they use
        self._allowed = {(reach.rule, reach.what) for reading in given[:2] for reach in reading.reaches}
        modules = zip(taken, read[len(course.known) :], strict=True)
        self._modules = [_Module(notebook, source, reading) for (notebook, source), reading in modules]
        # `alike` expects modules of earlier courses last
        self._modules.sort(key=lambda m: bool(m.notebook.course))

    def findings(self) -> list[Finding]:
        findings = []
        for module in self._modules:
            if module.notebook.course:
                continue
            if module.reading.problem:
                self._left_out["could not be read as Python"].append(_name(module.notebook))
                findings.append(self._finding(module, "unread", "", module.reading.problem))
            for reach in module.reading.reaches:
                if (reach.rule, reach.what) not in self._allowed:
                    line = module.source.splitlines()[reach.line - 1].strip() if reach.line else ""
                    findings.append(self._finding(module, reach.rule, f"line {reach.line}", reach.what, line[:200]))
        return findings

    def _finding(self, module: _Module, rule: str, where: str, what: str, detail: str = "") -> Finding:
        title, innocent = RULES[rule].title, RULES[rule].innocent
        return Finding(module.notebook.student, module.notebook.name, rule, title, where, what, innocent, detail)

    def pairs(self) -> list[Pair]:
        readable = [module for module in self._modules if not module.reading.problem]
        if not readable:
            return []
        own = [similar.own_fingerprints(module.reading, self._known) for module in readable]
        ours = sum(not module.notebook.course for module in readable)
        likenesses, totals = similar.alike(own, ours)
        little = [module for module, total in zip(readable, totals[:ours], strict=False) if total < similar.ENOUGH]
        if little:
            self._left_out["too little that is not everybody's"] += [_name(module.notebook) for module in little]
        pairs: list[Pair] = []
        for likeness in likenesses:
            left, right = readable[likeness.left], readable[likeness.right]
            if right.notebook.course and left.notebook.student == right.notebook.student:
                continue  # learners who repeat a course may reuse their own work
            # unreported pairs need no passages
            is_reported = len(pairs) < MAX_PAIRS
            passages = similar.passages(left.reading, right.reading, self._known) if is_reported else []
            comments = self._comments(left.reading, right.reading)
            pairs.append(
                Pair(self._name, _side(left), _side(right), likeness.share, likeness.weight, passages, comments)
            )
        return pairs

    def _comments(self, left: Reading, right: Reading) -> list[tuple[int, int, str]]:
        lines = {text: line for line, text in right.comments if text not in self._known_comments}
        return [(line, lines[text], text) for line, text in left.comments if text in lines]


def _side(module: _Module) -> Side:
    return Side(module.notebook.student, module.notebook.course, module.source)


def _name(notebook: Notebook) -> str:
    return f"{notebook.student} ({notebook.course})" if notebook.course else notebook.student


def _bare(source: str) -> list[str]:
    return [line.rstrip() for line in source.splitlines() if line.strip()]


def _counted(findings: Sequence[Finding]) -> list[Finding]:
    """Add the number of learners with the same finding; sort by learner, then in the order found."""
    having: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for f in findings:
        having[(f.notebook, f.kind, f.what)].add(f.student)
    counted = [_with(f, same_in=len(having[(f.notebook, f.kind, f.what)])) for f in findings]
    return sorted(counted, key=lambda f: f.student)


def _with(finding: Finding, **changed: Any) -> Finding:
    return Finding(**{**{name: getattr(finding, name) for name in finding.__dataclass_fields__}, **changed})


def _without_names(report: Report) -> Report:
    """Replace names by `learner 07`, in an order that does not identify anybody."""
    not_compared = {name for names in report.left_out.values() for name in names}
    names = (
        {f.student for f in report.findings}
        | {s.student for p in report.pairs for s in (p.left, p.right)}
        | not_compared
    )
    order = sorted(names, key=lambda name: hashlib.sha256(name.encode("utf-8", "replace")).digest())
    new = {name: f"learner {number:0{len(str(len(order)))}d}" for number, name in enumerate(order, start=1)}

    def side(old: Side) -> Side:
        return Side(new[old.student], old.course, old.source)

    findings = sorted((_with(f, student=new[f.student]) for f in report.findings), key=lambda f: f.student)
    pairs = [
        Pair(p.exercise, side(p.left), side(p.right), p.share, p.weight, p.passages, p.comments) for p in report.pairs
    ]
    return Report(
        report.phase,
        report.submissions,
        report.earlier,
        findings,
        pairs,
        {reason: sorted(new[name] for name in names) for reason, names in report.left_out.items()},
        report.without,
        report.more_pairs,
        anonymous=True,
    )


def printable(text: str) -> str:
    """Escape characters in `text` that a terminal or a browser interprets: control characters, direction marks."""
    return "".join(
        c if c in "\n\t" or unicodedata.category(c)[0] != "C" else f"\\u{ord(c):04x}"
        for c in text.replace("\r\n", "\n")
    )
