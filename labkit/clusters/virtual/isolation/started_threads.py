"""Threads that a rank starts work for that rank."""

from __future__ import annotations

import functools
import sys
import threading
from contextlib import nullcontext
from typing import Any

import torch

from labkit import exercises
from labkit.clusters.virtual.isolation import synchronization
from labkit.clusters.virtual.isolation.current import begin, here, leave_scheduler_at_fork
from labkit.torch_versions.ranks import hand_on_world


def follow_threads() -> None:
    """Let threads that a rank starts work for that rank, one at a time; it cannot be reached in processes it forks."""
    begin()
    make, start = threading.Thread.__init__, threading.Thread.start

    @functools.wraps(make)
    def make_for_rank(self: threading.Thread, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        if here.endpoint is not None:
            own: Any = self
            own._started = synchronization.Started()

    def start_for_rank(self: threading.Thread) -> None:
        rank, endpoint, clock, starts = here.rank, here.endpoint, here.clock, getattr(self, "_started", None)
        if endpoint is None or clock is None or starts is None or starts.is_set():
            start(self)
            return
        own: Any = self
        if synchronization.is_of_no_rank(self, sys._getframe(1).f_code.co_filename):
            start(self)
            return
        run, adopt_exercises, adopt_world = self.run, exercises.hand_on(), hand_on_world()
        threads = endpoint.share()
        own._rank_thread = new = threads.begin(self)

        def run_for_rank() -> None:
            here.rank, here.endpoint, here.clock, here.is_started = rank, endpoint, clock, True
            try:
                threads.take_first_turn(new)
                adopt_exercises()
                adopt_world()
                with torch.autograd.set_multithreading_enabled(False), rank.in_thread() if rank else nullcontext():
                    run()
            except BaseException:  # shown while the thread has the turn
                own._invoke_excepthook(self)
            finally:
                threads.end(new)

        own.run = run_for_rank
        try:
            start(self)
        except BaseException:
            threads.end(new)
            raise

    replaced: Any = threading.Thread
    replaced.__init__, replaced.start = make_for_rank, start_for_rank
    leave_scheduler_at_fork()
