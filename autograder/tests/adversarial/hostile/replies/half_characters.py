# Returns an object whose description holds lone surrogates, which no file can hold.
# marks: 0
# feedback: an object that is neither
__all__ = ["pass_around"]


class Half:
    def __repr__(self):
        return "left \udcff \ud800"


def pass_around(tensor):
    return Half()
