"""Which of this machine's network interfaces leads to another node: gloo has to be told."""

from __future__ import annotations

import fcntl
import socket
import struct

_SIOCGIFADDR = 0x8915
_ANY_PORT = 9


def interface_to(address: str) -> str:
    """The name of the interface by which `address` is reached, `eth0`; `lo` when it is this machine's only way.

    Raises `OSError` when there is no way at all.
    """
    own = own_address(address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # it has no address
                continue
            if socket.inet_ntoa(found[20:24]) == own:
                return name
    return "lo"


def own_address(address: str) -> str:
    """This machine's own address, as `address` and its neighbours see it. Raises `OSError` when there is no way."""
    target = socket.gethostbyname(address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # nothing is sent: the kernel only looks up the route
        probe.connect((target, _ANY_PORT))
        own: str = probe.getsockname()[0]
        return own
