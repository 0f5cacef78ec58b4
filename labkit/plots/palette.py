"""Colours: one meaning each, the same in every picture, and distinguishable for colour-blind readers.

Kinds of event are from Okabe & Ito (2008), categories of memory from Paul Tol's "muted" set; `tests/plots` measures
their distances under the three kinds of colour blindness. No picture conveys anything by colour alone.
"""

from labkit.trace import Category, Kind

KIND = {
    Kind.COMPUTE: "#0072B2",  # blue
    Kind.SEND: "#E69F00",  # orange
    Kind.RECEIVE: "#CC79A7",  # purple
    Kind.COLLECTIVE: "#009E73",  # green
}
LIGHT_TEXT, DARK_TEXT = "#FEFEFE", "#010101"
"""Text on a coloured area, on any page. Text on the page itself is "black", which `DARK_PAGE` replaces."""
TEXT_ON = {Kind.COMPUTE: LIGHT_TEXT, Kind.SEND: DARK_TEXT, Kind.RECEIVE: DARK_TEXT, Kind.COLLECTIVE: LIGHT_TEXT}
IDLE = "#EDEDED"
MESSAGE = "#333333"
"""Arrows from a send to its receive."""
PATH = "#000000"
"""The critical path."""
DARK_IDLE, DARK_MESSAGE, DARK_PATH = "#333333", "#DDDDDD", "#FFFFFF"
"""Colours on JupyterLab's dark page, where kinds keep their colours."""

MEMORY = {
    Category.PARAMETER: "#332288",  # indigo
    Category.GRADIENT: "#DDCC77",  # sand
    Category.OPTIMIZER: "#88CCEE",  # cyan
    Category.ACTIVATION: "#AA4499",  # magenta
    Category.COMMUNICATION: "#44AA99",  # teal
    Category.OTHER: "#BBBBBB",  # grey
}
TEXT_ON_MEMORY = {
    Category.PARAMETER: "#FFFFFF",
    Category.GRADIENT: DARK_TEXT,
    Category.OPTIMIZER: DARK_TEXT,
    Category.ACTIVATION: LIGHT_TEXT,
    Category.COMMUNICATION: DARK_TEXT,
    Category.OTHER: DARK_TEXT,
}
"""Parameters have another colour on a dark page: their text is replaced with it."""
CAPACITY = "#D55E00"
"""The line above which a rank is out of memory."""

STEP = {
    "compute": KIND[Kind.COMPUTE],
    "communication": KIND[Kind.COLLECTIVE],
    "bubble": IDLE,
    "waiting": MEMORY[Category.OTHER],
    "optimizer": MEMORY[Category.OPTIMIZER],
    "data": KIND[Kind.RECEIVE],
}
"""Kinds of a predicted step's terms."""
HELD = {
    "parameters": MEMORY[Category.PARAMETER],
    "gradients": MEMORY[Category.GRADIENT],
    "optimizer": MEMORY[Category.OPTIMIZER],
    "activations": MEMORY[Category.ACTIVATION],
    "buffers": MEMORY[Category.COMMUNICATION],
    "reserved": MEMORY[Category.OTHER],
}
"""Categories of a prediction's memory."""

WRONG = "#D55E00"
RIGHT = IDLE

NOTE, FAINT, OUTLINE, GRID = "#555555", "#999999", "#CCCCCC", "#E5E5E5"
"""Greys: secondary text, what is not reached yet, borders of boxes, lines of a grid."""

ORDER = "cividis"
"""Colour map for positions in an order: matplotlib's, designed for colour-blind readers."""

SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Curves that compare methods, in the order in which they are drawn."""

DARK_PAGE = {
    "#FFFFFF": "#111111",
    "#000000": "#E0E0E0",
    IDLE: DARK_IDLE,
    MESSAGE: DARK_MESSAGE,
    NOTE: "#B5B5B5",
    FAINT: "#8E8E8E",
    OUTLINE: "#5A5A5A",
    GRID: "#2C2C2C",
    MEMORY[Category.PARAMETER]: "#8577E8",
    MEMORY[Category.OTHER]: "#6E6E6E",
}
"""Replacements on a dark page; other colours are the same on both. The page's own colour is JupyterLab's."""


def shade(share: float) -> tuple[float, float, float]:
    """Colour for a share of a whole, from nearly white to the colour of computing."""
    red, green, blue = (int(KIND[Kind.COMPUTE][i : i + 2], 16) / 255 for i in (1, 3, 5))
    pale = 0.9 * (1 - share)
    return (red + (1 - red) * pale, green + (1 - green) * pale, blue + (1 - blue) * pale)
