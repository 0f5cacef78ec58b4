"""The network interface of this machine that leads to another node: gloo needs its name."""

from __future__ import annotations

import fcntl
import socket
import struct

_SIOCGIFADDR = 0x8915
_ANY_PORT = 9


def interface_to(address: str) -> str:
    """Name of the interface through which `address` is reached, `eth0`; `lo` if that is the only one.

    Raises `OSError` if there is no route.
    """
    own = own_address(address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # it has no address
                continue
            if socket.inet_ntoa(reply[20:24]) == own:
                return name
    return "lo"


def own_address(address: str) -> str:
    """This machine's own address, as seen from `address` and its neighbours. Raises `OSError` if there is no route."""
    target = socket.gethostbyname(address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # nothing is sent: the kernel only looks up the route
        probe.connect((target, _ANY_PORT))
        own: str = probe.getsockname()[0]
        return own
