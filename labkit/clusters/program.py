"""Run a rank's job (a cell, function or call) and report how it ended. The same on every cluster."""

from __future__ import annotations

import ast
import builtins
import difflib
import functools
import linecache
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, FrameType, ModuleType, NoneType, TracebackType
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from labkit import exercises
from labkit.catalogue import code_folders
from labkit.clusters import storage_limits
from labkit.clusters.arguments import on_rank
from labkit.clusters.error_hints import NOT_WRITTEN
from labkit.clusters.job import Job, Script
from labkit.clusters.rank_result import RankError, RankResult

_NAMED = ("send", "isend", "recv", "irecv", "init_process_group", "new_group", "split_group")
"""Functions of torch.distributed that a process group cannot distinguish by the way it is called."""
_C10D = distributed_c10d.__file__
_FOREIGN_FOLDERS = tuple(
    f"{folder}/"
    for folder in (
        *code_folders(),
        Path(torch.__file__).parent,
        *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
        os.environ.get("TORCHINDUCTOR_CACHE_DIR"),
    )
    if folder
)
_FOREIGN_PARTS = re.compile(r"(^|/)(site-packages|dist-packages|torchinductor(_[^/]*)?)/")
_COMPILED = (".pyx", ".pxd", ".pxi")
"""Suffixes of Cython sources, which appear as file names of compiled code: `numpy/random/mtrand.pyx`."""


def execute(job: Job, rank: int, now: Callable[[], float], main: ModuleType | None = None) -> RankResult:
    """Run `job` as `rank` in this process or thread and return its value or its error; never raises.

    `now` returns the seconds since the job began. A cell runs in the module `main`; None creates a new one. As under
    torchrun, the code of a `SystemExit` is the exit code.
    """

    def run() -> RankResult:
        exercises.install(job.modules)
        return _run(job, rank, main or ModuleType("__main__"))

    return outcome(rank, now, run)


def outcome(rank: int, now: Callable[[], float], run: Callable[[], RankResult]) -> RankResult:
    """Return the result of `run`, or how it failed; never raises. See `execute`."""
    try:
        return run()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if stop.code is not None and not isinstance(stop.code, int):
            print(stop.code, file=sys.stderr)
        # subclasses are raised by the lab itself to end a rank
        plain = type(stop) is SystemExit and code != 0
        return RankResult(rank, error=describe(stop, now()) if plain else None, exit=code)
    except BaseException as error:  # KeyboardInterrupt included: a rank's end is always reported
        return RankResult(rank, error=describe(error, now()), exit=1)


def _run(job: Job, rank: int, main: ModuleType) -> RankResult:
    if job.call is not None:
        name, attribute = job.call
        if job.joined:
            dist.init_process_group()
        # torch requires that every rank creates every group, in the same order, member or not
        groups = {ranks: dist.new_group(list(ranks)) for ranks in job.groups}
        call_arguments = job.arguments[rank]
        if call_arguments is None:
            return RankResult(rank)
        module = getattr(exercises, name)
        args = tuple(on_rank(value, groups) for value in call_arguments[0])
        kwargs = {key: on_rank(value, groups) for key, value in call_arguments[1].items()}
        value = getattr(module, attribute)(*args, **kwargs)
        same = next((i for i, argument in enumerate(args) if argument is value and value is not None), None)
        return RankResult(rank, value=value, arguments=args, returned_argument=same)
    if job.function is not None:
        # else virtual ranks in one process would share the classes pickled with the function
        cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.clear()
        function, arguments = cloudpickle.loads(job.function)
        return RankResult(rank, value=function(*arguments))
    assert job.source is not None
    if job.script is not None:
        _make_script(main, job.script)
    value = run_cell(job.source, job.filename, main, job.first_line)
    return RankResult(rank, value=value if job.script is None else None)


def _make_script(main: ModuleType, script: Script) -> None:
    """Give `main` what Python gives the `__main__` of a program."""
    if script.file is not None:
        main.__file__ = script.file
    if script.module is not None:
        main.__package__ = script.module.rpartition(".")[0]
        # multiprocessing's new processes import the module by this name
        main.__spec__ = ModuleSpec(script.module, None, origin=script.file)


def run_cell(source: str, filename: str, main: ModuleType, first_line: int = 1) -> Any:
    """Execute a cell's text in the module `main` and return the value of its last expression, else None."""
    padded = "\n" * (first_line - 1) + source
    linecache.cache[filename] = (len(padded), None, padded.splitlines(keepends=True), filename)
    statements, value = _compiled(padded, filename)
    exec(statements, main.__dict__)
    return None if value is None else eval(value, main.__dict__)


