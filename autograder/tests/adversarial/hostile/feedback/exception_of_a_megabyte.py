# Raises with a megabyte of text, a thousand frames deep.
# marks: 0
# feedback: RuntimeError at phase1_data_parallel/pass_around.py | timeout
# never: 6 of 6 points
__all__ = ["pass_around"]


def deeper(count):
    if count:
        return deeper(count - 1)
    raise RuntimeError("6 of 6 points " * 80_000)


def pass_around(tensor):
    return deeper(900)
