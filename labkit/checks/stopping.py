"""Explain what ended a run without revealing its inputs.

Most facts about a failure are reported by the rank that failed: types, texts, file names, line numbers. A learner
could write hidden inputs there to read them. So the words here are our own; from the rank they repeat only names that
Python, torch and the lab define, rank numbers, lines that exist in the learner's modules, and limits of storage, which
the sandbox has checked.
"""

from __future__ import annotations

import builtins
import re
import signal
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from labkit.checks.attribution import is_of_the_lab_on_a_rank
from labkit.checks.guidance.todos import Todo, todo_at
from labkit.checks.ranks import ProcessRun, Submission
from labkit.clusters import Run, cycles, storage_limits
from labkit.clusters.forkserver.time_limit import NO_ANSWER
from labkit.clusters.rank_lists import named_ranks
from labkit.clusters.rank_result import RankError
from labkit.clusters.rank_status import PendingOperation, RankStatus
from labkit.clusters.virtual.scheduler.errors import SCHEDULER_FAILED

_PLACE = re.compile(r"(.{1,200}), line ([0-9]{1,7})")
_LAB_ERRORS = ("DeadlockError", "MismatchError", "PeerFailed", "OutOfMemoryError", "ProtocolError", "UsedBeforeWait")
_OPERATIONS = (
    "send", "isend", "recv", "irecv", "all_reduce", "reduce", "broadcast", "barrier", "all_gather", "gather",
    "scatter", "reduce_scatter", "all_to_all", "monitored_barrier",
)  # fmt: skip

_MEANING = {
    "SyntaxError": "Python cannot parse the module, so none of it ran.",
    "IndentationError": "Python cannot parse the module, so none of it ran.",
    "TabError": "Python cannot parse the module, so none of it ran.",
    "NotImplementedError": "The function called is not implemented for this input, or on these ranks.",
    "NameError": "A name is used that is not defined.",
    "AttributeError": "An object or a module has no attribute of that name: is it misspelt, or is the object None?",
    "TypeError": "A function or an operator does not accept its arguments: None, another type, too many arguments.",
    "IndexError": "An index is out of range.",
    "KeyError": "A dict has no such key.",
    "ZeroDivisionError": "It divided by zero.",
    "DeadlockError": "Ranks wait for each other, or for a rank that does not make the call that they wait for.",
    "UsedBeforeWait": "A tensor was used before wait() was called on the work that fills or sends it.",
    "UnboundLocalError": "A variable is used before it has a value.",
    "ImportError": "The module imported there is not installed in the grading environment.",
    "ModuleNotFoundError": "The module imported there is not installed in the grading environment.",
    "AssertionError": "An assert statement failed.",
    "RecursionError": "A function calls itself again and again: it needs a case in which it returns.",
    "MemoryError": "It asked for more memory than there is.",
    "OutOfMemoryError": "It asked for more memory than the GPU has.",
    "MismatchError": "Two ranks disagree about a message or a collective: in shape, dtype or operation.",
    "ProtocolError": "It sent something that ranks may not send, or more than they may.",
    "FrozenInstanceError": "Objects of this class are frozen: use dataclasses.replace(old, name=value) instead.",
    "SystemExit": "It exited before the function returned.",
    "PermissionError": "Submissions may not do this in the grading environment.",
}
_UNWRITTEN = "It called a part that is not written yet."
_SYNTAX = re.compile(
    r"""invalid\ syntax(\.\ Perhaps\ you\ forgot\ a\ comma\?|\.\ Maybe\ you\ meant\ '=='\ or\ ':='\ instead\ of\ '='\?)?
    | expected\ '[:()=]'
    | expected\ an\ indented\ block\ after\ (function\ definition|class\ definition
      |'(if|elif|else|for|while|with|try|except|finally|match|case)'\ statement)\ on\ line\ (?P<line>[0-9]{1,6})
    | '[(\[{]'\ was\ never\ closed | unmatched\ '[)\]}]'
    | closing\ parenthesis\ '[)\]}]'\ does\ not\ match\ opening\ parenthesis\ '[(\[{]'
      (\ on\ line\ (?P<opened>[0-9]{1,6}))?
    | unexpected\ indent | unindent\ does\ not\ match\ any\ outer\ indentation\ level
    | inconsistent\ use\ of\ tabs\ and\ spaces\ in\ indentation
    | unterminated\ (f-)?(triple-quoted\ )?(f-)?string\ literal\ \(detected\ at\ line\ (?P<detected>[0-9]{1,6})\)
    | unexpected\ (EOF\ while\ parsing|character\ after\ line\ continuation\ character)
    | ('return'|'yield'|'await')\ outside\ (async\ )?function | ('break'|'continue')\ (outside|not\ properly\ in)\ loop
    | positional\ argument\ follows\ keyword\ argument | invalid\ decimal\ literal""",
    re.VERBOSE,
)
"""Python's messages for modules that it cannot parse, as far as they contain only Python's own words."""