@functools.lru_cache(maxsize=8)
def _compiled(source: str, filename: str) -> tuple[CodeType, CodeType | None]:
    """Compile a cell's statements and its last expression, if any, once for all ranks of a process."""
    tree = ast.parse(source, filename)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    statements = compile(tree, filename, "exec", dont_inherit=True)
    if last is None:
        return statements, None
    assert isinstance(last, ast.Expr)
    return statements, compile(ast.Expression(last.value), filename, "eval", dont_inherit=True)


def describe(error: BaseException, time: float) -> RankError:
    """An exception as plain data, with only the learner's frames."""
    frames = []
    innermost: FrameType | None = None
    for frame, number in traceback.walk_tb(error.__traceback__):
        if is_learners(frame.f_code.co_filename):
            innermost = frame
            text = linecache.getline(frame.f_code.co_filename, number).strip()
            frames.append((frame.f_code.co_filename, number, frame.f_code.co_name, text))
    if isinstance(error, SyntaxError) and error.filename and is_learners(error.filename):
        frames.append((error.filename, error.lineno or 0, "<module>", (error.text or "").strip()))
    if elsewhere := _frames_elsewhere(error):
        # variables of this process do not belong to that line
        frames, innermost = frames + elsewhere, None
    return RankError(
        type=type(error).__name__,
        message=_message(error),
        frames=tuple(frames),
        traceback="".join(traceback.format_exception(error)),
        time=time,
        consequence=getattr(error, "consequence", False) or _is_closed_connection(error),
        locals=_shapes(innermost, error) if innermost else (),
    )


_WHERE_TORCH_WAS_BUILT = re.compile(r"\[/\S+/(?:gloo|pytorch)/\S+:\d+\] ")
_GLOO_ADVISES = re.compile(r"\. This is typically caused by a remote worker .*", re.DOTALL)
_ANOTHER_PROCESS = re.compile(r"Caught \w+ in (.+?)\.\nOriginal Traceback \(most recent call last\):\n(.*)", re.DOTALL)
_FRAME = re.compile(r'^  File "(.+)", line (\d+), in (.+)\n    (.+)$', re.MULTILINE)


def _text(error: BaseException) -> str:
    """Return its text, or what Python prints of an exception whose own `__str__` fails."""
    try:
        return str(error)
    except Exception:  # the learner's class
        return "<exception str() failed>"


def _message(error: BaseException) -> str:
    if isinstance(error, NotImplementedError) and not _text(error):
        return NOT_WRITTEN
    if isinstance(error, SystemExit):
        return f"exit code {error.code}" if isinstance(error.code, int) else str(error.code)
    text = (error.msg if isinstance(error, SyntaxError) else _text(error)) or type(error).__name__
    if another := _ANOTHER_PROCESS.match(text):
        last = another[2].rstrip().splitlines()[-1]
        return f"{last.removeprefix(f'{type(error).__name__}: ')} (in {another[1]})"
    if near := _near_name(error):
        return f"{text}; did you mean {near!r}?"
    full = storage_limits.limit_met(error)
    return _GLOO_ADVISES.sub("", _WHERE_TORCH_WAS_BUILT.sub("", text)) + (f" ({full})" if full else "")


def _near_name(error: BaseException) -> str:
    """A similar name for a misspelt one, or ""; Python suggests one only when it prints a traceback itself."""
    if not isinstance(error, AttributeError | NameError) or not error.name:
        return ""
    try:
        elsewhere: dict[str, str] = {}
        if isinstance(error, AttributeError):
            names = dir(error.obj)
        else:
            *_, (frame, _) = traceback.walk_tb(error.__traceback__)
            elsewhere = _names_in_modules(frame.f_globals)
            names = [*frame.f_locals, *frame.f_globals, *dir(builtins)]
    except Exception:  # `dir` may run the learner's own __dir__, and a module may not parse
        return ""
    if error.name in elsewhere:
        return elsewhere[error.name]
    public = [name for name in names if not name.startswith("_") or error.name.startswith("_")]
    if near := difflib.get_close_matches(error.name, public, n=1, cutoff=0.75):
        return near[0]
    return next((elsewhere[name] for name in difflib.get_close_matches(error.name, elsewhere, n=1, cutoff=0.85)), "")


