# Returns nested lists, eight in each: displaying all of them takes longer than making them.
# marks: 0
# feedback: [8 values]
__all__ = ["pass_around"]


def pass_around(tensor):
    tree = 0
    for _ in range(30):
        tree = [tree, *[[]] * 7]
    return [tree] * 8
