"""A long training job under a seeded storm of faults, step by step on a clock of its own.

A job of `NODES` nodes must complete `STEPS` steps. With n nodes a step takes NODES / n seconds, as all share one global
batch, times the factor of the slowest of them. A crash costs the steps since the last checkpoint and a restart without
that node, which is repaired after a while and may then be taken in again. Taking nodes in or out costs a restart, too.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypedDict

NODES = 32
STEPS = 20_000
SAVE_SECONDS = 30.0
RESTART_SECONDS = 120.0
REPAIR_SECONDS = 1_800.0
MTBF_SECONDS = 400_000.0
"""Mean time between crashes of a sound node."""
UNSOUND_FACTOR = 40.0
"""Crash rate of an unsound node, as a multiple of a sound one's."""
STORM_FACTOR = 12.0
"""Crash rate of all nodes during a storm, as a multiple of the usual one."""
MOST_DECISIONS = 2_000
"""Maximum decisions of a policy."""
TRAIN, SAVE, EXCLUDE, INCLUDE = range(4)


class Decision(NamedTuple):
    """Next action of the policy: train so many steps, save, or restart without or with a node."""

    action: int
    number: int = 0
    """Number of steps, or of the node."""


class State(TypedDict):
    """Facts that a policy knows when it decides."""

    seconds: float
    """Seconds since the job began."""
    steps: int
    """Steps that are done."""
    saved: int
    """Steps in the last checkpoint."""
    nodes: list[int]
    """Nodes that are training."""
    ready: list[int]
    """Nodes that could be taken in."""
    slowdown: dict[str, float]
    """Computing time of each slow node that is training, as a multiple of a sound one's."""
    crashed: int
    """The node that has crashed since the last decision, the last one if there were several; -1: none."""


class Span(NamedTuple):
    """Time that nodes spent on one thing."""

    nodes: tuple[int, ...]
    what: str
    start: float
    end: float


