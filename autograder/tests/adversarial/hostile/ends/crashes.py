# Reads from address 0.
# marks: 0
# feedback: SIGSEGV at phase1_data_parallel/pass_around.py, line 11
import ctypes

__all__ = ["pass_around"]


def pass_around(tensor):
    ctypes.string_at(0)
