"""The system calls that a submission may not make, as a seccomp filter.

A deny list, not an allow list: the system calls of torch, gloo and multiprocessing change. It denies calls that reach
into other processes or the kernel itself, make namespaces or mounts, or open sockets that network namespaces do not
confine. They fail with EPERM, so that libraries fall back. `clone3` fails as if the kernel lacked it, since the filter
cannot see its flags; the C library then uses `clone`.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from collections.abc import Callable, Sequence

from labkit.linux.libc import checked, libc

_SAME = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427,
    "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433,
    "clone3": 435, "pidfd_getfd": 438, "process_madvise": 440, "mount_setattr": 442, "quotactl_fd": 443,
}  # fmt: skip
_X86_64 = {
    **_SAME,
    "socket": 41, "clone": 56, "ptrace": 101, "syslog": 103, "uselib": 134, "personality": 135, "modify_ldt": 154,
    "pivot_root": 155, "adjtimex": 159, "chroot": 161, "acct": 163, "settimeofday": 164, "mount": 165, "umount2": 166,
    "swapon": 167, "swapoff": 168, "reboot": 169, "iopl": 172, "ioperm": 173, "init_module": 175, "delete_module": 176,
    "quotactl": 179, "lookup_dcookie": 212, "clock_settime": 227, "kexec_load": 246, "add_key": 248,
    "request_key": 249, "keyctl": 250, "migrate_pages": 256, "unshare": 272, "move_pages": 279,
    "perf_event_open": 298, "fanotify_init": 300, "name_to_handle_at": 303, "open_by_handle_at": 304,
    "clock_adjtime": 305, "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312,
    "finit_module": 313, "kexec_file_load": 320, "bpf": 321, "userfaultfd": 323, "ioctl": 16,
    "shmget": 29, "shmat": 30, "semget": 64, "msgget": 68, "mq_open": 240,
}  # fmt: skip
_AARCH64 = {
    **_SAME,
    "lookup_dcookie": 18, "umount2": 39, "mount": 40, "pivot_root": 41, "chroot": 51, "quotactl": 60, "acct": 89,
    "personality": 92, "unshare": 97, "kexec_load": 104, "init_module": 105, "delete_module": 106,
    "clock_settime": 112, "syslog": 116, "ptrace": 117, "reboot": 142, "settimeofday": 170, "adjtimex": 171,
    "socket": 198, "add_key": 217, "request_key": 218, "keyctl": 219, "clone": 220, "swapon": 224, "swapoff": 225,
    "migrate_pages": 238, "move_pages": 239, "perf_event_open": 241, "fanotify_init": 262, "name_to_handle_at": 264,
    "open_by_handle_at": 265, "clock_adjtime": 266, "setns": 268, "process_vm_readv": 270, "process_vm_writev": 271,
    "kcmp": 272, "finit_module": 273, "bpf": 280, "userfaultfd": 282, "kexec_file_load": 294, "ioctl": 29,
    "mq_open": 180, "msgget": 186, "semget": 190, "shmget": 194, "shmat": 196,
}  # fmt: skip
_MACHINES = {"x86_64": (0xC000003E, _X86_64), "aarch64": (0xC00000B7, _AARCH64)}
"""Machine name -> the kernel's identifier of its calling convention, and system call numbers."""

_BY_ARGUMENT = ("clone", "clone3", "socket", "ioctl")
_MEETING = ("socket", "shmget", "shmat", "semget", "msgget", "mq_open")
"""Calls denied only to processes that must not communicate."""
_PRIVATE_FOLDERS = ("unshare", "mount")
"""Calls that a process needs to give itself private folders."""
_ALLOWED_SOCKETS = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6, AF_NETLINK. AF_VSOCK, for example, would reach the machine's host."""
_NEW_NAMESPACES = 0x7E020080
"""CLONE_NEW*: time, mount, cgroup, uts, ipc, user, pid, net."""
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
"""Injecting input into a terminal."""

_LOAD, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _SECOND_ARGUMENT = 0, 4, 16, 24
"""Offsets in the data that the filter sees; the lower half of arguments, since these machines are little-endian."""
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_X32 = 0x40000000
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2


def filter_program(machine: str) -> bytes:
    """Return the filter for `x86_64` or `aarch64`: an array of `struct sock_filter`."""
    return _program(machine, allowed=())


