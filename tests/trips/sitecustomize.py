"""Notes each function of the tree at its first call. Python imports this at its start if its folder is in PYTHONPATH.

A forked process goes on with the profiler, and notes its own functions. Environment: TRIP_TREE, the folder of the tree;
TRIP_FILE, the file that gets a line for each call: PID, and `FOLDER/FILE.py: FUNCTION`.
"""

from __future__ import annotations

import os
import sys
import threading
from types import FrameType
from typing import Any

_tree, _file = os.environ["TRIP_TREE"] + "/", os.environ["TRIP_FILE"]
_pid, _noted = os.getpid(), set[tuple[str, str]]()


def _note(frame: FrameType, event: str, _: Any) -> None:
    global _pid
    if event != "call":
        return
    if os.getpid() != _pid:
        _pid = os.getpid()
        _noted.clear()
    code = frame.f_code
    place = code.co_filename, code.co_qualname
    if place not in _noted:
        _noted.add(place)
        if code.co_filename.startswith(_tree):
            with open(_file, "ab", buffering=0) as file:  # one write: others write, too
                file.write(f"{_pid} {code.co_filename.removeprefix(_tree)}: {code.co_qualname}\n".encode())


sys.setprofile(_note)
threading.setprofile(_note)
