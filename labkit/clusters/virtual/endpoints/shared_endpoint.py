"""An endpoint that the threads of one rank share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import inf
from typing import Any

from labkit.clusters.virtual.endpoints.rank_threads import RankThreads


class SharedEndpoint:
    """The part of an endpoint that lets several threads of its rank use it."""

    threads: RankThreads | None = None
    """None as long as the rank has one thread, which has not waited in a primitive either."""
    observer: Callable[[Any, str, Sequence[Any]], None] | None = None

    def sleep_for_any(self, waits: Sequence[tuple[Any, float]], restless: bool) -> Collection[Any]:
        raise NotImplementedError

    def call_back(self) -> None:
        raise NotImplementedError

    def share(self: Any) -> RankThreads:
        """Let several threads use this endpoint: each method takes the rank's turn first."""
        if self.threads is None:
            threads = self.threads = RankThreads(self)
            wait, tick, is_done = self.wait, self.tick, self.is_done

            def wait_in_turn(handle: Any, move_clock: bool = True, timeout: float = inf) -> Any:
                threads.enter()
                if threads.is_alone:
                    return wait(handle, move_clock, timeout)
                threads.wait(handle, self.now + timeout)
                return wait(handle, move_clock)

            def tick_in_turn(seconds: float) -> None:
                threads.enter()
                tick(seconds)
                threads.polled()

            def is_done_in_turn(handle: Any) -> bool:
                threads.enter()
                done: bool = is_done(handle)
                if not done:
                    threads.polled()
                return done

            for name in _QUICK:
                setattr(self, name, _in_turn(threads, getattr(self, name)))
            self.wait, self.tick, self.is_done, self.sleep = wait_in_turn, tick_in_turn, is_done_in_turn, threads.sleep
        shared: RankThreads = self.threads
        return shared

    def close(self, failed: bool) -> None:
        """End the rank's program."""
        if self.threads is not None:
            self.threads.close(failed)

    def share_no_longer(self: Any, refuse: Callable[..., Any]) -> None:
        """Disable the endpoint in a forked copy, where it is unknown whose turn it is."""
        for name in (*_QUICK, "wait", "tick", "is_done", "sleep") if self.threads is not None else ():
            setattr(self, name, refuse)


_QUICK = ("post", "work", "join_group", "leave_group", "done_at")


def _in_turn(threads: RankThreads, function: Callable[..., Any]) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        threads.enter()
        return function(*args, **kwargs)

    return called
