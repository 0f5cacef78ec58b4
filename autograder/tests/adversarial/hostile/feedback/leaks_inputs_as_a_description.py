# Describes its result by the hidden input, a line that looks like a passed check, and ANSI escapes.
# marks: 0
# feedback: an object that is neither
# never: hidden input
__all__ = ["pass_around"]


class Told:
    def __init__(self, tensor):
        self.text = f"hidden input {tensor.tolist()}\x1b[2J\nok   2/2   every rank has the sum\n"

    def __repr__(self):
        return self.text


def pass_around(tensor):
    return Told(tensor)
