"""Learners' code keeps the meaning it has in its own file: labkit's `from __future__` imports do not apply to it."""

from __future__ import annotations

from labkit import Job, virtual


def test_annotations_are_what_they_name() -> None:
    # DDP refuses a communication hook whose annotations are strings
    module = "def hook(bucket: int) -> float:\n    return 0.0\n"
    source = "from labkit.exercises import ring_allreduce\ndef mine(x: int) -> float: ...\n"
    source += "[f.__annotations__[name].__name__ for f in (mine, ring_allreduce.hook) for name in f.__annotations__]"
    job = Job(source=source, modules={"phase3_multi_node/ring_allreduce": module})
    assert virtual(nproc_per_node=1).run(job).raise_if_failed().values == [["int", "float", "int", "float"]]
