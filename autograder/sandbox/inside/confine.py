"""Drop a process's privileges: user, capabilities, limits, system calls."""

from __future__ import annotations

import contextlib
import os
import resource

from autograder.sandbox.inside import seccomp
from autograder.sandbox.inside.order import Order
from labkit.linux import capabilities, prctl

_MORE_LIKELY_TO_BE_KILLED = "500"


def confine(order: Order) -> None:
    """Leave this process, and everything it starts, without privileges and within limits. Raises `OSError`."""
    os.umask(0o022)
    capabilities.empty_bounding_set()
    if order.uid is not None:
        os.setgroups([])
        os.setresgid(order.uid, order.uid, order.uid)
        os.setresuid(order.uid, order.uid, order.uid)
    capabilities.clear()
    prctl.gain_no_privileges()
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
    prctl.set_dumpable(False)
    os.register_at_fork(after_in_child=_as_any_other)


def _as_any_other() -> None:
    prctl.set_dumpable(True)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write(_MORE_LIKELY_TO_BE_KILLED)
