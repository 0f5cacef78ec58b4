"""Process exits and signals on a rank that is a thread: they affect that rank alone.

`os._exit` ends the rank at once, and none of its code runs on. A signal that a rank sends to itself runs its handler,
or ends the rank as the signal would end a process. `atexit` functions run when their rank ends.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from labkit.clusters.virtual.isolation.current import Rank, here, is_forked

_IGNORED = {signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH}


def separate(leave: Callable[[int], NoReturn]) -> None:
    """Make exits and signals affect only the rank they concern. `leave(exit code)` ends the running rank for good."""
    real_exit, real_kill, real_raise = os._exit, os.kill, signal.raise_signal
    real_signal, real_getsignal = signal.signal, signal.getsignal
    real_register, real_unregister = atexit.register, atexit.unregister

    def exit_(status: int) -> NoReturn:
        if here.rank is None or is_forked():
            real_exit(status)
        if here.endpoint is None or here.is_started:
            raise RuntimeError("os._exit in a thread that a virtual rank started would end all ranks")
        leave(status & 0xFF)

    def kill(pid: int, number: int, /) -> None:
        if here.rank is None or is_forked() or pid != os.getpid() or number == 0:
            real_kill(pid, number)
        else:
            _deliver(here.rank, signal.Signals(number), leave)

    def raise_signal(number: int, /) -> None:
        if here.rank is None or is_forked():
            real_raise(number)
        else:
            _deliver(here.rank, signal.Signals(number), leave)

    def handle(number: int, handler: Any, /) -> Any:
        if here.rank is None or is_forked():
            return real_signal(number, handler)
        if not callable(handler) and handler not in (signal.SIG_DFL, signal.SIG_IGN):
            raise TypeError("signal handler must be signal.SIG_IGN, signal.SIG_DFL, or a callable object")
        if number in (signal.SIGKILL, signal.SIGSTOP):
            raise OSError(22, "Invalid argument")
        previous = handler_of(number)
        here.rank.handlers[number] = handler
        return previous

    def handler_of(number: int, /) -> Any:
        if here.rank is None or is_forked():
            return real_getsignal(number)
        default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        return here.rank.handlers.get(number, default)

    def register(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        if here.rank is None or is_forked():
            return real_register(function, *args, **kwargs)
        here.rank.exit_functions.append((function, args, kwargs))
        return function

    def unregister(function: Callable[..., Any], /) -> None:
        if here.rank is None or is_forked():
            real_unregister(function)
        else:
            here.rank.exit_functions[:] = [entry for entry in here.rank.exit_functions if entry[0] != function]

    for module, replacements in (
        (os, {"_exit": exit_, "kill": kill}),
        (atexit, {"register": register, "unregister": unregister}),
        (signal, {"signal": handle, "getsignal": handler_of, "raise_signal": raise_signal}),
        (signal, {name: _refused(name, getattr(signal, name)) for name in ("alarm", "setitimer")}),
    ):
        vars(module).update(replacements)


def run_exit_functions(rank: Rank) -> None:
    """Run the functions that the rank has registered with `atexit`, last first."""
    while rank.exit_functions:
        function, args, kwargs = rank.exit_functions.pop()
        try:
            function(*args, **kwargs)
        except BaseException:  # as Python does: the error is shown, and the next function runs
            print("Exception ignored in atexit callback", function, file=sys.stderr)
            traceback.print_exc()


def _deliver(rank: Rank, number: signal.Signals, leave: Callable[[int], NoReturn]) -> None:
    default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    handler = rank.handlers.get(number, default)
    if callable(handler):
        handler(int(number), sys._getframe(2))
    elif handler == signal.SIG_DFL and number not in _IGNORED:
        if here.endpoint is None or here.is_started:
            raise RuntimeError(f"{number.name} from a thread that a virtual rank started would end all ranks")
        leave(-number)


def _refused(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def refuse(*args: Any) -> Any:
        if here.rank is None or is_forked():
            return real(*args)
        raise NotImplementedError(f"signal.{name} is not possible on virtual ranks that are threads: use local ranks")

    return refuse
