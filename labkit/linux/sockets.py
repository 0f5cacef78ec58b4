"""The user at the other end of a connection, as the kernel knows it."""

from __future__ import annotations

import ipaddress
import socket
import struct
from pathlib import Path

_ESTABLISHED = "01"
_CREDENTIALS = struct.Struct("3i")


def peer_user(connection: socket.socket) -> int | None:
    """Return the user ID of a connection's peer on this machine; None if it is elsewhere, or has closed its end.

    For Unix sockets it is the user at the time of `connect`. For TCP it is the owner of the peer's socket.
    """
    if connection.family == socket.AF_UNIX:
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return int(_CREDENTIALS.unpack(credentials)[1])
    own, peer = (_end(*address[:2]) for address in (connection.getsockname(), connection.getpeername()))
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]
        except OSError:  # no IPv6
            continue
        for line in lines:
            fields = line.split()
            # a socket whose process has closed it has no inode any more, and then no owner but root
            if (
                fields[3] == _ESTABLISHED
                and fields[9] != "0"
                and (_parsed(fields[1]), _parsed(fields[2])) == (peer, own)
            ):
                return int(fields[7])
    return None


def _end(host: str, port: int) -> tuple[str, int]:
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address), port


def _parsed(end: str) -> tuple[str, int]:
    """Read `0100007F:1F90`: words of four bytes, each in the machine's byte order."""
    words, _, port = end.partition(":")
    packed = b"".join(struct.pack("=I", int(words[at : at + 8], 16)) for at in range(0, len(words), 8))
    return _end(str(ipaddress.ip_address(packed)), int(port, 16))
