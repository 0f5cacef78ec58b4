"""Where a training program writes its metrics: options of its command, and the sinks that they name."""

from __future__ import annotations

import argparse
import importlib.util
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit import page_server
from labkit.course.phase4_production.monitoring.given.prometheus import PrometheusSink
from labkit.course.phase4_production.monitoring.given.records import Sink
from labkit.course.phase4_production.monitoring.given.tensorboard import TensorBoardSink
from labkit.installing import how_to_install

LARGEST_PORT = 65535


@dataclass(frozen=True)
class Endpoint:
    """Address and port at which a node's first rank answers Prometheus; its rank n at port + n."""

    address: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Parse `[ADDRESS:]PORT`; a type for argparse."""
        address, _, port = text.rpartition(":")
        if not port.isdecimal() or not 0 < int(port) <= LARGEST_PORT:
            raise argparse.ArgumentTypeError(f"expected [ADDRESS:]PORT, such as 9400 or 0.0.0.0:9400, got {text!r}")
        return cls(address or page_server.LOOPBACK, int(port))

    def of_this_rank(self) -> tuple[str, int]:
        """Return this rank's address and port."""
        return self.address, self.port + int(os.environ.get("LOCAL_RANK", "0"))


class PortInUse(ValueError):
    """This rank's port for Prometheus cannot be used; the message names it. Those of other ranks may be free."""


@dataclass(frozen=True)
class Metrics:
    """Destinations of a training's metrics, each None for none."""

    log_dir: str | None = None
    """Folder of JSON lines."""
    tensorboard: str | None = None
    """Folder of event files."""
    prometheus: Endpoint | None = None

    @classmethod
    def of(cls, options: argparse.Namespace) -> Metrics:
        """Return the destinations that a command's options name.

        Raises ValueError if a package is missing, `PortInUse` if this rank's port is in use.
        """
        for option, package in {"tensorboard": "tensorboard", "prometheus": "prometheus_client"}.items():
            if getattr(options, option) is not None and importlib.util.find_spec(package) is None:
                name = package.replace("_", "-")
                raise ValueError(f"--{option} needs the package {name}: {how_to_install(name, 'ranks')}")
        found = cls(options.log_dir, options.tensorboard, options.prometheus)
        if found.prometheus is not None:
            address, port = found.prometheus.of_this_rank()
            try:
                socket.create_server((address, port)).close()
            except OSError as error:
                raise PortInUse(
                    f"--prometheus: {address}:{port} cannot be used: {os.strerror(error.errno or 0)}"
                ) from None
        return found

    @staticmethod
    def folders(options: argparse.Namespace) -> list[str]:
        """Return the folders of files that a command's options name, each once."""
        return list(dict.fromkeys(folder for folder in (options.log_dir, options.tensorboard) if folder is not None))

    def __bool__(self) -> bool:
        """Whether there is one."""
        return any(destination is not None for destination in (self.log_dir, self.tensorboard, self.prometheus))

    def monitor(self, monitor_type: Any, rank: int, world_size: int, **options: Any) -> Any:
        """Return the monitor of a rank, which writes there; it times each operation."""
        sinks: list[Sink] = []
        if self.tensorboard is not None:
            sinks.append(TensorBoardSink(Path(self.tensorboard), rank))
        if self.prometheus is not None:
            address, port = self.prometheus.of_this_rank()
            sinks.append(PrometheusSink(rank, port, address=address))
        return monitor_type(rank, world_size, log_dir=self.log_dir, sinks=sinks, operations=bool(self), **options)


def add_options(add: Callable[..., Any]) -> None:
    """Add the options of `Metrics` by a parser's `add_argument`."""
    add("--log-dir", default=None, help="folder for the monitor's log of JSON lines, which labkit dashboard shows")
    add("--tensorboard", default=None, metavar="FOLDER", help="for event files: tensorboard --logdir FOLDER")
    add(
        "--prometheus", type=Endpoint.parse, default=None, metavar="[ADDRESS:]PORT",
        help="of a node's first rank, for Prometheus; rank n has PORT + n; 0.0.0.0:PORT answers other machines",
    )  # fmt: skip
