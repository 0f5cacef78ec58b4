"""Drop a process's privileges: user, capabilities, limits, system calls."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import struct

from . import seccomp
from .order import Order

_PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 4, 24, 38, 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAPABILITY_VERSION = 0x20080522
_MORE_LIKELY_TO_BE_KILLED = "500"

_libc = ctypes.CDLL(None, use_errno=True)


def confine(order: Order) -> None:
    """Leave this process, and everything it starts, without privileges and within limits. Raises `OSError`."""
    os.umask(0o022)
    _empty_bounding_set()
    if order.uid is not None:
        os.setgroups([])
        os.setresgid(order.uid, order.uid, order.uid)
        os.setresuid(order.uid, order.uid, order.uid)
    _clear_capabilities()
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")
    limits = {
        resource.RLIMIT_NPROC: order.processes,
        resource.RLIMIT_DATA: order.data_bytes,
        resource.RLIMIT_FSIZE: order.file_bytes,
        resource.RLIMIT_CPU: order.cpu_seconds,
        resource.RLIMIT_NOFILE: order.open_files,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 1 << 20,
        resource.RLIMIT_MSGQUEUE: 1 << 20,
    }
    for which, value in limits.items():
        hard = resource.getrlimit(which)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (value, value))
    refused = seccomp.before_private_folders if order.apart else seccomp.filter_program
    seccomp.install(seccomp.for_this_machine(refused))
    # nobody may read this process's memory; processes forked from it open files through /proc/self/fd
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    os.register_at_fork(after_in_child=_as_any_other)


def drop_capabilities() -> None:
    """Drop all capabilities permanently. Raises `OSError`."""
    _empty_bounding_set()
    _clear_capabilities()


def _empty_bounding_set() -> None:
    _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    with open("/proc/sys/kernel/cap_last_cap", encoding="ascii") as file:
        last = int(file.read())
    for capability in range(last + 1):
        _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # fails for capabilities that the kernel does not have


def _clear_capabilities() -> None:
    _check(_libc.capset(struct.pack("=Ii", _CAPABILITY_VERSION, 0), struct.pack("=6I", *[0] * 6)), "capabilities")


def _as_any_other() -> None:
    _libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write(_MORE_LIKELY_TO_BE_KILLED)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
