"""%%ranks and %ranks in a real kernel."""

import re
from pathlib import Path

import psutil
import pytest
from clocks import ManualClock
from waiting import BROKEN_SECONDS

SETUP = """%%ranks
import time, torch, torch.distributed as dist
dist.init_process_group()
rank = dist.get_rank()
x = torch.full((2,), float(rank))"""

BY_LIVE_RANKS = """
import functools, labkit.notebook.ranks as module
patch.setattr(module, "LiveRanks", functools.partial(module.LiveRanks, clock=clock))
"""


@pytest.fixture
def ranks(kernel):
    """Three fresh live ranks."""
    kernel.run("%cluster local --nproc-per-node 3")
    kernel.run("%ranks restart")
    assert kernel.run(SETUP).error == ""
    return kernel


# first in this file: nothing has been chosen yet
def test_without_a_choice_two_ranks_start_and_say_so(kernel):
    assert kernel.run("%ranks").stdout == "there are no live ranks yet: the first %%ranks starts them\n"
    assert "nosuch is not defined in the notebook" in kernel.run("%ranks push nosuch").stderr
    kernel.run("near = 1")
    for line in ("%ranks push near", "%ranks pull far"):
        assert kernel.run(line).stderr == "UsageError: there are no live ranks yet: the first %%ranks starts them\n"
    outputs = kernel.run("%%ranks\nprint('hello')\nimport os\nint(os.environ['WORLD_SIZE'])")
    assert outputs.stdout == (
        "local: 2 processes on this machine (the default; %cluster chooses another)\n[0-1] hello\n"
    )
    assert outputs.result == "[0-1] 2"


def test_another_cluster_means_new_ranks_and_is_told(kernel):
    kernel.run("%%ranks\nx = 1")
    kernel.run("%cluster local --nproc-per-node 3")
    outputs = kernel.run("%%ranks\n'x' in globals()")
    assert outputs.stdout == "the cluster has changed: new ranks start; variables of the 2 old ones are lost\n"
    assert outputs.result == "[0-2] False"
    assert kernel.run("%%ranks\n'x' in globals()").stdout == ""


