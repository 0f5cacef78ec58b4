"""The questions of all exercises: solutions are right, near misses are wrong, and nothing gives an answer away."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import random
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest

from labkit import Run
from labkit.catalogue import Exercise, all_exercises
from labkit.course.phase4_production.autotune.given import LayoutSpace, Measurement
from labkit.hardware import topology
from labkit.predict import model
from labkit.questions import Choice, Line, Number, Question, Verdict, questions_of
from labkit.trace import Event, Kind, Trace

QUESTIONS = [(exercise, question) for exercise in all_exercises() for question in questions_of(exercise)]
each = pytest.mark.parametrize(("exercise", "question"), QUESTIONS, ids=[question.name for _, question in QUESTIONS])


def run_of(events: list[Event]) -> Run:
    return Run([], Trace(64, events, "modelled", {"0": tuple(range(64))}))


def all_reduced(nbytes: int, times: int = 4) -> Run:
    return run_of([Event(0, Kind.COLLECTIVE, "all_reduce", t, t + 1, nbytes, None, "0", t) for t in range(times)])


def sent(rank: int, count: int, nbytes: int) -> Run:
    return run_of([Event(rank, Kind.SEND, "isend", t, t + 1, nbytes, rank + 1, "0", t) for t in range(count)])


RING = [
    Event(rank, Kind.SEND, "isend", step, step + 1, 62_500, (rank + 1) % 64, "0", step)
    for step in range(126)
    for rank in range(64)
]
NOTEBOOKS: dict[str, dict[str, Any]] = {
    "process_group": {"one_by_one": [404.0, 904.0]},
    "collectives": {"shared": {"recursive doubling": [0.134e-3, 26.3e-3]}},
    "data_loader": {"measured": {False: [35.7, 91.5], True: [30.8, 60.4]}},
    "trainer": {"runs": {4: all_reduced(76_864)}, "steps_of": [{"gather_scatter": (1.0, 29.4e-3)}]},
    "gradient_accumulation": {
        "learnt": {"4 × 16 on 2 ranks": {"updates": 144}},  # noqa: RUF001
        "digit_runs": {"4 × 16 on 2 ranks": all_reduced(76_860)},  # noqa: RUF001
        "measured": {16: {1: (5.0, 4.35), 16: (12.1, 4.36)}},
        "talking": 4.36e-3,
        "computing": 0.484e-3,
    },
    "mixed_precision": {
        "runs": {"float16, scaled": all_reduced(9_628)},
        "history": [{"scales": [2.0**42, 2.0**36, 2.0**37]}],
        "milliseconds": lambda dtype, count: 15.9,
    },
    "activation_checkpointing": {"steps": [(21.7, 2.40), (8.8, 3.27)]},
    "tensor_parallel": {
        "alone": 0.1621,
        "packed": {64: 17.7e-3},
        "x_bytes": 2048 * 16384 * 2,
        "port": 300.0,
        "formula": lambda gpus, machines, cards: 0.1621 / 8 + 4 * 2 * 7 / 8 * 2048 * 16384 * 2 / 300e9,
        "block_on": lambda width, heads, nproc_per_node: all_reduced(2048 * width * 2),
    },
    "pipeline_parallel": {
        "runs": {"1f1b": [all_reduced(4)]},
        "again": {("gpipe", True): sent(0, 16, 4)},
        "most_activations": lambda trace: 1.08e6 if trace.collectives() else 0.33e6,
        "wide": [10.2, 51.1],
        "on_gpus": lambda *step: sent(1, 16, 64 * 128 * 4),
    },
    "ring_allreduce": {
        "sizes": [2, 256],
        "large": [1e-4, 2 * 63 / 64 * 16e6 / 12.8e9],
        "bus_bandwidth": lambda nodes, nbytes, seconds: 2 * 63 / 64 * nbytes / seconds / 1e9,
        "mine64": run_of(RING),
    },
    "hierarchical_allreduce": {
        "flat": run_of(RING).trace,
        "counts": [2, 4, 8],
        "NBYTES": 26_350_000,
        "times": {("yours", 8): [6.36, 3.07, 1.44, 1.04]},
    },
    "ddp": {
        "compute": 10.4e-3,
        "after": 17.7e-3,
        "sweep": {(64, 8): 13.8e-3},
        "bucketed": all_reduced(25 << 20, times=5),
    },
    "gradient_compression": {"ranks": [2, 1024], "fast": {"TopK 1 %": 28.4, "uncompressed": 1.1}},
    "parameter_server": {
        "step_times": {(1, 56): 85.2, (8, 56): 11.0},
        "begins": lambda staleness, clocks: [max(clock, 3 * max(0, clock - staleness)) for clock in range(clocks)],
    },
    "zero": {"formula": {3: [5.0, 40.0, 320.0]}},
    "local_sgd": {
        "step_ms": {8: 28.2},
        "balanced_ms": 66.6,
        "computing": {"1 Gb/s": {500: 67.9}},
    },
    "parallel_3d": {"steps": {(1, 1, 64): 0.462}},
    "context_parallel": {"ideal_ms": 677.8, "fullest": {"contiguous": [1.53, 1.77, 1.88, 1.94, 1.97]}},
    "expert_parallel": {"times": [24.6, 64.4, 116.2], "once": [0.875, 1.75, 3.48, 4.65]},
    "checkpointing": {"measured": {"cloud-disk-1gb": [0.15, 39.2, 39.2]}},
    "fault_tolerance": {
        "killed": SimpleNamespace(attempts=[SimpleNamespace(first_step=0), SimpleNamespace(first_step=6)]),
        "shares": {16: 88.4, 18.6: 88.48, 19.3: 88.48},
    },
    "monitoring": {"step_ms": {1.3: 25.4}, "cost": {1: 2.22}},
    "scaling_study": {
        "efficiency": {64: 76.52},
        "strong": {32: 83.3},
        "dgx": {1: SimpleNamespace(seconds=0.05566), 64: SimpleNamespace(seconds=0.05572)},
    },
    "autotune": {
        "space": LayoutSpace(model("gpt-13b"), topology("p4d", nnodes=4), 128),
        "tuned": Measurement(3.925, 23.6e9),
    },
    "image_classification": {"with_ddp": {80: 4.0}, "hours": {8: 1.516}},
    "llm_13b": {
        "shares": [40, 45],
        "days": [5.59, 4.967],
        "rates": {8: 2515.0, 32: 2546.0},
        "cloud": SimpleNamespace(checkpoint_seconds=45.0),
    },
}
"""What the notebooks' cells leave for the questions, as in their stored outputs."""


