"""The card of rules: boxes word for word, examples computed anew, and rules that hold in runs on virtual ranks."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rule_programs import (
    around_the_ring,
    attention,
    block_step,
    come_late,
    deep,
    one_message,
    pipeline_step,
    pull_and_push,
    train_step,
)

from labkit import Job, Run, exercises, sync, virtual
from labkit.catalogue import Exercise, all_exercises
from labkit.course.phase2_advanced.pipeline_parallel.given.schedules import bubble_fraction
from labkit.hardware import topology
from labkit.hardware.links import LINKS
from labkit.rules import CARD, RuleError, rule_of, rules, with_rules
from labkit.trace import Kind, Trace

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / CARD).read_text()
NUMBERS = [f"{number:02}" for number in (*range(1, 11), 14, 18)]
SLOW = LINKS["ethernet-10g"]


def boxes(text: str) -> list[str]:
    """Blockquotes that begin with a rule."""
    return re.findall(r"^> \*\*Rule .*(?:\n>.*)*", text, re.MULTILINE)


def test_card_and_notebooks_have_the_same_rules_word_for_word() -> None:
    in_notebooks = []
    for exercise in all_exercises():
        for cell in nbformat.read(exercise.notebook, as_version=4).cells:
            in_notebooks += boxes(cell.source) if cell.cell_type == "markdown" else []
    assert boxes(PAGE) == in_notebooks
    assert re.findall(r"^> \*\*Rule (\d\d)\.\*\* .*\*\*.*[<≤≥].*\*\*", PAGE, re.MULTILINE) == NUMBERS


def test_the_box_is_in_the_section_that_its_link_names_below_its_derivation() -> None:
    for rule in rules().values():
        cells = nbformat.read(rule.exercise.notebook, as_version=4).cells
        text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
        above, box, _ = text.partition(rule.box)
        assert box
        assert re.findall(r"^#+ (.*)", above, re.MULTILINE)[-1] == rule.section
        assert f"[Derived in: {rule.section}](../notebooks/{rule.exercise.notebook_name}#" in PAGE


def test_the_card_is_in_the_navigation() -> None:
    assert re.search(r"```\{toctree\}[^`]*\nRules <rules>\n", (ROOT / "docs/index.md").read_text())


def test_sync_brings_a_changed_box_to_the_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = rules()
    older = PAGE.replace(found["09"].box, "> **Rule 09.** An older one.")
    assert older != PAGE
    assert with_rules(older, found) == PAGE
    card = tmp_path / CARD
    card.parent.mkdir()
    card.write_text(older)
    monkeypatch.setattr(sync, "root", lambda: tmp_path)
    assert card in [drift.path for drift in sync.find_drifts()]


def test_a_rule_without_a_place_and_a_place_without_a_rule_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    found = rules()
    with pytest.raises(RuleError, match=r"docs/rules.md has places for the rules 01, .*, and the notebooks have 02, "):
        with_rules(PAGE, {number: rule for number, rule in found.items() if number != "01"})
    with pytest.raises(RuleError, match="write the missing box, or a place"):
        with_rules(PAGE.replace("rule 10:", "no rule:"), found)


def test_two_boxes_in_a_notebook_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exercise = all_exercises()[0]
    notebook = nbformat.read(exercise.notebook, as_version=4)
    notebook.cells.append(nbformat.v4.new_markdown_cell("> **Rule 02.** Another one: **a ≥ b**."))
    nbformat.write(notebook, tmp_path / "two.ipynb")
    monkeypatch.setattr(Exercise, "notebook", tmp_path / "two.ipynb")
    with pytest.raises(RuleError, match="has Rule 01, Rule 02 in boxes: it needs one, Rule 01"):
        rule_of(exercise)


EXAMPLES: dict[str, Callable[..., list[float]]] = {
    "01": lambda N, _, d, *__: [N, N - 1, d, N - 1, d, (N - 1) * d],
    "02": lambda gbps, alpha, B, _: [gbps, alpha, gbps / 8, alpha * 1e-6 * B * 1e9],
    "03": lambda r, c, *_: [r, c, r, c, r / c, math.ceil(r / c)],
    "04": lambda N, c, *_: [N, c, N - 1, c, (N - 1) * c],
    "05": lambda t, c, *_: [t, c, 9, t, c, 9 * t / c, math.ceil(9 * t / c)],
    "06": lambda s, *_: [s, 6e-8 / s * 1e13, 10, 65_504 / s],
    "07": lambda n, *_: [n, 2 * math.sqrt(n), math.sqrt(n), n],
    "08": lambda tokens, width, X, N, port, t, M, card, _: [
        *(tokens, width, tokens * width * 2 / 1e6),
        *(N, port, 8 * (N - 1) / N * tokens * width * 2 / (port * 1e9) * 1e3),
        *(N, card, 8 * (N - 1) / N * tokens * width * 2 / (card * 1e9) * 1e3),
    ],
    "09": lambda p, m, *_: [p, m, p - 1, m + p - 1, 100 * (p - 1) / (m + p - 1), 9 * (p - 1)],
    "10": lambda N, megabytes, B, alpha, *_: [
        *(N, megabytes, B, alpha),
        *(2 * (N - 1) / N * megabytes / B, 2 * (N - 1) * alpha * 1e-3),
        2 * (N - 1) / N * megabytes / B + 2 * (N - 1) * alpha * 1e-3,
    ],
    "14": lambda W, n, S, B, _: [W, n, S, B, W / S * n / B],
    "18": lambda H, G, F, B, _, N, *__: [H, G, F, B, 2 * G / H * F * 1e3 / B, N, N * G, H + max(G, N)],
}
"""From the numbers of a card's example, in the order in which it has them: what they must be, by the rule."""