def before_private_folders(machine: str) -> bytes:
    """Return the filter for processes that fork ranks; the ranks then get private folders and `no_meeting`."""
    return _program(machine, allowed=_PRIVATE_FOLDERS)


def _program(machine: str, allowed: Sequence[str]) -> bytes:
    convention, numbers = _MACHINES[machine]
    refused = sorted(number for name, number in numbers.items() if name not in (*_BY_ARGUMENT, *_MEETING, *allowed))
    lines = [
        *_unless(_IF_EQUAL, convention, [_fail(errno.ENOSYS)], load=_ARCHITECTURE),
        _line(_LOAD, _NUMBER),
        *_when(_IF_AT_LEAST, _X32, [_fail(errno.ENOSYS)]),
        *(line for number in refused for line in _when(_IF_EQUAL, number, [_fail(errno.EPERM)])),
        *_when(_IF_EQUAL, numbers["clone3"], [_fail(errno.ENOSYS)]),
        *_when(
            _IF_EQUAL,
            numbers["clone"],
            [
                _line(_LOAD, _FIRST_ARGUMENT),
                *_when(_IF_ANY_BIT, _NEW_NAMESPACES, [_fail(errno.EPERM)]),
                _line(_RETURN, _ALLOW),
            ],
        ),
        *_when(
            _IF_EQUAL,
            numbers["socket"],
            [
                _line(_LOAD, _FIRST_ARGUMENT),
                *(line for kind in _ALLOWED_SOCKETS for line in _when(_IF_EQUAL, kind, [_line(_RETURN, _ALLOW)])),
                _fail(errno.EAFNOSUPPORT),
            ],
        ),
        *_when(
            _IF_EQUAL,
            numbers["ioctl"],
            [
                _line(_LOAD, _SECOND_ARGUMENT),
                *_when(_IF_EQUAL, _TIOCSTI, [_fail(errno.EPERM)]),
                *_when(_IF_EQUAL, _TIOCLINUX, [_fail(errno.EPERM)]),
            ],
        ),
        _line(_RETURN, _ALLOW),
    ]
    return b"".join(lines)


def no_meeting(machine: str) -> bytes:
    """Return a filter against communication: no sockets except pairs, no shared memory or queues by key.

    It completes `before_private_folders`.
    """
    return _no_meeting(machine, _MEETING)


def no_meeting_but_on_the_network(machine: str) -> bytes:
    """Return the same filter, but with sockets allowed."""
    return _no_meeting(machine, [name for name in _MEETING if name != "socket"])


def _no_meeting(machine: str, refused: Sequence[str]) -> bytes:
    convention, numbers = _MACHINES[machine]
    lines = [
        *_unless(_IF_EQUAL, convention, [_fail(errno.ENOSYS)], load=_ARCHITECTURE),
        _line(_LOAD, _NUMBER),
        *(line for name in refused for line in _when(_IF_EQUAL, numbers[name], [_fail(errno.EACCES)])),
        *(line for name in _PRIVATE_FOLDERS for line in _when(_IF_EQUAL, numbers[name], [_fail(errno.EPERM)])),
        _line(_RETURN, _ALLOW),
    ]
    return b"".join(lines)


def for_this_machine(make: Callable[[str], bytes]) -> bytes | None:
    """Return the filter from `make` for this machine, or None where the system call numbers are unknown."""
    return make(platform.machine()) if platform.machine() in _MACHINES else None


def install(program: bytes | None) -> None:
    """Install a filter, if any, permanently on this process and everything it starts. Raises `OSError`.

    The process must have set PR_SET_NO_NEW_PRIVS.
    """
    if program is None:
        return
    held = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(held))
    checked(libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, header, 0, 0), "seccomp")


def _line(code: int, value: int, if_so: int = 0, else_: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_so, else_, value)


def _fail(number: int) -> bytes:
    return _line(_RETURN, _FAIL | number)


def _when(test: int, value: int, body: Sequence[bytes]) -> list[bytes]:
    """Run `body` if the test holds for the value loaded last; otherwise skip it."""
    return [_line(test, value, 0, len(body)), *body]


def _unless(test: int, value: int, body: Sequence[bytes], load: int) -> list[bytes]:
    return [_line(_LOAD, load), _line(test, value, len(body), 0), *body]
