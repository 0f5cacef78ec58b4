"""Measure a policy of the goodput challenge: how long a job takes under each seeded storm, on the storm's own clock.

The policy runs on rank 1 of two virtual ranks, the storm on rank 0: separate processes, so a policy sees nothing but
the states that it is sent. Its decisions are carried out once more in this process; that is what counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from labkit.challenges.challenge import Outcome, on_this_machine, outcomes_until_fault
from labkit.challenges.goodput.storm import NODES, STEPS, Decision, Span, Storm
from labkit.clusters import Cluster, Job, Run
from labkit.trace import Event, Kind, Trace

TIMEOUT = 120.0
"""Time limit for one storm, in seconds on the clock of this machine."""
PUBLISHED = (1, 2, 3, 4)
"""Seeds of the published storms."""
_DRIVER = "from labkit.challenges.goodput.ranks import play_on_ranks\n"
TEMPLATE = '''"""My policy for `labkit challenge goodput`: one file, which imports the standard library."""

from __future__ import annotations

from typing import Any


class Policy:
    """Decides what a job of 32 nodes does next. A policy is made anew for each storm."""

    def decide(self, state: dict[str, Any]) -> tuple[str, int]:
        """Return the next of at most 2000 decisions; it is carried out until it is complete, or a node crashes.

        ("train", 100)  go on for 100 steps. A step takes 32 / (number of nodes) s, times the slowest node's slowdown
        ("save", 0)     30 s. A crash costs the steps since the last complete save, and a restart without the node
        ("exclude", 7)  restart without node 7: 120 s, from the last save
        ("include", 7)  restart with node 7, if it is in state["ready"]: 120 s, from the last save

        state: seconds     since the job began
               steps       that are done, of 20000
               saved       steps in the last save
               nodes       that are training
               ready       nodes that can be taken in: a crashed one is repaired in 1800 s, an excluded one is ready
               slowdown    {"7": 1.5}: nodes that are slow now, and how many times as long they compute; others sound
               crashed     the node that has crashed since the last decision, the last of several; -1: none
        """
        since = state["steps"] - state["saved"]
        return ("save", 0) if since >= 300 else ("train", 300 - since)
'''


def _storms(seed: int | None) -> dict[str, int]:
    """Return the storms' seeds by name; a name does not reveal the seed."""
    seeds = PUBLISHED if seed is None else [1_000 * (seed + 1) + number for number in range(len(PUBLISHED))]
    return {f"storm {number}": storm_seed for number, storm_seed in enumerate(seeds, 1)}


def instances(seed: int | None = None) -> list[str]:
    """Describe the published storms, or those drawn from a seed."""
    return [f"{name}: {STEPS} steps on {NODES} nodes" for name in _storms(seed)]


def bounds(seed: int | None = None) -> dict[str, float]:
    """Return the seconds without any fault and without any save."""
    return dict.fromkeys(_storms(seed), float(STEPS))


def measure(
    source: str,
    name: str,
    advance: Callable[[str], None] = lambda text: None,
    seed: int | None = None,
    make: Callable[..., Cluster] = on_this_machine,
) -> list[Outcome]:
    """Run the text of a policy under each storm; stop after the first fault. name: of its file, without `.py`."""
    instances = _storms(seed).items()
    return outcomes_until_fault(instances, advance, lambda one: _measured(source, name, one, make))


def _measured(source: str, name: str, seed: int, make: Callable[..., Cluster]) -> Outcome:
    module, driver = f"challenges/{name}", "challenges/goodput_driver"
    job = Job(
        call=(driver, "play_on_ranks"),
        arguments=(((seed, module), {}), ((None, module), {})),
        modules={module: source, driver: _DRIVER},
        timeout=TIMEOUT,
        trace=False,
    )
    run = make(nnodes=2, nproc_per_node=1).run(job)
    if not run.ok:
        return Outcome(f"seed {seed}", math.nan, run.diagnosis())
    return carried_out(seed, _decisions(run))


def _decisions(run: Run) -> list[Decision]:
    value: Any = run.values[0]
    return [Decision(int(action), int(number)) for action, number in value]


def carried_out(seed: int, decisions: Sequence[Decision]) -> Outcome:
    """Return the outcome of these decisions under the storm of this seed."""
    storm = Storm(seed)
    try:
        for decision in decisions:
            storm.carry_out(decision)
    except ValueError as error:
        return Outcome(f"seed {seed}", math.nan, str(error))
    if not storm.done:
        return Outcome(f"seed {seed}", math.nan, f"the job is not done: {storm.steps} of {STEPS} steps")
    total = dict.fromkeys(("train", "save", "restart"), 0.0)
    for span in storm.spans:
        if span.what in total:
            total[span.what] += span.end - span.start
    crashes = sum(span.what == "repair" for span in storm.spans)
    parts = ", ".join(f"{what} {seconds:.0f} s" for what, seconds in total.items())
    note = f"goodput {STEPS / storm.seconds:.1%}, {crashes} crashes, {len(decisions)} decisions; {parts}"
    return Outcome(f"seed {seed}", storm.seconds, "", (note,), trace_of(storm.spans))


def trace_of(spans: Sequence[Span]) -> Trace:
    """Return what each node did as the trace of a rank."""
    events = [
        Event(node, Kind.COMPUTE, span.what, span.start, span.end)
        for span in spans
        for node in span.nodes
        if span.end > span.start
    ]
    return Trace(NODES, sorted(events, key=lambda event: event.start), "modelled", ranks_per_machine=1)