def _names_in_modules(scope: Mapping[str, Any]) -> dict[str, str]:
    """Names of torch.distributed and of the exercises' modules, each as code with these globals has to spell it."""
    alias = next((name for name, value in scope.items() if value is dist), "torch.distributed")
    spellings = {name: f"{alias}.{name}" for name in dist.__dict__ if callable(getattr(dist, name))}
    spellings |= {name: f"{module}.{name}" for name, module in exercises.shipped_names().items()}
    return {name: spelled for name, spelled in spellings.items() if name not in scope}


def _frames_elsewhere(error: BaseException) -> list[tuple[str, int, str, str]]:
    """The learner's frames in the process where the error arose, such as a DataLoader worker."""
    another = _ANOTHER_PROCESS.match(_text(error))
    frames = _FRAME.findall(another[2]) if another else []
    return [(file, int(line), name, text) for file, line, name, text in frames if is_learners(file)]


@functools.cache
def is_learners(filename: str) -> bool:
    """Whether this file is the learner's: a notebook cell, an exercise's module, or a file of their own.

    labkit, torch, the standard library, installed packages and generated code are not. Generated code has no file:
    `<string>` (dataclasses, `exec`), `<frozen importlib._bootstrap>`, `<attrs generated init Point>`,
    `<eval_with_key>.0` (torch.fx). For these, the learner's line that called them is reported.
    """
    if filename.startswith("<"):
        return filename.startswith(("<ipython-input-", "<cell>"))
    return not (
        filename.startswith(_FOREIGN_FOLDERS) or filename.endswith(_COMPILED) or _FOREIGN_PARTS.search(filename)
    )


def call_site() -> tuple[str, str]:
    """The send, receive or group-creating function of torch.distributed that the learner called, and the line.

    For example `("isend", "Cell In[3], line 5")`. The name is empty for other calls; the line is empty when none of
    the learner's code is on the stack.
    """
    name = ""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        known = _codes.get(id(code)) or _look_at(code)
        if known[1]:
            return name, line_of(frame)
        name = known[2] or name
        frame = frame.f_back
    return name, ""


_codes: dict[int, tuple[CodeType, bool, str]] = {}
"""Cache by id: (code, whether it is the learner's, its name if in `_NAMED`). Keeping the code keeps its id valid."""


def _look_at(code: CodeType) -> tuple[CodeType, bool, str]:
    named = code.co_name in _NAMED and code.co_filename == _C10D
    known = _codes[id(code)] = code, is_learners(code.co_filename), code.co_name if named else ""
    return known


_places: dict[tuple[int, int], tuple[CodeType, str]] = {}
"""Cache of lines by code id and instruction. The code is kept so that its id is not reused."""


def line_of(frame: FrameType | None) -> str:
    """The learner's line that led to `frame`: its own, or its nearest caller's."""
    while frame is not None:
        code = frame.f_code
        place = id(code), frame.f_lasti
        known = _places.get(place)
        if known is not None:
            return known[1]
        if is_learners(code.co_filename):
            line = f"{code.co_filename}, line {frame.f_lineno}"
            _places[place] = code, line
            return line
        frame = frame.f_back
    return ""


_LOST = re.compile(
    r"Connection (closed|reset) by peer|Broken pipe|Connection was likely closed|failed to recv, got 0 bytes|"
    r"remote process exited or there was a network error|ncclRemoteError"
)


def _is_closed_connection(error: BaseException) -> bool:
    """Whether the error is a lost connection to another rank, or was raised while one was handled."""
    seen: BaseException | None = error
    for _ in range(20):
        if seen is None:
            return False
        if isinstance(seen, RuntimeError) and _LOST.search(str(seen)):
            return True
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return False


def _shapes(frame: FrameType, error: BaseException) -> tuple[tuple[str, str], ...]:
    """A frame's tensors (dtype and shape) and small plain values; None values only if the error mentions NoneType."""
    plain = (bool, int, float, NoneType) if "NoneType" in _text(error) else (bool, int, float)
    shown = []
    for name, value in frame.f_locals.items():
        if isinstance(value, torch.Tensor):
            shown.append((name, f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"))
        elif isinstance(value, plain) and not name.startswith("_"):
            shown.append((name, repr(value)))
    return tuple(shown[:8])


def fold_traceback(trace: TracebackType | None) -> TracebackType | None:
    """The traceback, starting at the learner's first frame."""
    while trace is not None and not is_learners(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace
