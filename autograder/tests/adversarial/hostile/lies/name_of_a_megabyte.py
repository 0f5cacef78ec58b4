# Returns an object whose class has a name of a megabyte, with markup in it.
# marks: 0
# feedback: an object that is neither
# never: <b>right</b>
__all__ = ["pass_around"]

Long = type("<b>right</b>" * 100_000, (), {})


def pass_around(tensor):
    return Long()
