"""Which limit of storage a program has met. In sandboxes: tests/autograder/test_sandbox_limits.py."""

from __future__ import annotations

import errno

import pytest

from labkit import Job, local
from labkit.clusters import storage_limits

FILES = "x (/tmp is full: the 65,536 files and folders that it may hold are there)"
BYTES = "x (/dev/shm is full: the 256 MiB that it may hold are there)"
LARGE = "x (a file may hold 64 MiB)"


@pytest.mark.parametrize("message", [FILES, BYTES, LARGE])
def test_a_rank_cannot_name_another_limit_than_there_is(message: str) -> None:
    assert storage_limits.checked(message, 256 << 20, 65536, 64 << 20) == message
    assert storage_limits.checked(message, 1 << 20, 1000, 1 << 20) == "x"
    assert storage_limits.limit_in("x") == storage_limits.checked("", 1, 1, 1) == ""


def test_an_error_of_a_folder_that_is_not_full_stays_as_it_is() -> None:
    assert storage_limits.limit_met(OSError(errno.ENOSPC, "No space left on device", "/proc/x")) == ""
    assert storage_limits.limit_met(OSError(errno.ENOENT, "No such file", "/tmp/x")) == ""


def test_a_file_that_is_too_large_says_how_large_it_may_be() -> None:
    source = """
        import resource, tempfile
        resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, 3 << 20))
        tempfile.TemporaryFile().truncate(4 << 20)
    """
    run = local(1).run(Job(source="\n".join(line[8:] for line in source.splitlines())))
    error = run.ranks[0].error
    assert error is not None and error.message == "[Errno 27] File too large (a file may hold 3 MiB)"
