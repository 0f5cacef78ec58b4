# Returns an empty tensor with so many dimensions that its shape would fill the page.
# marks: 0
# feedback: 5001 dimensions
# never: 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1
__all__ = ["pass_around"]


def pass_around(tensor):
    return tensor[:0].reshape([1] * 5000 + [0])
