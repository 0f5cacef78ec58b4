# Its import never ends.
# marks: 0
# feedback: timeout
__all__ = ["pass_around"]

while True:
    pass


def pass_around(tensor):
    return tensor
