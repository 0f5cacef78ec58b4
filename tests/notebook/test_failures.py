"""Display of failed runs, from results made by hand: kinds of failure that are hard to provoke."""

import re

import pytest
from waiting import wait_until

from labkit.clusters import RankError, RankResult, Run
from labkit.notebook.failures import render


def shown(run: Run) -> list[str]:
    return [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in render(run)]


def frame(line: int, text: str) -> tuple[str, int, str, str]:
    return ("Cell In[9]", line, "<module>", text)


def test_the_first_cause_leads_and_consequences_are_folded():
    lost = RankError("RuntimeError", "Connection closed by peer", (frame(3, "wait()"),), time=1.0, consequence=True)
    cause = RankError("IndexError", "list index out of range", (frame(7, "x[9]"),), time=2.0)
    ranks = [RankResult(rank, error=cause if rank == 5 else lost, exit=1) for rank in range(8)]
    assert shown(Run(ranks)) == [
        "RankFailed: IndexError on rank 5 of 8",
        "  Cell In[9], line 7",
        "----> 7 x[9]",
        "IndexError: list index out of range",
        "ranks 0-4, 6-7 stopped because of it",
    ]


def test_another_failure_of_its_own_is_told_in_a_line():
    first = RankError("ValueError", "bad shard 0", (frame(4, "check()"),), time=1.0)
    alike = RankError("ValueError", "bad shard 1", (frame(4, "check()"),), time=1.1)
    other = RankError("KeyError", "'w'\nmore", (frame(8, "load()"),), time=1.2)
    ranks = [RankResult(rank, error=error, exit=1) for rank, error in enumerate((first, alike, other))]
    assert shown(Run(ranks))[-2:] == [
        "also ValueError on rank 1 at Cell In[9], line 4",
        "also KeyError on rank 2 at Cell In[9], line 8: 'w'",
    ]


def test_a_deep_recursion_is_cut_in_its_middle():
    frames = tuple(frame(line, f"f({line})") for line in range(1, 41))
    error = RankError("RecursionError", "too deep", frames)
    lines = shown(Run([RankResult(0, error=error, exit=1)]))
    assert len(lines) < 14 and "  ... 33 more calls ..." in lines
    assert lines[1] == "  Cell In[9], line 1: f(1)" and "----> 40 f(40)" in lines


def test_one_rank_is_not_every_rank():
    error = RankError("ValueError", "no", (frame(2, "f()"),))
    assert shown(Run([RankResult(0, error=error, exit=1)]))[0] == "RankFailed: ValueError on rank 0 of 1"


def test_a_run_that_the_lab_stopped_says_where_each_rank_was():
    at_wait = RankError("Timeout", "still running after 5 s", (frame(6, "work.wait()"),))
    nowhere = RankError("Timeout", "still running after 5 s")
    ranks = [RankResult(0, exit=0), RankResult(1, error=at_wait, exit=None), RankResult(2, error=at_wait, exit=None)]
    ranks += [RankResult(3, error=nowhere, exit=None), RankResult(4, exit=None)]
    assert shown(Run(ranks, stopped="timeout after 5 s")) == [
        "RankFailed: timeout after 5 s",
        "[0] had ended",
        "[1-2] was at Cell In[9], line 6: work.wait()",
        "[3] Timeout: still running after 5 s",
        "[4] was stopped",
    ]


def test_functions_of_the_notebook_are_named_by_their_cells(kernel):
    kernel.run("from labkit import Job, virtual\ndef inner():\n    raise ValueError('no')\ndef outer():\n    inner()")
    lines = kernel.run("virtual(nproc_per_node=2).run(Job.calling(outer)).raise_if_failed()").error.splitlines()
    assert re.fullmatch(r"  Cell In\[\d+\], line 5: inner\(\)", lines[1])
    assert re.fullmatch(r"  Cell In\[\d+\], line 3, in inner", lines[2])


INTERRUPTED = {
    "a run": "local(nproc_per_node=2).run(Job(source=f'open({begun!r}, \"w\")\\nimport time\\ntime.sleep(300)'))",
    "several runs": "run_each([1, 2], lambda n: (open(begun, 'w'), time.sleep(300)), name='n')",
}


@pytest.mark.parametrize("cell", INTERRUPTED.values(), ids=INTERRUPTED)
def test_an_interrupt_is_shown_at_the_learner_s_line(kernel, cell, tmp_path):
    begun = tmp_path / "begun"
    kernel.run(
        f"import time\nfrom labkit import Job, local\nfrom labkit.notebook import run_each\nbegun = {str(begun)!r}"
    )
    request = kernel.start(f"number = 1\n{cell}")
    wait_until(begun.exists)
    kernel.manager.interrupt_kernel()
    error = kernel.collect(request).error
    assert "----> 2 " in error and error.count("KeyboardInterrupt") == 2
    assert "labkit/" not in error and "site-packages" not in error and "python3." not in error, error


@pytest.mark.parametrize(
    ("cell", "meant"),
    [("%%torchrn -n 4\n1", "%%torchrun"), ("%chek process_group", "%check"), ("%%exercize\n1", "%%exercise")],
)
def test_a_misspelt_magic_is_named(kernel, cell, meant):
    outputs = kernel.run(cell)
    assert outputs.stderr.startswith("UsageError: ") and f"Did you mean {meant}?" in outputs.stderr
    assert outputs.error == "" and "Did you mean" not in kernel.run("%%quokka\n1").stderr


def test_ranks_that_cannot_be_started_are_the_lab_s_failure_in_one_line(kernel):
    cell = """
        from labkit import Job, local
        from labkit.clusters.forkserver.client import ForkServer
        full = ForkServer(command_prefix=["sh", "-c", "echo no room >&2; exit 1", "--"])
        local(1, forkserver=full).run(Job(source="1"))
    """
    shown = kernel.run("\n".join(line[8:] for line in cell.splitlines())).error
    died = "the process that starts the ranks died: no room"
    assert shown == f"the lab failed, nothing of yours: {died}; run it again"
    kernel.run("full.close()")
