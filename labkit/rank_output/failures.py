"""Render a failed run for learners: which rank failed, at which line of which cell or file, how the others ended."""

from __future__ import annotations

import linecache
from collections import defaultdict
from collections.abc import Callable

from labkit.clusters import RankError, RankResult, Run, hangs
from labkit.clusters.rank_lists import named_ranks, ranges

_RED, _BOLD = "\x1b[31m", "\x1b[1m"
GREEN, END = "\x1b[32m", "\x1b[0m"
"""Escape sequences of terminals, which JupyterLab understands: beginning of green text, and its end."""
_LINES_BEFORE, _LINES_AFTER = 2, 1
_MOST_CALLS = 6


def render(run: Run, name_of: Callable[[str], str] = str) -> list[str]:
    """Return the lines that are shown instead of a traceback, with colours.

    name_of: a file's name as people know it: `Cell In[3]` for IPython's temporary name of a cell.
    """
    first = run.first_failure
    if run.stopped or first is None:
        return [f"{_RED}{_BOLD}RankFailed{END}: {run.stopped}", *where_all_were(run, name_of)]
    return [*_failure(run, first, name_of), *_others(run, first, name_of)]


def _failure(run: Run, first: RankResult, name_of: Callable[[str], str]) -> list[str]:
    """The rank that failed first, its line, and the calls that led there."""
    alike = run.alike(first)
    head = run.headline(first, alike)
    error = first.error
    if error is None:
        return [f"{_RED}{_BOLD}RankFailed{END}: {head}"]
    # a cell may have run on some of the ranks only
    of = f" of {max(len(run.ranks), run.trace.world_size)}" if head == f"{error.type} on {named_ranks(alike)}" else ""
    lines = [f"{_RED}{_BOLD}RankFailed{END}: {head}{of}"]
    calls = error.frames[:-1]
    if len(calls) > _MOST_CALLS:
        lines += [_call(frame, name_of) for frame in calls[:2]]
        lines.append(f"  ... {len(calls) - _MOST_CALLS} more calls ...")
        calls = calls[2 - _MOST_CALLS :]
    lines += [_call(frame, name_of) for frame in calls]
    if error.frames:
        lines += _excerpt(*error.frames[-1], name_of)
    if error.locals:
        lines.append("      " + ", ".join(f"{name} = {shown}" for name, shown in error.locals))
    advice = run.what_to_try()
    # for a lost connection, the findings explain more than the message
    if not error.says_nothing and not (error.consequence and advice):
        lines.append(f"{_RED}{error.type}{END}: {error.message}" if error.frames else error.message)
    return [*lines, *map(_finding, advice)]


def _others(run: Run, first: RankResult, name_of: Callable[[str], str]) -> list[str]:
    """Describe how the other ranks ended: first those that failed on their own, then those that others stopped."""
    own: dict[tuple[str, str], list[int]] = defaultdict(list)
    messages: dict[tuple[str, str], str] = {}
    drawn_in = []
    already_named = set(run.alike(first))
    for result in run.ranks:
        error = result.error
        if result.rank in already_named or (error is None and result.exit == 0):
            continue
        if error is None or error.consequence:
            drawn_in.append(result.rank)
        else:
            own[error.type, _where(error, name_of)].append(result.rank)
            messages.setdefault((error.type, _where(error, name_of)), error.message)
    if first.error is not None:
        # the same error at the same line: one message is enough
        messages[first.error.type, _where(first.error, name_of)] = ""
    lines = []
    for (kind, where), ranks in own.items():
        message = messages[kind, where].split("\n")[0]
        at = f" at {where}" if where else ""
        lines.append(f"also {kind} on {named_ranks(ranks)}{at}{': ' if message else ''}{message}")
    return [*lines, f"{named_ranks(drawn_in)} stopped because of it"] if drawn_in else lines


def where_all_were(run: Run, name_of: Callable[[str], str] = str) -> list[str]:
    """Return where each rank was when the lab stopped them all."""
    if run.statuses:
        return [*hangs.table(run.statuses), *map(_finding, hangs.findings(run.statuses))]
    places: dict[str, list[int]] = defaultdict(list)
    for result in run.ranks:
        if result.error is not None and result.error.frames:
            *_, text = result.error.frames[-1]
            places[f"was at {_where(result.error, name_of)}: {text}"].append(result.rank)
        elif result.error is not None:
            places[f"{result.error.type}: {result.error.message}"].append(result.rank)
        else:
            places["had ended" if result.exit == 0 else "was stopped"].append(result.rank)
    return [f"[{ranges(ranks)}] {place}" for place, ranks in places.items()]


def _finding(line: str) -> str:
    tried = line.removeprefix("try: ")
    return f"{_BOLD}{line}{END}" if tried == line else f"{GREEN}try:{END} {tried}"


def _call(frame: tuple[str, int, str, str], name_of: Callable[[str], str]) -> str:
    file, number, _, text = frame
    # a rank that runs a function from the notebook does not have the source of its cell
    return f"  {name_of(file)}, line {number}: {text or linecache.getline(file, number).strip()}"


def _where(error: RankError, name_of: Callable[[str], str]) -> str:
    """`Cell In[3], line 5`; empty when no line of the learner's code is known."""
    return f"{name_of(error.file)}, line {error.frames[-1][1]}" if error.frames else ""


def _excerpt(file: str, number: int, function: str, text: str, name_of: Callable[[str], str]) -> list[str]:
    """The failing line with its neighbours."""
    inside = f", in {function}" if function != "<module>" else ""
    lines = [f"  {GREEN}{name_of(file)}, line {number}{END}{inside}"]
    for near in range(max(1, number - _LINES_BEFORE), number + _LINES_AFTER + 1):
        line = linecache.getline(file, near).rstrip()
        if near == number:
            lines.append(f"{GREEN}----> {near}{END} {line or text}")
        elif line:
            lines.append(f"{near:>{6 + len(str(number))}} {line}")
    return lines
