"""Call a function with variables of the learner's notebook, by the names of its parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any


class NotReady(Exception):
    """The answer cannot be found out yet; the message says what to do, for the learner."""

    missing: bool = False
    """Whether the notebook does not have the variables yet."""


def supplied(function: Callable[..., Any], names: Mapping[str, Any]) -> Any:
    """Return `function`'s value, with `names` for its parameters. Raises `NotReady`."""
    wanted = inspect.signature(function).parameters
    if absent := [name for name in wanted if name not in names]:
        listed = ", ".join(f"`{name}`" for name in absent)
        problem = NotReady(f"this needs {listed} from an earlier cell: run the cells above, then try again")
        problem.missing = True
        raise problem
    try:
        return function(**{name: names[name] for name in wanted})
    except Exception as error:
        first = str(error).strip().splitlines()[:1]
        raised = ": ".join([type(error).__name__, *first])
        raise NotReady(
            f"the answer comes from a run of your own code, which ends in `{raised}`: complete the exercise cell, "
            "run it and the cells that use it, then try again"
        ) from error