@pytest.fixture(autouse=True)
def written(workspace: object) -> None:
    """The learner's modules are the solutions."""
    for exercise in all_exercises():
        exercise.save(exercise.source("solution")[0])


def with_known_answer(question: Question, names: dict[str, Any]) -> Question:
    """Find out the answer, by a run where it takes one, and check that the solution is right. Then no more runs."""
    if isinstance(question, Number):
        wanted = inspect.signature(question.answer).parameters
        answer = float(question.answer(**{name: names[name] for name in wanted}))
        known: Question = dataclasses.replace(question, answer=lambda: answer)
        assert known.judge(question.solution, names).verdict is Verdict.RIGHT, (question.solution, answer)
        return known
    if isinstance(question, Line):
        assert question.judge(question.solution, names).verdict is Verdict.RIGHT
        drawn = [dict(case) for case in question.cases(random.Random(0))]
        variables = ", ".join(drawn[0])
        return dataclasses.replace(question, answer=eval(f"lambda {variables}: {question.solution}"))
    assert isinstance(question, Choice)
    assert question.judge(question.right, names).verdict is Verdict.RIGHT
    return question


def wrong(question: Question) -> Iterator[tuple[str, str]]:
    """Wrong answers, each with the words that it gets."""
    if isinstance(question, Choice):
        yield from ((option, word) for option, word in question.options.items() if word)
    if isinstance(question, Number):
        yield from ((line.replace("answer", repr(question.answer())), word) for line, word in question.near.items())
        yield "-1234.5", question.otherwise
    if isinstance(question, Line):
        yield from question.near.items()
        yield "-1234.5", question.otherwise


@each
def test_the_solution_is_right_near_misses_are_wrong_and_no_text_holds_the_answer(
    exercise: Exercise, question: Question
) -> None:
    names = NOTEBOOKS[exercise.short_name]
    known = with_known_answer(question, names)
    texts = [question.text]
    for given, word in wrong(known):
        reply = known.judge(given, names)
        assert reply.verdict is Verdict.WRONG, given
        assert word[1:] in reply.text, given
        texts.append(reply.text)
    assert known.reveal(names).verdict is Verdict.SEEN
    if isinstance(known, Number) and known.name not in ONE_OF_TWO:
        assert not [text for text in texts if holds(text, known.answer())]
    if isinstance(known, Line):
        assert not [text for text in texts if known.solution in text]


ONE_OF_TWO = ("step_with_thread", "common_step")
"""Questions that give the answer among other numbers."""


def holds(text: str, answer: float) -> bool:
    """Is this number in the text? A single digit may be in it for another reason."""
    ways = {f"{answer:.0f}", f"{answer:,.0f}", f"{answer:.4g}"}
    return any(len(way) > 1 and re.search(rf"(?<![\d.,]){re.escape(way)}(?![\d]|[.,]\d)", text) for way in ways)


@each
def test_a_notebook_defines_what_its_questions_take_and_draws_its_predictions(
    exercise: Exercise, question: Question
) -> None:
    cells = [cell.source for cell in nbformat.read(exercise.notebook, as_version=4).cells if cell.cell_type == "code"]
    asked = cells.index(f"%question {question.name}")
    if isinstance(question, Choice):
        return
    assert isinstance(question, Number | Line)
    wanted = set(inspect.signature(question.answer).parameters)
    if isinstance(question, Line):
        wanted -= {name for case in question.cases(random.Random(0)) for name in case}
    if isinstance(question, Number) and question.shown_by:
        assert not wanted <= bound(cells[:asked]), "the answer is known when the prediction is made"
        assert wanted <= bound(cells)
        assert any(f'mark=answered("{question.name}")' in cell for cell in cells[asked:])
    else:
        assert wanted <= bound(cells[:asked])


def bound(cells: list[str]) -> set[str]:
    """Names that these cells give a value."""
    found: set[str] = set()
    for cell in cells:
        if cell.startswith("%%"):
            found.update(re.findall(r"^%%torchrun.* -o (\w+)", cell))
            continue
        for node in ast.walk(ast.parse("\n".join(line for line in cell.splitlines() if not line.startswith("%")))):
            if isinstance(node, ast.FunctionDef):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
    return found


def test_names_are_unique_in_the_course() -> None:
    names = [question.name for _, question in QUESTIONS]
    assert len(names) == len(set(names))
