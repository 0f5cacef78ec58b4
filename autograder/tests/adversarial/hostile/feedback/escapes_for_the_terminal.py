# Sends escapes to the terminal: clears it, sets its title, asks it to type, turns text around.
# marks: 0
# feedback: [an object that is neither a plain tensor nor a number, a string]
# never: \x1b
# never: \u202e
# never: \x9b
__all__ = ["pass_around"]

ESCAPES = "\x1b[2J\x1b]0;taken over\x07\x1b[6n\x9b31m\u202eright\u2066\r\b\0"


class Told:
    def __repr__(self):
        return ESCAPES


def pass_around(tensor):
    print(ESCAPES)
    return [Told(), ESCAPES]
