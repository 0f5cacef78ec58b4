"""What to try when a rank fails with an error that learners often meet, where its own message does not say."""

from __future__ import annotations

import re

_KNOWN = [
    (
        r"Torch not compiled with CUDA|_cuda_\w+|No CUDA GPUs are available|Found no NVIDIA driver|"
        r"only supported for (the )?nccl",
        "torch can use no GPU here: choose the device by torch.cuda.is_available(), and gloo as the backend",
    ),
    (
        r"Unknown backend type|Invalid backend",
        "the backends are gloo, for CPUs, and nccl, for GPUs; with none, the lab chooses",
    ),
    (
        r"EADDRINUSE|Address already in use",
        "each rank runs this line, and only one of them can have a port: let one rank listen, or ask for port 0",
    ),
    (
        r"^MemoryError|can't allocate memory|Cannot allocate memory|OutOfMemory|ran out of memory",
        "each rank holds data of its own: make tensors smaller, or take fewer ranks",
    ),
    (
        r"^(EOFError.*reading a line|BdbQuit)",
        "nobody's keyboard reaches a rank: give it what it needs in the cell, and print in place of a debugger",
    ),
    (
        r"^SIGABRT: .*the last that it began was \w+ #",
        "gloo ends a process so when ranks differ: all must give tensors of the same shape and dtype",
    ),
    (
        r"Default process group has not been initialized",
        "call dist.init_process_group() first: each cell on ranks is a program of its own",
    ),
    (
        r"DataLoader worker .*(exited unexpectedly|is killed by signal)",
        "its memory may have run out; with num_workers=0 the error itself is shown",
    ),
    (
        r"^FrozenInstanceError: ",
        "objects of this class are frozen: make a new one, dataclasses.replace(old, name=value)",
    ),
    (
        r"^NameError: name '(\w+)' is not defined$",
        "ranks do not know the notebook's variables: define or import it in this cell, or keep ranks with %%ranks",
    ),
]


def advice(kind: str, message: str) -> str:
    """One line for the error `kind: message`, or an empty string."""
    text = f"{kind}: {message}"
    return next((said for pattern, said in _KNOWN if re.search(pattern, text)), "")