_AT_END = re.compile(r" \([^()]{1,200}, line [0-9]{1,7}\)$")
"""The position that Python appends."""

_KEPT_BACK = "The exception's text is not shown, since it may contain the check's inputs."
_SIGNALS = {
    "SIGKILL": "It was killed: by its own code, or because it used more memory or time than is allowed.",
    "SIGSEGV": "It accessed memory that it does not own (segmentation fault).",
    "SIGBUS": "It accessed memory that does not exist (bus error).",
    "SIGABRT": "A library aborted the process.",
    "SIGFPE": "It divided an integer by zero.",
    "SIGILL": "It executed an invalid machine instruction.",
    "SIGTERM": "It was asked to terminate.",
    "SIGXCPU": "It used more CPU time than is allowed.",
    "SIGXFSZ": "It wrote a larger file than is allowed.",
    "SIGSYS": "It made a system call that submissions may not make.",
}


@dataclass(frozen=True)
class Stop:
    """Reason why a run failed."""

    text: str
    """`DeadlockError at phase3_multi_node/ring_allreduce.py, line 12`; the same for the same failure."""
    why: str
    line: int
    """Line in the exercise's own module; 0 if unknown or in another module."""
    unwritten: bool
    """Whether it failed by calling a gap of the template."""
    of_the_lab: bool
    """Whether the lab failed, and not the submission."""
    todo: Todo
    """The TODO to which that line belongs, with number 0 if unknown."""


def what_stopped(run: Run, submission: Submission) -> Stop:
    """Describe the first failure of `run`."""
    first = run.first_failure
    error = first.error if first else None
    unwritten = error is not None and error.is_gap
    where = _place(error.where, submission) if error else ""
    of_the_lab = error is not None and not run.stopped and is_of_the_lab_on_a_rank(error)
    if run.stopped:
        # without the number of seconds, which differs from check to check
        kind = run.stopped.split(" after ")[0]
        if kind.startswith("timeout"):
            why = _unfinished_ranks(run.statuses, submission)
        elif kind.startswith(SCHEDULER_FAILED):
            of_the_lab, why = True, ""
        else:
            why = "Its sandbox was ended for this reason."
        where = where or next((line for s in run.statuses if (line := _place(s.line, submission))), "")
        if kind.startswith(NO_ANSWER):  # then it is chance whether their position is known
            where = ""
    elif error is not None:
        kind = _kind(error)
        is_known_deadlock = error.type == "DeadlockError" and not isinstance(run, ProcessRun)
        waits = _who_waits(run.statuses, submission) if is_known_deadlock else ""
        who = "" if first is None or len(run.ranks) == 1 else _who(run.alike(first), len(run.ranks))
        syntax = _syntax(kind, error, submission)
        full = storage_limits.limit_in(error.message)
        known = f"{full[:1].upper()}{full[1:]}." if full else _MEANING.get(kind) or _SIGNALS.get(kind, _KEPT_BACK)
        meaning = _UNWRITTEN if unwritten else known
        why = waits or " ".join(filter(None, [who, meaning, syntax]))
    else:
        name = _signal(first.exit) if first else ""
        kind = "a rank that ended early"
        ended = f"rank {first.rank} exited before the function returned." if first else ""
        why = f"Rank {first.rank} was killed by {name}. {_SIGNALS.get(name, '')}" if first and name else ended
    at = f" at {where}" if where else ""
    why = why.strip()
    number = _line(where, submission)
    todo = todo_at(submission.exercise, submission.source, number) if number else Todo(0, "", 0)
    return Stop(kind + at, why[:1].upper() + why[1:], number, unwritten and not run.stopped, of_the_lab, todo)


