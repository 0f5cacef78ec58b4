"""Workers get their sandboxes from one forkserver, that of the process from which they were forked."""

from __future__ import annotations

import contextlib
import os
import signal
import traceback

import pytest
from waiting import BROKEN_SECONDS

from autograder.sandbox import Sandbox
from autograder.sandbox.forkserver import close_all, sandbox_forkserver, shared
from labkit.clusters import Job
from labkit.clusters.virtual import virtual
from labkit.linux.processes import descendants

pytestmark = pytest.mark.skipif(not Sandbox().available, reason="needs namespaces, for the sandbox")


def _works() -> bool:
    with Sandbox().open() as instance:
        cluster = virtual(nnodes=1, nproc_per_node=1, ranks="processes", forkserver=instance.forkserver)
        return cluster.run(Job(source="1 + 1", timeout=BROKEN_SECONDS)).values == [2]


def _in_a_fork(sharing: bool) -> tuple[bool, bool]:
    """Return whether a sandbox works there, and whether it was made without the fork's own bubblewrap."""
    reading, writing = os.pipe()

    def fork() -> int:
        if sharing:
            with shared():
                return os.fork()
        return os.fork()

    pid = fork()
    if pid == 0:
        try:
            found = (_works(), not descendants(os.getpid()))
            os.write(writing, bytes(found))
            close_all()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        works, alone = file.read()
    os.waitpid(pid, 0)
    return bool(works), bool(alone)


def test_a_fork_uses_the_template_of_its_parent_where_that_is_wanted() -> None:
    sandbox_forkserver().server.start()
    assert _in_a_fork(sharing=True) == (True, True)
    assert _in_a_fork(sharing=False) == (True, False)
    # neither of them has ended it
    before = descendants(os.getpid())
    assert _works() and set(before) & set(descendants(os.getpid()))


def test_a_fork_whose_shared_template_is_gone_starts_its_own() -> None:
    assert _works()
    for pid in descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError):  # some end with others
            os.kill(pid, signal.SIGKILL)
    assert _in_a_fork(sharing=True) == (True, False)
