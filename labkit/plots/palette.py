"""Colours: one meaning each, the same in every picture, apart for colour-blind readers too.

Kinds of event are from Okabe & Ito (2008), categories of memory from Paul Tol's "muted" set; `tests/plots` measures how
far apart they stay under the three kinds of colour blindness. No picture says anything by colour alone.
"""

from labkit.trace import Kind

KIND = {
    Kind.COMPUTE: "#0072B2",  # blue
    Kind.SEND: "#E69F00",  # orange
    Kind.RECEIVE: "#CC79A7",  # purple
    Kind.COLLECTIVE: "#009E73",  # green
}
TEXT_ON = {Kind.COMPUTE: "white", Kind.SEND: "black", Kind.RECEIVE: "black", Kind.COLLECTIVE: "white"}
IDLE = "#EDEDED"
MESSAGE = "#333333"
"""Arrows from a send to its receive."""

MEMORY = {
    "parameters": "#332288",  # indigo
    "gradients": "#DDCC77",  # sand
    "optimizer state": "#88CCEE",  # cyan
    "activations": "#AA4499",  # magenta
}

WRONG = "#D55E00"
RIGHT = IDLE

SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Curves that compare methods, in the order in which they are drawn."""
