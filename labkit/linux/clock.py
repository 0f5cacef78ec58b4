"""The clock of limits and time-outs: whoever starts something chooses it; see docs/architecture.md."""

from __future__ import annotations

from collections.abc import Callable

_SHORTEST_WAIT_SECONDS = 0.02
"""Minimum time between two looks at a clock that may run slower than the wall clock."""

Clock = Callable[[], float]
"""Returns seconds: `time.monotonic`, or a clock that runs slower or stops.

If it jumps ahead, a limit is noticed late, but not later than it would be over by the wall clock.
"""


def wait_seconds(clock: Clock, *limits: float | None) -> float | None:
    """Wall-clock seconds to wait before the next look at `clock`: the earliest of `limits` may be over then.

    0 if it is over, None if there is no limit.
    """
    soonest = min((at for at in limits if at is not None), default=None)
    if soonest is None:
        return None
    left = soonest - clock()
    return max(_SHORTEST_WAIT_SECONDS, left) if left > 0 else 0.0
