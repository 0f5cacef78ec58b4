"""A port that no other program is given in the meantime."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from labkit.linux import free_port as module
from labkit.linux.free_port import free_port


def test_a_free_port_is_none_that_the_system_gives_to_others() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = {free_port() for _ in range(20)}
    assert len(ports) > 10 and all(10_000 <= port < lowest for port in ports)


def test_a_port_on_which_something_listens_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        port = taken.getsockname()[1]
        asked = iter([port] * 99 + [port + 1])
        monkeypatch.setattr(module.secrets, "randbelow", lambda _: next(asked) - 10_000)
        assert free_port() != port


def test_where_the_system_gives_every_port_to_others_it_gives_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.Path, "read_text", lambda _: "1024\t65535\n")
    assert free_port() >= 1024
