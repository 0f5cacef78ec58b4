"""The kernel tells which user a connection's peer is."""

from __future__ import annotations

import os
import socket

import pytest

from labkit.linux import sockets


@pytest.mark.parametrize(
    ("listening", "reached"),
    [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("::", "127.0.0.1")],
    ids=["v4", "v6", "mapped"],
)
def test_the_peer_of_a_tcp_connection_is_this_user_until_it_closes(listening: str, reached: str) -> None:
    family = socket.AF_INET6 if ":" in listening else socket.AF_INET
    try:
        server = socket.create_server((listening, 0), family=family, dualstack_ipv6=listening == "::")
    except OSError:
        pytest.skip("needs IPv6")
    with server, socket.create_connection((reached, server.getsockname()[1])) as client:
        accepted, _ = server.accept()
        with accepted:
            assert sockets.peer_user(accepted) == os.geteuid() == sockets.peer_user(client)
            client.sendall(b"a request of nobody")
            client.close()
            # the kernel gives such a connection to root
            assert sockets.peer_user(accepted) is None


def test_the_peer_of_a_unix_socket_is_this_user() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert sockets.peer_user(one) == os.geteuid() == sockets.peer_user(other)
