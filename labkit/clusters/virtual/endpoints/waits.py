"""The threads of a rank, what each waits for, and where in the program."""

from __future__ import annotations

import _thread
import sys
import threading
from math import inf
from pathlib import Path
from types import FrameType
from typing import Any

from labkit.clusters.program import line_of
from labkit.clusters.virtual.scheduler.requests import Blocked

_PRIMITIVES = (
    threading.__file__,
    str(Path(threading.__file__).with_name("queue.py")),
    str(Path(threading.__file__).parent / "concurrent"),
    str(Path(__file__).parents[1] / "isolation" / "synchronization.py"),
)
_STANDARD_LIBRARY = f"{Path(threading.__file__).parent}/"
_PACKAGES = tuple(f"{_STANDARD_LIBRARY}{name}/" for name in ("site-packages", "dist-packages"))
_LAB = tuple(f"{Path(__file__).parents[3] / name}/" for name in ("clusters", "transport"))
_ISOLATION = f"{Path(__file__).parents[1] / 'isolation'}/"
"""The lab's code between the program and the standard library."""


class RankThread:
    """One thread of a rank."""

    def __init__(self, thread: threading.Thread) -> None:
        self.thread = thread
        self.ident = thread.ident
        self.native_id = thread.native_id
        self.signal = _thread.allocate_lock()
        """Released when there is something to do for this thread."""
        self.signal.acquire()
        self.ended = False
        self.joining: list[Wait] = []
        """Waits for its end."""
        self.polls = 0
        """Number of unsuccessful polls since it last waited."""
        self.polling_since = 0.0

    @property
    def frame(self) -> FrameType | None:
        """Its innermost frame; None if it has not begun, or has ended."""
        return None if self.ident is None else sys._current_frames().get(self.ident)

    @property
    def description(self) -> str:
        """Its name and the learner's line that it is at."""
        frame = self.frame
        where = line_of(frame)
        function = frame.f_code.co_name if frame is not None else "nothing"
        return f"{self.thread.name} in {function}{' at ' * bool(where)}{where}"

    @property
    def is_in_lab(self) -> bool:
        """Whether it runs the lab's code, or the standard library's for it; also when it has just ended."""
        frame = self.frame
        while frame is not None and frame.f_code.co_filename.startswith(_STANDARD_LIBRARY):
            if frame.f_code.co_filename.startswith(_PACKAGES):
                return False
            frame = frame.f_back
        file = "" if frame is None else frame.f_code.co_filename
        return frame is None or (file.startswith(_LAB) and not file.startswith(_ISOLATION))

    def blocked(self, name: str) -> Blocked:
        """A request that describes its present wait in a primitive. name: of the thread; empty: the rank's own."""
        frame = self.frame
        return Blocked("", _primitive(frame), line_of(frame), name)


class Wait:
    """One wait of a thread: for a request, or in a primitive until somebody wakes it or its time is over."""

    def __init__(self, thread: RankThread) -> None:
        self.thread = thread
        self.handle: Any = None
        """The request that it waits for."""
        self.limit = inf
        """Time on the clock at which the request fails."""
        self.deadline = inf
        """Time on the clock at which a wait in a primitive ends."""
        self.woken = False
        self.blocked: Any = None
        """The request that tells the scheduler of a wait in a primitive without a time limit, once there is one."""
        self.failed = False
        """Whether the scheduler knows that no thread will wake it."""


class _Running(threading.local):
    thread: RankThread | None = None
    """The running thread among those of its rank, once there are several."""


running = _Running()


def _primitive(frame: FrameType | None) -> str:
    """The function of `threading` or `queue` that the thread waits in, as the program called it."""
    name = "a wait"
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_PRIMITIVES):
            name = frame.f_code.co_qualname
        elif name != "a wait":
            break
        frame = frame.f_back
    return name