def test_the_cells_of_the_handbook_run_as_they_stand(kernel):
    section = (Path(__file__).parents[2] / "docs/ranks.md").read_text().split("## Live ranks")[1]
    cells = re.findall(r"^```python\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    kernel.run("%ranks stop")
    kernel.run("%cluster local --nproc-per-node 2")
    outputs = [kernel.run(cell.rstrip()) for cell in cells]
    assert [(o.error, o.stderr) for o in outputs] == [("", "")] * len(cells) and len(cells) >= 2
    assert outputs[1].result == "[0] 0.0\n[2] 4.0"
    assert kernel.run("%%ranks  # 'one' more\n1").result == "[0-3] 1", "-n is kept, and a comment is one"
    assert kernel.run("%ranks restart  # with what?").stdout == "4 ranks started, without any variables yet\n"
    assert kernel.run("%ranks restart -n 3").stdout == "3 ranks started, without any variables yet\n"
    assert kernel.run("%%torchrun -n 1   # alone\n1").result == "[0] 1"


def test_names_of_the_notebook_are_told(ranks):
    ranks.run("lr, f = 0.1, open\nimport numpy as np, json\nfrom json import dumps\nmodel = object()")
    said = "try: lr is defined in the notebook, not on the ranks: define it in this cell"
    shown = ranks.run("%%ranks\nlr * 2").error.splitlines()
    assert f"{said}, or %ranks push lr, or %%ranks --push lr" in shown
    assert said in ranks.run("%%torchrun -n 1\nlr * 2").error.splitlines()
    assert ranks.run("%%ranks\nmodel").error.count("not on the ranks: define it in this cell") == 1
    for name, line in {"np": "import numpy as np", "json": "import json", "dumps": "from json import dumps"}.items():
        assert f"try: {line} in this cell: ranks do not share" in ranks.run(f"%%ranks\n{name}").error
    assert "try: this cell is plain Python" in ranks.run("%%ranks\ndisplay(1)").error
    assert "use await in an async function" in ranks.run("%%ranks\nawait f()").error


def test_a_rank_without_a_screen_says_so_once(ranks):
    outputs = ranks.run("%%ranks\nimport matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\nplt.show()")
    said = "ranks have no display: return the data and plot it in the notebook; plt.savefig() works"
    assert (outputs.stdout + outputs.stderr).count(said) == 1


def test_a_rank_that_exits_lives_on_and_that_is_said(ranks):
    error = ranks.run("%%ranks\nimport sys\nif rank == 0:\n    sys.exit(3)").error
    assert error.splitlines()[0] == "RankFailed: sys.exit on rank 0 of 3"
    assert "sys.exit: exit code 3: the cell ended there, and the rank lives on" in error
    assert ranks.run("%%ranks\nrank").result == "[0] 0\n[1] 1\n[2] 2"


def test_cells_build_on_each_other_on_all_ranks_or_some(ranks):
    outputs = ranks.run("%%ranks -o run\ndist.all_reduce(x)\nprint('reduced')\nx")
    assert outputs.stdout == "[0-2] reduced\n" and outputs.result == "[0-2] float32[2] [3, 3]"
    assert ranks.run("len(run.trace.collectives()), run.ranks[1].output").result == "(3, 'reduced\\n')"
    assert ranks.run("%%ranks --ranks 0,2\nx += rank\nx[0].item()").result == "[0] 3.0\n[2] 5.0"
    assert ranks.run("%%ranks --ranks 1-2\nx[0].item()").result == "[1] 3.0\n[2] 5.0"


def test_values_go_and_come_by_name(ranks):
    ranks.run("import torch\nbatch = torch.arange(4.)\nrate, model = 0.5, torch.nn.Linear(2, 2)")
    ranks.run("%ranks push batch rate")
    ranks.run("%%ranks --pull loss\nloss = (batch * rate * rank).sum()")
    assert ranks.run("loss").result == "[0] float32[] 0\n[1] float32[] 3\n[2] float32[] 6"
    assert ranks.run("loss[2].item(), type(loss).__name__").result == "(6.0, 'RankValues')"
    assert ranks.run("%%ranks --push rate --ranks 1\nrate").result == "[1] 0.5"
    ranks.run("%ranks pull rank")
    assert ranks.run("list(rank)").result == "[0, 1, 2]"
    refused = ranks.run("%ranks push rate model").stderr
    assert refused == ("UsageError: model cannot be pushed: it is a Linear, and only tensors and plain data travel\n")
    assert "missing is not defined in the notebook" in ranks.run("%ranks push missing").stderr
    assert "batches is not defined on ranks 0-2" in ranks.run("%ranks pull batches").stderr


def test_an_error_shows_its_line_and_the_ranks_live_on(ranks):
    outputs = ranks.run("%%ranks -o run\nseen = rank\nif rank == 1:\n    x.view(7)\ndist.all_reduce(x)")
    lines = outputs.error.splitlines()
    assert lines[0] == "RankFailed: RuntimeError on rank 1 of 3" and "----> 4     x.view(7)" in lines
    assert lines[-1] == "ranks 0, 2 stopped because of it" and "labkit" not in outputs.error
    assert ranks.run("run.ok").result == "False"
    assert (
        ranks.run("%%ranks\ndist.all_reduce(x)\nseen, x[0].item()").result == "[0] (0, 3.0)\n[1] (1, 3.0)\n[2] (2, 3.0)"
    )


def test_a_function_of_an_earlier_cell_shows_its_own_lines(ranks):
    ranks.run("%%ranks\ndef halve(n):\n    assert n % 2 == 0\n    return n // 2")
    number = ranks.run("1").messages[0][1]["execution_count"]
    outputs = ranks.run("%%ranks\nhalve(3)")
    assert "line 2: halve(3)" in outputs.error and f"Cell In[{number - 1}], line 3, in halve" in outputs.error
    assert "----> 3     assert n % 2 == 0" in outputs.error


def test_interrupting_leaves_the_ranks_well(ranks):
    before = ranks.run("%ranks").stdout
    request = ranks.start("%%ranks\nprint('begun')\nif rank:\n    dist.barrier()\ntime.sleep(300)", watched=True)
    ranks.wait_for_display(request, r"'\[0-2\]', 'begun'")
    ranks.manager.interrupt_kernel()
    outputs = ranks.collect(request)
    lines = outputs.error.splitlines()
    assert lines[0] == "KeyboardInterrupt: 3 ranks interrupted; their variables are kept"
    assert re.fullmatch(r"\[0\] +Cell In\[\d+\], line 5: time.sleep\(300\) +in no operation", lines[1])
    assert re.fullmatch(r"\[1-2\] +Cell In\[\d+\], line 4: dist.barrier\(\) +waits in barrier .*", lines[2])
    number = re.findall(r"In\[(\d+)\]", outputs.error)[0]
    kept = ranks.run(f"%runs {number}").stdout
    assert re.sub(r"\x1b\[\d*m", "", kept) == f"{outputs.stdout}{outputs.error}\n"
    assert ranks.run("%%ranks\ndist.all_reduce(x)\nx[0].item()").result == "[0-2] 3.0"
    after = ranks.run("%ranks").stdout
    assert [line.split()[2] for line in before.splitlines()] == [line.split()[2] for line in after.splitlines()]


def test_a_time_out_says_where_each_rank_was(ranks):
    clock = ManualClock()
    with ranks.by(clock, BY_LIVE_RANKS):
        ranks.run("%ranks restart")
        ranks.run(f"{SETUP}\nimport announcing\nannouncing.announce_waits()")
        cell = "%%ranks --timeout 1\nif rank == 2:\n    print('waits'); time.sleep(600)\ndist.barrier()"
        request = ranks.start(cell, watched=True)
        ranks.wait_for_waits(request, 3)
        clock.advance(1.0)
        error = ranks.collect(request).error
    assert error.splitlines()[0] == "RankFailed: timeout after 1 s"
    assert "line 4: dist.barrier()" in error
    assert "rank 2 is missing: it is at line 3: print('waits'); time.sleep(600)" in error
    assert ranks.run("%%ranks\nx[0].item() == rank").result == "[0-2] True"


def test_status_shows_who_lives_and_restart_begins_afresh(ranks):
    rows = [line.split() for line in ranks.run("%ranks").stdout.splitlines()]
    assert rows[0] == ["rank", "state", "process", "memory", "last", "cell"]
    assert [row[:2] for row in rows[1:]] == [["0", "alive"], ["1", "alive"], ["2", "alive"]]
    assert all(row[4] == "MB" and row[5] == "Cell" for row in rows[1:])
    outputs = ranks.run("%%ranks\nimport os\nif rank == 1: os._exit(9)")
    assert "rank 1 ended with exit code 9" in outputs.error
    assert "note: rank 1 ended with exit code 9 in Cell In[" in outputs.stdout
    assert re.search(r"1 +ended with exit code 9 in Cell In\[\d+\]", ranks.run("%ranks").stdout)
    refused = ranks.run("%%ranks\nrank")
    assert refused.error == "" and "%ranks restart starts all ranks afresh" in refused.stderr
    assert ranks.run("%%ranks --ranks 0,2\nrank").result == "[0] 0\n[2] 2"
    assert ranks.run("%ranks restart").stdout == "3 ranks started, without any variables yet\n"
    assert ranks.run("%%ranks\n'rank' in globals()").result == "[0-2] False"


def test_an_edited_exercise_reaches_the_ranks_and_is_told_once(ranks):
    ranks.run("%%exercise ring_allreduce\ndef ring_all_reduce(tensor):\n    return 'first'")
    assert ranks.run("%%ranks\nfrom labkit.exercises import ring_allreduce\nring_allreduce.ring_all_reduce(x)").result
    ranks.run("%%exercise ring_allreduce\ndef ring_all_reduce(tensor):\n    return 'second'")
    outputs = ranks.run("%%ranks\nring_allreduce.ring_all_reduce(x)")
    assert outputs.result == "[0-2] 'second'"
    assert outputs.stdout == "note: ring_allreduce has changed since the last cell: it was loaded again\n"
    assert ranks.run("%%ranks\nring_allreduce.ring_all_reduce(x)").stdout == ""
    ranks.run("%reset_exercise ring_allreduce")


PRINTS_LATER = """%%ranks
import pathlib, threading
def later():
    while not pathlib.Path("ended").exists():
        time.sleep(0.01)
    print("later", flush=True)
    pathlib.Path(f"printed-{rank}").touch()
threading.Thread(target=later).start()"""
"""Threads that print when the cell has ended."""


def test_what_threads_print_between_cells_is_shown(ranks):
    ranks.run(PRINTS_LATER)
    waits = "import pathlib, time\npathlib.Path('ended').touch()\n"
    waits += "while not all(pathlib.Path(f'printed-{rank}').exists() for rank in range(3)): time.sleep(0.05)\n"
    assert ranks.run(f"{waits}time.sleep(1)").stdout == ""
    assert ranks.run("%%ranks\nprint('now')").stdout == "printed since the last cell:\n[0-2] later\n[0-2] now\n"


def test_ranks_end_with_stop_and_with_the_kernel(ranks):
    # beside them the forkserver may have processes for the next %%torchrun, which stay
    shown = ranks.run("%%ranks\nimport os\nprint(os.getppid(), os.getpid())").stdout
    running = [psutil.Process(pid) for pid in {int(pid) for pid in re.findall(r" (\d+)", shown)}]
    assert len(running) == 4, "a supervisor and three ranks"
    assert ranks.run("%ranks stop").stdout == "the ranks have ended\n"
    assert ranks.run("%ranks stop").stdout == "there were no live ranks\n"
    _, alive = psutil.wait_procs(running, timeout=BROKEN_SECONDS)
    assert not alive


@pytest.mark.parametrize(
    ("cell", "answer"),
    [
        ("%%ranks --ranks 7\n1", "there is no rank 7: ranks are 0 to 2"),
        ("%%ranks --ranks a\n1", "%%ranks: --ranks: expected ranks such as 0,2 or 0-3, got 'a'"),
        ("%%ranks --push a-b\n1", "%%ranks: --push: expected the name of a variable, got 'a-b'"),
        ("%%ranks -x 2\n1", "unknown option -x; available:"),
        ("%%ranks -n 2\n1", "3 ranks already live: use %ranks restart -n 2 to replace them"),
        ("%ranks push x -n 2", "%ranks push: -n is for %ranks restart -n 2"),
        ("%ranks begin", "%ranks: action: invalid choice: 'begin'"),
        ("%ranks push", "%ranks push: a variable is missing"),
        ("%ranks stop now", "%ranks stop: unexpected argument 'now'"),
    ],
)
def test_what_cannot_be_is_answered_in_one_line(ranks, cell, answer):
    outputs = ranks.run(cell)
    assert outputs.stderr.startswith("UsageError: ") and outputs.stderr.count("\n") == 1
    assert answer in outputs.stderr and outputs.error == ""


def test_the_same_cells_run_on_virtual_ranks_that_stay(kernel):
    kernel.run("%cluster virtual --nproc-per-node 3")
    assert kernel.run(SETUP).error == ""
    assert kernel.run("%%ranks -o run\nprint('on', rank)\ndist.all_reduce(x)\nx").result == "[0-2] float32[2] [3, 3]"
    assert kernel.run("run.trace.clock, len(run.trace.collectives())").result == "('modelled', 3)"
    assert "all_reduce" in kernel.run("%%ranks --ranks 0\ndist.all_reduce(x)").error, "a deadlock, explained"
    assert kernel.run("%%ranks\ntime.sleep(3600)\nx[0].item()").result == "[0-2] 3.0"
    request = kernel.start("%%ranks\nprint('begun')\nwhile True: pass", watched=True)
    kernel.wait_for_display(request, "begun")
    kernel.manager.interrupt_kernel()
    assert kernel.collect(request).error.startswith("KeyboardInterrupt: 3 ranks interrupted; their variables are kept")
    assert kernel.run("%%ranks\nrank").result == "[0] 0\n[1] 1\n[2] 2"


def test_names_of_options_and_actions_are_completed(kernel):
    assert sorted(kernel.complete("%%ranks --pu")) == ["--pull", "--push"]
    assert set(kernel.complete("%ranks re")) == {"restart"}


def test_ranks_that_no_cell_uses_end_where_the_site_says_so(ranks):
    pids = re.findall(r"alive +(\d+)", ranks.run("%ranks").stdout)
    assert len(pids) == 3
    ranks.run("import os, psutil, time\nos.environ['LABKIT_IDLE_RANKS_MINUTES'] = '0.01'")
    ranks.run("%ranks")  # from its end on they are idle
    ranks.run(f"while any(psutil.pid_exists(pid) for pid in {pids}): time.sleep(0.05)".replace("'", ""))
    ranks.run("del os.environ['LABKIT_IDLE_RANKS_MINUTES']")
    said = "the live ranks were ended: no cell has used them for 0.01 minutes, the time that this site allows"
    outputs = ranks.run("%%ranks\n'x' in globals()")
    assert said in outputs.stdout and outputs.result == "[0-2] False", "new ones have started"
    assert said not in ranks.run("%ranks").stdout
