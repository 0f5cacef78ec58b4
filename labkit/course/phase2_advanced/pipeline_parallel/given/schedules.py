"""Schedules of pipeline parallelism: what each rank does in each slot, how long it takes, what it keeps."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Literal, NamedTuple

Op = Literal["forward", "backward"]


class Action(NamedTuple):
    """One forward or backward pass of one rank, in one slot."""

    time: int
    """Number of the slot, from 0."""
    stage: int
    """Rank within the group."""
    op: Op
    microbatch: int
    chunk: int = 0
    """Number of the stage among those of the rank."""


Schedule = Sequence[Action]
"""Actions of all ranks, in order of time."""
Step = tuple[Op, int, int]
"""One step of a rank, without its time: op, microbatch, chunk."""


class StageStep(NamedTuple):
    """The forward or backward of one microbatch through one stage."""

    op: Op
    stage: int
    """Number of the stage over all ranks and chunks: chunk * ranks + rank."""
    microbatch: int

    def prerequisites(self, num_stages: int) -> list[StageStep]:
        """Return the steps that must be done before this one, in a pipeline of `num_stages` stages."""
        if self.op == "forward":
            return [self._replace(stage=self.stage - 1)] if self.stage else []
        later = [self._replace(stage=self.stage + 1)] if self.stage < num_stages - 1 else []
        return [self._replace(op="forward"), *later]


def schedule_orders(orders: Sequence[Sequence[Step]]) -> list[Action]:
    """Put each step into the earliest possible slot: after the rank's previous step and after all prerequisites.

    orders: for each rank, its steps in order. Raises ValueError if the ranks wait for each other forever.
    """
    ranks, num_stages = len(orders), len(orders) * (1 + max(chunk for order in orders for _, _, chunk in order))
    remaining = [deque(order) for order in orders]
    free, done = [0] * ranks, dict[StageStep, int]()  # first slot in which a rank is free, or a step's result is there
    schedule: list[Action] = []
    while any(remaining):
        before = len(schedule)
        for rank, steps in enumerate(remaining):
            while steps:
                op, microbatch, chunk = steps[0]
                step = StageStep(op, chunk * ranks + rank, microbatch)
                needed = step.prerequisites(num_stages)
                if not all(need in done for need in needed):
                    break
                time = max([free[rank], *(done[need] for need in needed)])
                free[rank] = done[step] = time + 1
                schedule.append(Action(time, rank, op, microbatch, chunk))
                steps.popleft()
        if len(schedule) == before:
            waiting = [f"rank {rank} at {steps[0][0]} {steps[0][1]}" for rank, steps in enumerate(remaining) if steps]
            raise ValueError(
                f"orders must let some rank go on, all wait for each other after {before} actions: "
                f"{', '.join(waiting[:4])}{', ...' * (len(waiting) > 4)}"
            )
    return sorted(schedule)


def bubble_fraction(schedule: Schedule) -> float:
    """Return the share of slots in which ranks are idle, from the first action to the end of the last."""
    slots = max(action.time for action in schedule) + 1
    ranks = len({action.stage for action in schedule})
    return 1 - len(schedule) / (slots * ranks)


def most_in_flight(schedule: Schedule) -> list[int]:
    """For each rank, return the most forwards that ever wait for their backward, over all its chunks together."""
    waiting, most = Counter[int](), Counter[int]()
    for action in schedule:
        waiting[action.stage] += 1 if action.op == "forward" else -1
        most[action.stage] = max(most[action.stage], waiting[action.stage])
    return [most[rank] for rank in sorted(most)]
