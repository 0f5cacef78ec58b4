# Never returns, and never lets another thread run.
# marks: 0
# feedback: timeout
__all__ = ["pass_around"]


def pass_around(tensor):
    while True:
        pass
