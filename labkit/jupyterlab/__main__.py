"""Runs JupyterLab: only warnings are logged, and the address is printed once the server answers."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

from jupyterlab.labapp import LabApp

from labkit.private_folders import cache_environment


def main(arguments: list[str]) -> None:
    if {"-h", "--help", "--help-all", "--version"} & set(arguments):
        LabApp.launch_instance(arguments)
        return
    os.environ.update(cache_environment(os.environ))  # for all kernels
    for logger in ("ServerApp", "tornado.general"):
        logging.getLogger(logger).addFilter(_Unannounced())
    server: Any = LabApp.initialize_server(argv=["--log-level=WARN", "--LabApp.log_level=WARN", *arguments])
    # the loop runs what was added to it once it accepts connections
    server.io_loop.add_callback(lambda: print(f"\nJupyterLab is at\n{_address(server.public_url)}", flush=True))
    server.start()


def _address(url: str) -> str:
    """Join the query of the page with that of the token: Jupyter begins a second one.

    A token that the user has chosen is not shown: Jupyter writes `...` in its place.
    """
    page, *queries = url.split("?")
    shown = [query for query in queries if query != "token=..."]
    return "?".join([page, "&".join(shown)]) if shown else page


class _Unannounced(logging.Filter):
    """Drops Jupyter's own announcement of the address, six lines long, and warnings that no learner can act on."""

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        return not any(part in message for part in _DROPPED)


_DROPPED = (
    "To access the server",
    "is not trusted",  # a copy that this machine has not run: JupyterLab shows it in the status bar
    "websocket_ping_timeout",  # Jupyter has pings of its own: Tornado's settings, in other units, do not count
    "`_jupyter_server_extension_points` function was not found",  # in a package such as ipyparallel
)


if __name__ == "__main__":
    main(sys.argv[1:])