@dataclass
class Storm:
    """One job under the storm of a seed."""

    seed: int
    seconds: float = 0.0
    steps: int = 0
    saved: int = 0
    spans: list[Span] = field(default_factory=list)

    def __post_init__(self) -> None:
        draw = random.Random(f"storm {self.seed}")
        horizon = 20 * STEPS
        storms = sorted(draw.uniform(0, 1.5 * STEPS) for _ in range(2))
        unsound = draw.sample(range(NODES), 2)
        self._crashes = [self._drawn_crashes(draw, node in unsound, storms, horizon) for node in range(NODES)]
        self._slow: list[list[tuple[float, float, float]]] = [[] for _ in range(NODES)]
        for _ in range(6):
            start = draw.uniform(0, 1.5 * STEPS)
            self._slow[draw.randrange(NODES)].append((start, start + draw.uniform(500, 6_000), draw.uniform(1.1, 2.0)))
        self._nodes = list(range(NODES))
        self._repaired: dict[int, float] = {}
        self._crashed = -1

    @staticmethod
    def _drawn_crashes(draw: random.Random, is_unsound: bool, storms: list[float], horizon: float) -> list[float]:
        """Draw the times at which a node crashes if it is training then: a Poisson process, by thinning."""
        times, now, highest = [], 0.0, STORM_FACTOR * (UNSOUND_FACTOR if is_unsound else 1.0) / MTBF_SECONDS
        while now < horizon:
            now += draw.expovariate(highest)
            stormy = any(start <= now < start + 2_000 for start in storms)
            if draw.random() < (1.0 if stormy else 1 / STORM_FACTOR):
                times.append(now)
        return times

    @property
    def done(self) -> bool:
        return self.steps >= STEPS

    def state(self) -> State:
        """Return the facts that a policy may know now."""
        slow = {str(node): self._factor(node) for node in self._nodes if self._factor(node) > 1}
        ready = [node for node, at in self._repaired.items() if at <= self.seconds]
        return {
            "seconds": self.seconds,
            "steps": self.steps,
            "saved": self.saved,
            "nodes": list(self._nodes),
            "ready": sorted(ready),
            "slowdown": slow,
            "crashed": self._crashed,
        }

    def carry_out(self, decision: Decision) -> None:
        """Carry out a decision, until it is complete or a node crashes. Raises ValueError for an impossible one."""
        action, number = decision
        self._crashed = -1
        if action == TRAIN:
            if number < 1:
                raise ValueError(f"train needs at least 1 step, got {number}")
            self._train(min(number, STEPS - self.steps))
        elif action == SAVE:
            if self._pass("save", SAVE_SECONDS):
                self.saved = self.steps
        elif action == EXCLUDE:
            if number not in self._nodes or len(self._nodes) == 1:
                raise ValueError(f"exclude: node {number} is not training, or the last that is")
            self._nodes.remove(number)
            self._repaired[number] = self.seconds
            self._restart()
        elif action == INCLUDE:
            if self._repaired.get(number, self.seconds + 1) > self.seconds:
                raise ValueError(f"include: node {number} is not ready")
            del self._repaired[number]
            self._nodes = sorted([*self._nodes, number])
            self._restart()
        else:
            raise ValueError(f"there is no action {action}")

    def _factor(self, node: int) -> float:
        return max((f for start, end, f in self._slow[node] if start <= self.seconds < end), default=1.0)

    def _train(self, steps: int) -> None:
        start, crash = self.seconds, self._next_crash()
        while steps:
            seconds = NODES / len(self._nodes) * max(map(self._factor, self._nodes))
            # steps before the next crash or change of speed; the step in which the speed changes keeps the old one
            alike = max(1, min(steps, int((self._next_change() - self.seconds) / seconds)))
            if crash < self.seconds + alike * seconds:
                self._note("train", start, crash)
                self._crash()
                return
            self.seconds += alike * seconds
            self.steps += alike
            steps -= alike
        self._note("train", start, self.seconds)

    def _next_change(self) -> float:
        edges = [edge for node in self._nodes for *span, _ in self._slow[node] for edge in span]
        return min((edge for edge in edges if edge > self.seconds), default=self.seconds + 2 * NODES * STEPS)

    def _pass(self, what: str, seconds: float) -> bool:
        """Let time pass; return whether no node has crashed in it."""
        start = self.seconds
        if self._next_crash() < start + seconds:
            self._note(what, start, self._next_crash())
            self._crash()
            return False
        self.seconds += seconds
        self._note(what, start, self.seconds)
        return True

    def _restart(self) -> None:
        self.steps = self.saved
        self._pass("restart", RESTART_SECONDS)

    def _next_crash(self) -> float:
        return min(self._crash_of(node) for node in self._nodes)

    def _crash_of(self, node: int) -> float:
        return next((at for at in self._crashes[node] if at >= self.seconds), float("inf"))

    def _crash(self) -> None:
        """Crash the next node, and restart from the last checkpoint without it; if none is left, wait for a repair."""
        node = self._crashed = min(self._nodes, key=self._crash_of)
        self.seconds = self._crash_of(node)
        self._nodes.remove(node)
        self._crashes[node] = [at for at in self._crashes[node] if at > self.seconds + REPAIR_SECONDS]
        self._repaired[node] = self.seconds + REPAIR_SECONDS
        self.spans.append(Span((node,), "repair", self.seconds, self.seconds + REPAIR_SECONDS))
        if not self._nodes:
            first = min(self._repaired, key=lambda broken: self._repaired[broken])
            self.seconds = max(self.seconds, self._repaired.pop(first))
            self._nodes = [first]
        self._restart()

    def _note(self, what: str, start: float, end: float) -> None:
        self.spans.append(Span(tuple(self._nodes), what, start, end))


def play(storm: Storm, decide: Callable[[State], Decision]) -> list[Decision]:
    """Let a policy decide until the job is done, and return its decisions. Raises ValueError for an impossible one."""
    decisions: list[Decision] = []
    while not storm.done:
        if len(decisions) == MOST_DECISIONS:
            raise ValueError(f"the job is not done after {MOST_DECISIONS} decisions: {storm.steps} of {STEPS} steps")
        decisions.append(decide(storm.state()))
        storm.carry_out(decisions[-1])
    return decisions
