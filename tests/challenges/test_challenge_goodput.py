"""`labkit challenge goodput`: what a storm does, what counts, and whether recorded scores are those of today."""

from __future__ import annotations

import pytest

from labkit.catalogue import root
from labkit.challenges.challenge import find
from labkit.challenges.goodput.race import TEMPLATE, carried_out, measure
from labkit.challenges.goodput.storm import (
    EXCLUDE,
    INCLUDE,
    NODES,
    RESTART_SECONDS,
    SAVE,
    SAVE_SECONDS,
    STEPS,
    TRAIN,
    Decision,
    Storm,
    play,
)


def crash(storm: Storm) -> int:
    """Train, saving now and then, until a node crashes; return it."""
    while storm.state()["crashed"] < 0:
        storm.carry_out(Decision(TRAIN, 50) if storm.steps == storm.saved else Decision(SAVE))
    return storm.state()["crashed"]


def test_a_crash_costs_the_steps_since_the_last_save_and_the_node_until_it_is_repaired() -> None:
    storm = Storm(1)
    node = crash(storm)
    state = storm.state()
    assert state["steps"] == state["saved"] and node not in state["nodes"] and len(state["nodes"]) == NODES - 1
    with pytest.raises(ValueError, match=f"include: node {node} is not ready"):
        storm.carry_out(Decision(INCLUDE, node))
    assert [span.what for span in storm.spans[-3:]] == ["train", "repair", "restart"] or storm.spans[-3].what == "save"
    while node not in storm.state()["ready"]:
        storm.carry_out(Decision(SAVE))
    storm.carry_out(Decision(INCLUDE, node))
    assert node in storm.state()["nodes"]


def test_steps_take_longer_on_fewer_nodes_and_saves_and_restarts_take_their_time() -> None:
    storm = Storm(3)
    storm.carry_out(Decision(TRAIN, 10))
    assert storm.seconds == pytest.approx(10)
    storm.carry_out(Decision(SAVE))
    storm.carry_out(Decision(EXCLUDE, 5))
    storm.carry_out(Decision(TRAIN, 10))
    assert storm.seconds == pytest.approx(10 + SAVE_SECONDS + RESTART_SECONDS + 10 * NODES / (NODES - 1))


def test_a_slow_node_slows_all_until_it_is_excluded() -> None:
    storm = Storm(1)
    while not storm.state()["slowdown"]:
        storm.carry_out(Decision(TRAIN, 50) if storm.steps == storm.saved else Decision(SAVE))
    ((node, factor),) = storm.state()["slowdown"].items()
    before, count = storm.seconds, len(storm.state()["nodes"])
    storm.carry_out(Decision(TRAIN, 1))
    assert storm.seconds - before == pytest.approx(factor * NODES / count)
    storm.carry_out(Decision(EXCLUDE, int(node)))
    assert not storm.state()["slowdown"]


def test_a_storm_repeats_and_its_decisions_can_be_carried_out_again() -> None:
    storm = Storm(2)
    decisions = play(
        storm, lambda state: Decision(SAVE) if state["steps"] - state["saved"] >= 300 else Decision(TRAIN, 300)
    )
    found = carried_out(2, decisions)
    assert (found.fault, found.value) == ("", storm.seconds)
    assert found.trace is not None and found.trace.seconds == pytest.approx(storm.seconds, abs=1800)
    assert "not done" in carried_out(2, decisions[:-1]).fault
    assert carried_out(1, decisions).value != found.value


@pytest.mark.parametrize("entry", ["adaptive", "torchrun"])
def test_recorded_scores_are_those_of_today(entry: str) -> None:
    source = (root() / "solutions/challenges/goodput" / f"{entry}.py").read_text()
    rows = {row.name: row.values for row in find("goodput").standings()}
    found = measure(source, entry)
    assert not found[-1].fault
    assert {one.instance: one.value for one in found} == pytest.approx(rows[entry])
    assert min(rows[entry].values()) > STEPS


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("raise KeyError('crash')", "KeyError on rank 1 at challenges/mine.py, line"),
        ("return 'wait', 3", "decide must return (name, number), with a name of train, save, exclude, include; got"),
        ("return 'include', 3", "include: node 3 is not ready"),
        ("return 'save', 0", "the job is not done after 2000 decisions: 0 of 20000 steps"),
    ],
)
def test_a_policy_with_a_fault_does_not_count_and_the_fault_is_named(line: str, fault: str) -> None:
    source = TEMPLATE.replace("        since =", f"        {line}\n        since =")
    (found,) = measure(source, "mine")
    assert fault in found.fault and found.value != found.value
