"""Out of memory: how to recognize the error, and how to free memory after it."""

from __future__ import annotations

import gc

import torch


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the error says that memory does not suffice: on a GPU, a virtual GPU or a CPU.

    torch raises RuntimeError, with these words, if the CPU's allocator fails.
    """
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


def release_memory() -> None:
    """Free tensors that only reference cycles hold, and give the cached blocks back to the GPU.

    Frees nothing that a variable, a running frame or the traceback of an exception still refers to.
    """
    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def require_batch(found: int | None, smallest: int) -> int:
    """Return `found`, a batch size. Raises `torch.OutOfMemoryError` if it is None."""
    if found is None:
        raise torch.OutOfMemoryError(f"out of memory: not even smallest={smallest} samples fit on every rank")
    return found
