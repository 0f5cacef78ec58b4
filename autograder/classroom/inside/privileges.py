"""Takes all privileges from a process in a learner's sandbox, and from everything that it starts."""

from __future__ import annotations

import os
import resource

from autograder.sandbox.inside import seccomp
from labkit.linux import capabilities, prctl


def drop(uid: int | None, processes: int, file_bytes: int) -> None:
    """Leave this process, and everything it starts, without privileges. Raises `OSError`."""
    os.umask(0o022)
    capabilities.empty_bounding_set()
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    capabilities.clear()
    prctl.gain_no_privileges()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if uid is not None:  # otherwise the limit would count all processes of the user who started the hub
        resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
    if file_bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    seccomp.install(seccomp.for_this_machine(seccomp.filter_program))
    # memory outside of processes and files would not be counted anywhere
    seccomp.install(seccomp.for_this_machine(seccomp.no_meeting_but_on_the_network))
