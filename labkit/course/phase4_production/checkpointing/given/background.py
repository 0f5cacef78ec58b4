"""Work that a thread does while training goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


def start(function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Call the function in a thread of its own; the future has its result or its error. The process waits for it."""
    future: Future[Any] = Future()

    def work() -> None:
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name="checkpoint").start()
    return future
