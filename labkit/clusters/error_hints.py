"""Hints for errors that learners often meet and whose messages do not say what to do."""

from __future__ import annotations

import re
from pathlib import PurePath

NOT_WRITTEN = "this part is not written yet"
"""Message for a gap in a template. Other NotImplementedErrors keep their own message."""

_KNOWN = [
    (
        r"Torch not compiled with CUDA|_cuda_\w+|No CUDA GPUs are available|Found no NVIDIA driver|"
        r"only supported for (the )?nccl",
        "torch finds no usable GPU here: choose the device with torch.cuda.is_available(), and use the gloo backend",
    ),
    (
        r"Unknown backend type|Invalid backend",
        "use gloo for CPUs or nccl for GPUs; if no backend is given, the lab chooses",
    ),
    (
        r"EADDRINUSE|Address already in use",
        "every rank runs this line, but only one of them can bind the port: let one rank listen, or use port 0",
    ),
    (
        r"^MemoryError|can't allocate memory|Cannot allocate memory|OutOfMemory|ran out of memory",
        "each rank holds its own data: use smaller tensors or fewer ranks",
    ),
    (
        r"^(EOFError.*reading a line|BdbQuit)",
        "ranks have no stdin: set the values in the cell, and use print instead of a debugger",
    ),
    (
        r"^SIGABRT: .*the last that it began was \w+ #",
        "gloo aborts like this when ranks disagree: all must pass tensors of the same shape and dtype",
    ),
    (
        r"Default process group has not been initialized",
        "call dist.init_process_group() first: each cell on ranks is a separate program",
    ),
    (
        r"DataLoader worker .*(exited unexpectedly|is killed by signal)",
        "the worker may have run out of memory; num_workers=0 shows the error itself",
    ),
    (
        r"^FrozenInstanceError: ",
        "objects of this class are frozen: use dataclasses.replace(old, name=value) instead",
    ),
]

_UNDEFINED = re.compile(r"name '\w+' is not defined")
_IN_CELL = "ranks do not see the notebook's variables: define or import it in this cell, or keep ranks with %%ranks"


def error_hint(kind: str, message: str, file: str = "") -> str:
    """One-line hint for the error `kind: message`, or an empty string.

    file: name of the learner's file in which it arose: of a cell, `Cell In[3]`; of an exercise's module, its path in
    the course; empty if unknown.
    """
    if kind == "NameError" and _UNDEFINED.fullmatch(message):
        return _hint_for_a_name(file)
    if (kind, message) == ("NotImplementedError", NOT_WRITTEN) and _in_exercise(file):
        name = PurePath(file).stem
        return (
            f"write it in the notebook of {name}, or put there what %solution {name} shows: cells run your modules, "
            "only checks take the solution of an exercise that another builds on"
        )
    text = f"{kind}: {message}"
    return next((hint for pattern, hint in _KNOWN if re.search(pattern, text)), "")


def _hint_for_a_name(file: str) -> str:
    if not file.endswith(".py"):
        return _IN_CELL if file else ""
    return f"define or import it in {file}, which sees no other names" if _in_exercise(file) else ""


def _in_exercise(file: str) -> bool:
    # a module of the learner's own, and a function of the notebook, have files with absolute paths
    return file.endswith(".py") and not file.startswith("/")
