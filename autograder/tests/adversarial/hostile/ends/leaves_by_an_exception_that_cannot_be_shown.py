# Raises a non-Exception whose text, repr and name all raise.
# marks: 0
# feedback: an exception
__all__ = ["pass_around"]


class Shy(type):
    @property
    def __name__(cls):
        raise SystemExit(0)


class Untold(BaseException, metaclass=Shy):
    def __str__(self):
        raise KeyboardInterrupt

    __repr__ = __str__


def pass_around(tensor):
    raise Untold
