"""All code that depends on torch's version: the private parts of torch that the lab uses, under public names.

torch 2.13's names `all_gather_single` and `reduce_scatter_single` are `_allgather_base` and `_reduce_scatter_base` in
older versions; process groups written in Python define both.
"""

OLDEST, NEWEST = (2, 11), (2, 14)
"""Range of supported torch versions, (major, minor), both included."""