def _kind(error: RankError) -> str:
    """The error's type if Python or the lab defines it, else `an exception`."""
    known = hasattr(builtins, error.type) or error.type in (*_LAB_ERRORS, *_SIGNALS, "FrozenInstanceError")
    return error.type if known else "an exception"


def _syntax(kind: str, error: RankError, submission: Submission) -> str:
    """Python's message for a module that it cannot parse, if known: a rank could send any text."""
    message = _AT_END.sub("", error.message)
    known = _SYNTAX.fullmatch(message) if kind in ("SyntaxError", "IndentationError", "TabError") else None
    if known is None:
        return ""
    lines = max(text.count("\n") + 1 for text in submission.modules.values())
    if any(number is not None and not 0 < int(number) <= lines for number in known.groupdict().values()):
        return ""
    return f"Python says: {message}."


def _place(place: str, submission: Submission) -> str:
    """`phase3_multi_node/ring_allreduce.py, line 12` if a module of the learner has that line, else an empty string."""
    match = _PLACE.fullmatch(place)
    if match is None:
        return ""
    texts = {f"{name}.py": text for name, text in submission.modules.items()}
    lines = texts.get(match[1], "").count("\n") + 1 if match[1] in texts else 0
    return f"{match[1]}, line {int(match[2])}" if 0 < int(match[2]) <= lines else ""


def _line(place: str, submission: Submission) -> int:
    file, _, number = place.rpartition(", line ")
    return int(number) if file == submission.exercise.filename else 0


def _who(ranks: Sequence[int], world_size: int) -> str:
    if len(ranks) == world_size:
        return "On every rank."
    return f"On {named_ranks(ranks)} of {world_size}."


def _signal(exit_code: int | None) -> str:
    try:
        return signal.Signals(-exit_code).name if exit_code is not None and exit_code < 0 else ""
    except ValueError:
        return ""


def _unfinished_ranks(statuses: Sequence[RankStatus], submission: Submission) -> str:
    """Say which ranks had not finished, and at which lines they were."""
    at: dict[str, list[int]] = defaultdict(list)
    for status in statuses:
        if status.exit is None:
            at[_place(status.line, submission)].append(status.rank)
    positions = []
    for place, ranks in at.items():
        verb = "was" if len(ranks) == 1 else "were"
        where = f"{verb} at {_shortly(place, submission)}" if place else "had not returned"
        positions.append(f"{named_ranks(ranks)} {where}")
    return f"When time ran out, {'; '.join(positions)}." if positions else "The time for this call ran out."


def _who_waits(statuses: Sequence[RankStatus], submission: Submission) -> str:
    """Say for what each rank waits, and name the cycle; empty when the scheduler did not find the deadlock itself."""
    clauses, waits = [], {}
    for status in statuses:
        if operation := status.waits_in:
            if operation.peer >= 0:
                waits[status.rank] = [operation.peer]
            clauses.append(f"rank {status.rank} waits {_operation(operation)}{_at(operation, submission)}")
    if not clauses:
        return ""
    more = f" and {len(clauses) - 8} more" if len(clauses) > 8 else ""
    text = f"No rank can go on: {'; '.join(clauses[:8])}{more}."
    cycle = cycles.find(waits)
    if not cycle:
        return text
    kinds = {status.waits_in.kind for status in statuses if status.rank in cycle and status.waits_in}
    known = {"send": cycles.SENDS_FIRST, "receive": cycles.RECEIVES_FIRST}
    advice = known.get(kinds.pop(), "") if len(kinds) == 1 else ""
    return f"{text} {cycles.shown(cycle).capitalize()}." + (f" {advice[:1].upper()}{advice[1:]}." if advice else "")


def _operation(operation: PendingOperation) -> str:
    name = operation.name if operation.name in _OPERATIONS else operation.kind
    peer = f"rank {operation.peer}" if operation.peer >= 0 else "any rank"
    match operation.kind:
        case "send":
            return f"in {name} for {peer} to receive"
        case "receive":
            return f"in {name} for {peer} to send"
        case _:
            return f"in {name} for the others"


def _at(operation: PendingOperation, submission: Submission) -> str:
    place = _place(operation.line, submission)
    return f" ({_shortly(place, submission)})" if place else ""


def _shortly(place: str, submission: Submission) -> str:
    """`line 12` for a place in the exercise's own module."""
    line = _line(place, submission)
    return f"line {line}" if line else place