@pytest.mark.parametrize("number", NUMBERS)
def test_the_example_of_a_rule_is_computed_right(number: str) -> None:
    (example,) = re.findall(rf"<!-- rule {number}: .*?<!-- end -->\n\n\*Example\*: ([^\n]+)\n", PAGE, re.DOTALL)
    shown = [word.replace(",", "") for word in re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?", example)]
    right = EXAMPLES[number](*map(float, shown))
    rounded = [f"{value:.{len(word.partition('.')[2])}f}" for word, value in zip(shown, right, strict=True)]
    assert shown == rounded


def solution(name: str) -> ModuleType:
    exercise = next(exercise for exercise in all_exercises() if exercise.short_name == name)
    return exercises.load(exercise, exercise.source("solution")[0])


def ran(function: Callable[..., Any], *arguments: Any, **cluster: Any) -> Run:
    return (
        virtual(**{"nnodes": 1, "nproc_per_node": 1, **cluster})
        .run(Job.calling(function, *arguments))
        .raise_if_failed()
    )


@pytest.mark.parametrize("ranks", [4, 16])
def test_01_one_late_rank_costs_all_others_their_time(ranks: int) -> None:
    waits = [event.end - event.start for event in ran(come_late, 0.5, nproc_per_node=ranks).trace.collectives()]
    assert (ranks - 1) * 0.5 <= sum(waits) < (ranks - 1) * 0.5 * 1.01


@pytest.mark.parametrize("share", [0.1, 0.9, 1.1, 10])
def test_02_below_latency_times_bandwidth_the_latency_is_the_larger_part(share: float) -> None:
    limit = SLOW.latency_seconds * SLOW.bytes_per_second

    def seconds(nbytes: int) -> float:
        return ran(one_message, nbytes, nnodes=2, inter_node="ethernet-10g").trace.seconds

    latency, whole = seconds(1), seconds(round(share * limit))
    assert (latency > whole - latency) == (share < 1)


@pytest.mark.parametrize("share", [0.5, 0.95, 1.05, 2])
@pytest.mark.parametrize("ranks", [2, 8])
def test_04_ranks_gain_while_communication_is_below_n_minus_1_times_computing(ranks: int, share: float) -> None:
    network = {"nnodes": ranks, "inter_node": "ethernet-10g"}
    communication = ran(train_step, 0.0, 0, 10_000_000, **network).values[0]
    compute = communication / (ranks - 1) / share
    together = ran(train_step, compute, 1, 10_000_000, **network).values[0]
    alone = ran(train_step, compute, ranks, 0).values[0]
    assert (together < alone) == (share < 1)


@pytest.mark.parametrize("compute", [0.001, 0.004])
def test_05_nine_times_the_computing_makes_a_tenth_of_communication(compute: float) -> None:
    network = {"nnodes": 4, "inter_node": "ethernet-10g"}
    communication = ran(train_step, 0.0, 0, 10_000_000, **network).values[0]
    enough = math.ceil(9 * communication / compute)
    for microbatches in (enough - 1, enough):
        whole = ran(train_step, compute, microbatches, 10_000_000, **network).values[0]
        assert (communication / whole <= 0.1) == (microbatches >= enough)


@given(power=st.integers(0, 40), size=st.floats(6e-8, 65_504), negative=st.booleans())
def test_06_what_is_scaled_into_the_range_of_float16_survives(power: int, size: float, negative: bool) -> None:
    gradient = torch.tensor((-1) ** negative * size, dtype=torch.float64) / 2**power
    scaled = (gradient * 2**power).half()
    assert scaled.isfinite()
    assert scaled != 0


def test_06_beyond_it_gradients_are_lost() -> None:
    beyond = torch.tensor([2.9e-8, 65_520.0], dtype=torch.float64).half()
    assert beyond.tolist() == [0.0, math.inf]
    info = torch.finfo(torch.float16)
    assert info.smallest_normal == 2**-14 == pytest.approx(6.1e-5, rel=1e-3)
    assert info.max == 65_504
    assert info.smallest_normal * info.eps < 6e-8 < 1.01 * info.smallest_normal * info.eps


def test_07_no_number_of_segments_holds_less_than_two_roots() -> None:
    checkpointing, layers, held = solution("activation_checkpointing"), 16, {}
    for segments in (1, 2, 4, 8, 16):
        trace = ran(deep, checkpointing, layers, segments, fake=True).trace
        most = max(sample.nbytes for sample in trace.memory if sample.category == "activations")
        held[segments] = round(most / (32_768 * 256 * 4))
    assert held == {segments: segments + layers // segments for segments in held}
    assert min(held.values()) == held[4] == 2 * math.sqrt(layers)


@pytest.mark.parametrize(("machines", "gpus"), [(1, 2), (1, 8), (4, 1)])
def test_08_four_sums_of_a_block_take_as_long_at_least(machines: int, gpus: int) -> None:
    trace = ran(
        block_step, solution("tensor_parallel"), 4096, 2048,
        preset="p4d", nnodes=machines, nproc_per_node=gpus, fake=True,
    ).trace  # fmt: skip
    sums = [event.end - event.start for event in trace.collectives(0) if event.operation == "all_reduce"]
    machine, ranks = topology("p4d"), machines * gpus
    rate = (machine.intra_node if machines == 1 else machine.inter_node).gb_per_s * 1e9
    floor = 8 * (ranks - 1) / ranks * (2048 * 4096 * 2) / rate
    assert len(sums) == 4
    assert floor <= sum(sums) < 2 * floor


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_09_a_pipeline_idles_for_that_share_at_least(name: str) -> None:
    pipelines = solution("pipeline_parallel")
    for ranks, microbatches in ((4, 4), (4, 16), (8, 8)):
        rule = (ranks - 1) / (microbatches + ranks - 1)
        schedule = pipelines.get_pipeline_schedule(name, ranks, microbatches)
        assert bubble_fraction(schedule) == pytest.approx(rule)
        begins, ends, busy = zip(
            *ran(pipeline_step, pipelines, name, microbatches, nproc_per_node=ranks).values, strict=True
        )
        idle = 1 - sum(busy) / ranks / (max(ends) - min(begins))
        assert rule <= idle < rule + 0.1
    fewest = next(m for m in range(4, 99) if bubble_fraction(pipelines.get_pipeline_schedule(name, 4, m)) <= 0.1 + 1e-9)
    assert fewest == 9 * (4 - 1)


@pytest.mark.parametrize("ranks", [2, 8, 16])
@pytest.mark.parametrize("nbytes", [6_400, 6_400_000])
def test_10_a_ring_takes_its_bytes_and_its_latencies_at_least(ranks: int, nbytes: int) -> None:
    ring = solution("ring_allreduce")
    trace = ran(around_the_ring, ring, nbytes, nnodes=ranks, inter_node="ethernet-10g").trace
    assert {trace.bytes_sent(rank) for rank in range(ranks)} == {2 * (ranks - 1) * nbytes // ranks}
    floor = 2 * (ranks - 1) / ranks * nbytes / SLOW.bytes_per_second + 2 * (ranks - 1) * SLOW.latency_seconds
    assert floor <= trace.seconds < 1.5 * floor


@pytest.mark.parametrize(("servers", "workers"), [(1, 4), (2, 6), (4, 12)])
def test_14_servers_take_the_bytes_through_a_port_at_least_in_each_direction(servers: int, workers: int) -> None:
    nbytes = 400_000
    machines = servers + workers
    run = ran(pull_and_push, solution("parameter_server"), servers, nbytes, nnodes=machines, inter_node="ethernet-10g")
    floor = workers / servers * nbytes / SLOW.bytes_per_second
    begins, ends = zip(*run.values[servers:], strict=True)
    assert floor <= max(ends) - min(begins) < 1.5 * floor
    came = [e.end for e in run.trace.of(None, Kind.RECEIVE) if e.rank < servers and e.group == "0"]
    assert floor <= max(came) - 1.0 < 1.5 * floor


def bytes_that_leave(trace: Trace, ranks: int) -> float:
    """Bytes that rank 0 sends to others: an all-gather's are a rank's own, an all-to-all's those of all pieces."""
    times = {"all_gather": ranks - 1, "all_to_all": (ranks - 1) / ranks}
    return trace.bytes_sent(rank=0) + sum(times[event.operation] * event.nbytes for event in trace.collectives(0))


@pytest.mark.parametrize(
    ("ranks", "heads", "kv_heads"), [(4, 8, 8), (4, 8, 4), (4, 8, 2), (4, 8, 1), (2, 4, 4), (2, 4, 2)]
)
def test_18_ring_and_gather_send_fewer_bytes_than_ulysses_if_heads_are_few(
    ranks: int, heads: int, kv_heads: int
) -> None:
    module = solution("context_parallel")
    sent = {
        kind: bytes_that_leave(ran(attention, module, kind, heads, kv_heads, nproc_per_node=ranks).trace, ranks)
        for kind in ("ring", "gather", "ulysses")
    }
    assert sent["ring"] == sent["gather"] == (ranks - 1) * 2 * kv_heads * 4 * 8 * 4
    assert (sent["ring"] < sent["ulysses"]) == (ranks * kv_heads < heads + max(kv_heads, ranks))
