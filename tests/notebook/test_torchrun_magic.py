"""%cluster and %%torchrun in a real kernel, on real and on virtual ranks."""

import re
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from clocks import MOMENT, SLOWLY, LateClock, ManualClock
from waiting import BROKEN_SECONDS

LOCAL = "%cluster local --nproc-per-node 3"
VIRTUAL = "%cluster virtual --nproc-per-node 3"


@pytest.fixture(params=[LOCAL, VIRTUAL], ids=["local", "virtual"])
def cluster(request, kernel):
    kernel.run(request.param)
    return request.param


@pytest.fixture(scope="module")
def folder(kernel) -> Path:
    """The kernel's working directory."""
    return Path(eval(kernel.run("import os; os.getcwd()").result))


# first in this file: nothing has been chosen yet
def test_without_a_choice_cells_run_on_two_processes_and_say_so(kernel):
    assert kernel.run("%cluster").stdout == (
        "local: 2 processes on this machine (the default; %cluster chooses another)\n"
    )
    outputs = kernel.run("%%torchrun\nimport os\nint(os.environ['WORLD_SIZE'])")
    assert "(the default; " in outputs.stdout
    assert outputs.result == "[0-1] 2"


def test_cluster_shows_what_it_chose(kernel):
    shown = kernel.run("%cluster virtual dgx-a100 --nnodes 2 --inter_node=ethernet-25g").stdout
    assert "2 nodes x 8 a100-80gb (16 ranks)" in shown and "ethernet-25g between nodes" in shown
    assert kernel.run("%cluster").stdout == shown


def test_a_model_too_large_for_this_machine_runs_on_fake_tensors(kernel):
    assert "tensors have shapes only" in kernel.run("%cluster virtual --fake --gpu h200-141gb").stdout
    cell = "%%torchrun\nimport torch\ntuple((torch.empty(10_000_000, 1000) @ torch.empty(1000, 4)).shape)"
    assert kernel.run(cell).result == "[0-1] (10000000, 4)"


def test_equal_lines_fold_and_values_come_back(kernel, cluster):
    outputs = kernel.run(
        """%%torchrun -o run
import sys, torch, torch.distributed as dist
dist.init_process_group()
rank = dist.get_rank()
print("rank", rank)
print("everybody")
tensor = torch.full((100,), float(rank))
dist.all_reduce(tensor)
print("careful", file=sys.stderr)
tensor, rank % 2"""
    )
    assert outputs.stdout == "[0] rank 0\n[1] rank 1\n[2] rank 2\n[0-2] everybody\n[0-2 stderr] careful\n"
    assert outputs.stderr == ""
    assert outputs.result == "[0, 2] (float32[100], all 3, 0)\n[1] (float32[100], all 3, 1)"
    assert kernel.run("run.ok, run.ranks[1].output, len(run.trace.collectives())").result == (
        "(True, 'rank 1\\neverybody\\ncareful\\n', 3)"
    )


def test_options_override_the_cluster_for_one_cell(kernel, cluster):
    environment = "import os\n[os.environ[name] for name in ('WORLD_SIZE', 'LOCAL_WORLD_SIZE')]"
    assert kernel.run(f"%%torchrun -n 2 --nnodes 2\n{environment}").result == "[0-3] ['4', '2']"
    assert kernel.run(f"%%torchrun\n{environment}").result == "[0-2] ['3', '3']"


def test_a_semicolon_keeps_the_value_back(kernel):
    kernel.run(LOCAL)
    assert kernel.run("%%torchrun\n1 + 1;").result == ""
    assert kernel.run("%%torchrun\nNone").result == ""


def test_an_error_shows_the_rank_the_line_and_nothing_of_labkit(kernel, cluster):
    outputs = kernel.run(
        """%%torchrun -o run
import torch, torch.distributed as dist
dist.init_process_group()
def work(tensor):
    if dist.get_rank() == 1:
        raise KeyError("shard")
    dist.all_reduce(tensor)

work(torch.ones(2, 2))"""
    )
    assert outputs.error_name == "RankFailed"
    lines = outputs.error.splitlines()
    assert lines[0] == "RankFailed: KeyError on rank 1 of 3"
    assert lines[1].endswith("line 9: work(torch.ones(2, 2))")
    assert '----> 6         raise KeyError("shard")' in lines
    assert "      tensor = float32[2, 2]" in lines
    assert lines[-2:] == ["KeyError: 'shard'", "ranks 0, 2 stopped because of it"]
    assert "labkit" not in outputs.error and "site-packages" not in outputs.error
    # the count on the left of the cell is the one that the error names
    number = kernel.run("run.ok").messages[0][1]["execution_count"]
    assert f"Cell In[{number - 1}], line 6" in outputs.error
    assert kernel.run("run.ok").result == "False", "-o keeps a failed run too"


def test_lines_count_from_the_top_of_the_cell_whatever_stands_there(kernel, cluster):
    assert "----> 5 1 / 0" in kernel.run("\n\n%%torchrun\n\n1 / 0").error
    assert "----> 4 1 / 0" in kernel.run("%%time\n%%torchrun\n\n1 / 0").error


def test_a_deadlock_is_explained(kernel):
    kernel.run(VIRTUAL)
    error = kernel.run(
        """%%torchrun
import torch, torch.distributed as dist
dist.init_process_group()
dist.send(torch.ones(9), (dist.get_rank() + 1) % 3)"""
    ).error
    assert "DeadlockError on every rank" in error and "cycle: 0 → 1 → 2 → 0" in error and "----> 4" in error


HANGS = """%%torchrun OPTIONS
import time, torch.distributed as dist
dist.init_process_group()
if dist.get_rank() == 2:
    time.sleep(600)
dist.barrier()"""
ANNOUNCED = HANGS.replace("()\n", "()\nimport announcing; announcing.announce_waits()\n", 1).replace(
    "time.sleep", "print('waits'); time.sleep"
)
BY_ITS_SUPERVISOR = """
from labkit.clusters.forkserver import client
patch.setattr(client.shared(), "supervisor_clock", clock)
"""
CLOCK = """
import pathlib, time
from labkit.clusters.forkserver import client
client.shared().clock = lambda: 2.0 if pathlib.Path("late").exists() else 0.0
"""


@pytest.fixture
def late(kernel, folder: Path) -> Iterator[Path]:
    """The file that moves the clock of the kernel's time limits; it stands still without."""
    kernel.run(CLOCK)
    file = folder / "late"
    yield file
    kernel.run("client.shared().clock = time.monotonic")
    file.unlink(missing_ok=True)


def test_a_time_out_says_where_each_rank_was(kernel, late):
    kernel.run(LOCAL)
    hangs = HANGS.replace("OPTIONS", "--timeout 1.5 --hang-timeout 0.5 --on-hang wait")
    request = kernel.start(hangs, watched=True)
    kernel.wait_for_display(request, "ranks 0-1 wait in it at line 6, rank 2 is missing: it is at line 5")
    late.touch()
    error = kernel.collect(request).error
    assert error.splitlines()[0] == "RankFailed: timeout after 1.5 s"
    assert re.search(r"line 5: time.sleep\(600\) +in no operation", error)
    assert re.search(r"\[0-1\]  Cell In\[\d+\], line 6: dist.barrier\(\) +waits in barrier #1 of the group 0-2", error)


def test_a_hang_says_who_is_missing_and_what_to_try(kernel):
    kernel.run(LOCAL)
    clock = LateClock(SLOWLY)
    with kernel.by(clock, BY_ITS_SUPERVISOR):
        request = kernel.start(ANNOUNCED.replace("OPTIONS", f"--hang-timeout {MOMENT}"), watched=True)
        kernel.wait_for_waits(request, 3)
        clock.start()
        lines = kernel.collect(request).error.splitlines()
    assert lines[0] == f"RankFailed: hang: no output and no progress for {MOMENT} s"
    assert lines[3] == (
        "barrier #1 of the group 0-2: ranks 0-1 wait in it at line 7, "
        "rank 2 is missing: it is at line 6: print('waits'); time.sleep(600)"
    )
    assert lines[4].startswith("try: find out why rank 2 does not get past Cell In[")
    short = f"{HANGS.replace('600', '2.5')}\n'done'"
    assert kernel.run(short.replace("OPTIONS", "--hang-timeout off")).result == "[0-2] 'done'"


def test_a_hang_that_is_waited_for_ends_when_the_ranks_go_on(kernel, folder):
    kernel.run(LOCAL)
    waits = HANGS.replace("OPTIONS", "--hang-timeout 0.5 --on-hang wait").replace(
        "time.sleep(600)", "import pathlib\n    while not pathlib.Path('seen').exists(): time.sleep(0.05)"
    )
    request = kernel.start(f"{waits}\n'done'", watched=True)
    kernel.wait_for_display(request, "rank 2 is missing: it is at line 6")
    (folder / "seen").touch()
    assert kernel.collect(request).result == "[0-2] 'done'"
    (folder / "seen").unlink()


def test_an_interrupt_says_where_virtual_ranks_were(kernel):
    kernel.run(VIRTUAL)
    request = kernel.start("%%torchrun\nprint('begun', flush=True)\nwhile True: pass", watched=True)
    kernel.wait_for_display(request, "begun")
    kernel.manager.interrupt_kernel()
    error = kernel.collect(request).error
    assert error.startswith("KeyboardInterrupt: 3 ranks stopped\n") and "line 3: while True: pass" in error


def test_death_by_signal_and_exit_codes_are_named(kernel):
    kernel.run(LOCAL)
    killed = (
        "import os, signal, time\nif os.environ['RANK'] == '1': os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(60)"
    )
    assert "rank 1 was killed by SIGKILL" in kernel.run(f"%%torchrun\n{killed}").error
    assert "ended with exit code 3" in kernel.run("%%torchrun\nimport sys\nsys.exit(3)").error


@pytest.mark.parametrize(
    ("cell", "answer"),
    [
        ("%%torchrun -n 0\n1", "%%torchrun: -n/--nproc-per-node: expected a whole number of at least 1, got '0'"),
        ("%%torchrun -n x\n1", "%%torchrun: -n/--nproc-per-node: expected a whole number of at least 1, got 'x'"),
        ("%%torchrun --timeout -1\n1", "%%torchrun: --timeout: expected a number of seconds above 0, got '-1'"),
        ("%%torchrun -o 2\n1", "%%torchrun: -o/--output: expected the name of a variable, got '2'"),
        ("%%torchrun --nprocs-per-node 2\n1", "unknown option --nprocs-per-node; did you mean --nproc-per-node?"),
        ("%%torchrun 4\n1", "%%torchrun: unexpected argument '4'"),
        ("%cluster virtul", "%cluster: unknown kind of cluster 'virtul'; did you mean %cluster virtual?"),
        ("%cluster dgx-a100", "did you mean %cluster virtual dgx-a100?"),
        ("%cluster virtual dgx", "unknown preset 'dgx'"),
        ("%cluster virtual 4", "got 4; 4 GPUs in a node are --nproc-per-node 4"),
        ("%cluster local --fake", "--fake is not an option of local clusters"),
        ("%cluster virtual --gpu a100", "unknown gpu 'a100'; did you mean a100-80gb"),
        ("%cluster local --gpu t4", "%cluster: --gpu is not an option of local clusters"),
        ("%cluster local --backend mpi", "backend must be one of gloo, nccl, got 'mpi'"),
        ("%cluster virtual -n 9999", "9999 ranks, at most 1024 are possible"),
        ("%cluster 'virtual", "%cluster: no closing quotation"),
    ],
)
def test_what_cannot_be_is_answered_in_one_line(kernel, cell, answer):
    outputs = kernel.run(cell)
    assert outputs.stderr.startswith("UsageError: ") and outputs.stderr.count("\n") == 1
    assert answer in outputs.stderr
    assert outputs.error == "", "no traceback"
    assert kernel.run("1").result == "1"


@pytest.mark.parametrize(
    ("body", "line", "message"),
    [
        ("x = = 1", 2, "invalid syntax"),
        ("\n\nif x:\nx = 1", 5, "expected an indented block"),
        ("print(1)\nreturn 2", 3, "'return' outside function"),
        ("print(1)\n!ls", 3, "magics and ! do not work"),
    ],
)
def test_a_cell_that_does_not_parse_points_at_its_line(kernel, body, line, message):
    outputs = kernel.run(f"%%torchrun\n{body}")
    assert f", line {line}\n    {body.splitlines()[-1]}" in outputs.error
    assert "^" in outputs.error and message in outputs.error and "labkit" not in outputs.error


def test_interrupting_stops_the_ranks_and_leaves_the_kernel_well(kernel):
    kernel.run(LOCAL)
    server = kernel.run("%%torchrun -n 1\nimport os, psutil\npsutil.Process(os.getppid()).ppid()").result
    forkserver = psutil.Process(int(server.removeprefix("[0] ")))
    request = kernel.start("%%torchrun\nimport time\nprint('begun', flush=True)\ntime.sleep(300)", watched=True)
    process = psutil.Process(kernel.manager.provisioner.process.pid)
    kernel.wait_for_display(request, r"'\[0-2\]', 'begun'")
    running = forkserver.children(recursive=True)
    assert len(running) == 4, "a supervisor and three ranks"
    kernel.manager.interrupt_kernel()
    outputs = kernel.collect(request)
    told, *places = outputs.error.splitlines()
    assert told == "KeyboardInterrupt: 3 ranks stopped"
    assert len(places) == 1 and re.match(r"\[0-2\]  Cell In\[\d+\], line 4: time.sleep\(300\)", places[0])
    assert outputs.stdout == "[0-2] begun\n"
    # the stored output for pages opened later is what an open page shows
    assert_kept_as_shown(kernel, outputs)
    _, alive = psutil.wait_procs(running, timeout=BROKEN_SECONDS)
    assert not alive and forkserver.is_running() and set(process.children()) <= {forkserver}, (
        "only the forkserver is left"
    )
    assert kernel.run("%%torchrun\n7").result == "[0-2] 7"


def assert_kept_as_shown(kernel, outputs):
    number = re.findall(r"In\[(\d+)\]", outputs.error)[0]
    assert re.sub(r"\x1b\[\d*m", "", kernel.run(f"%runs {number}").stdout) == f"{outputs.stdout}{outputs.error}\n"
    (shown,) = (content for kind, content in outputs.messages if kind == "error")
    assert "KeyboardInterrupt: " + shown["evalue"] == outputs.error.splitlines()[0]
    kept = "from labkit.notebook.output.runs import runs"
    assert kernel.run(f"{kept}\nruns.of_cell({number}).outputs[-1]['evalue']").result == repr(shown["evalue"])


WAITS = "import pathlib, time\nwhile not pathlib.Path('seen').exists():\n    time.sleep(0.05)\n"


def test_a_silent_cell_is_shown_as_running_and_says_where_its_lines_will_be(kernel, folder):
    kernel.run(LOCAL)
    request = kernel.start(f"%%torchrun -n 2\n{WAITS}", watched=True)
    kernel.wait_for_display(request, "2 ranks running")
    (folder / "seen").touch()
    outputs = kernel.collect(request)
    (folder / "seen").unlink()
    states = [shown["state"].partition(",")[0] for shown in outputs.live]
    # on a busy machine it may take more than a second until they run
    assert set(states) <= {"2 ranks starting", "2 ranks running"} and states[-1] == "2 ranks running", states
    (display,) = outputs.displays
    assert display["text/plain"].endswith(f"ends before that, it is in {outputs.live[0]['logs']}.")
    assert kernel.run("%runs").stdout.splitlines()[-1].endswith("nothing was printed")


def test_while_somebody_watches_lines_appear_and_only_the_last_state_stays(kernel, folder):
    kernel.run(LOCAL)
    cell = """%%torchrun
import pathlib, sys, time
for step in range(26):
    sys.stdout.write(f"\\rstep {step}")
    sys.stdout.flush()
    while step % 5 == 0 and not pathlib.Path(f"seen-{step}").exists():
        time.sleep(0.02)
print()
print("done")"""
    request = kernel.start(cell, watched=True)
    for step in range(0, 25, 5):
        kernel.wait_for_display(request, rf"\bstep {step}\b")
        (folder / f"seen-{step}").touch()
    kernel.wait_for_display(request, r"\bstep 25\b")
    kernel.wait_for_display(request, r"3 ranks running, ([2-9]|\d\d+) s")
    (folder / "seen-25").touch()
    outputs = kernel.collect(request)
    bars = [text for shown in outputs.live for label, text, rank in shown["bars"] if "step" in text]
    assert len(set(bars)) > 5, "the progress bar is seen moving"
    running = [re.fullmatch(r"3 ranks running, (\d+) s", shown["state"]) for shown in outputs.live]
    seconds = [int(state[1]) for state in running if state is not None]
    assert seconds == sorted(seconds) and seconds[-1] >= 2
    kinds = [kind for kind, _ in outputs.messages if not kind.startswith("comm_")]
    after = kinds[kinds.index("clear_output") :]
    assert "display_data" not in after and outputs.stdout == "[0-2] step 25\n[0-2] done\n"
    # nbclient and nbval get what stays, and nothing else
    assert [kind for kind, _ in kernel.run(cell).messages] == ["execute_input", "stream"]


def test_floods_are_cut_and_say_so(kernel):
    kernel.run(LOCAL)
    outputs = kernel.run("%%torchrun -n 1 -o run\nfor i in range(30_000): print(i)\nprint('x' * 10**6)")
    assert len(outputs.stdout) < 20_000
    lines = outputs.stdout.splitlines()
    assert lines[0] == "[0] 0" and lines[-2] == "[0] 29999"
    assert lines[-1].startswith("[0] xxx") and lines[-1].endswith("x…")
    assert "... 29,641 more lines; `%runs` lists the files" in outputs.stdout
    assert kernel.run("len(run.ranks[0].output), len((run.logs / 'rank0.log').read_text())").result == (
        "(1168891, 1168891)"
    )


def test_past_runs_are_listed_and_shown_again(kernel):
    kernel.run(LOCAL)
    with kernel.by(ManualClock(), BY_ITS_SUPERVISOR):  # the second rank may be slow to fail, too
        well = kernel.run("%%torchrun\nimport os\nprint('hello')\nint(os.environ['RANK']) // 2")
        failed = kernel.run("%%torchrun -n 2\n1 / 0")
    number = well.messages[0][1]["execution_count"]
    *_, first, second = kernel.run("%runs").stdout.splitlines()
    assert re.fullmatch(rf"In\[{number}\] +3 ranks +\S+ s +succeeded +\S+logs/\d{{4}}", first)
    assert f"In[{number + 1}]" in second and "ZeroDivisionError on every rank" in second
    again = kernel.run(f"%runs {number}")
    assert again.stdout == well.stdout == "[0-2] hello\n"
    assert again.displays == [{"text/plain": well.result}] == [{"text/plain": "[0-1] 0\n[2] 1"}]
    assert "ZeroDivisionError" in failed.error and "ZeroDivisionError" in kernel.run(f"%runs {number + 1}").stdout
    assert "cell 7000 has no known run" in kernel.run("%runs 7000").stderr


def test_help_and_tab(kernel):
    page = kernel.run("%%torchrun?").payload[0]["data"]["text/plain"]
    assert "--nproc-per-node" in page and "ranks per node" in page
    assert "--nproc-per-node" in kernel.complete("%%torchrun --np")
    assert {"dgx-a100", "dgx-h100"} <= set(kernel.complete("%cluster virtual dgx"))
    assert kernel.complete("%check ring_") == ["ring_allreduce"]


def test_tab_offers_the_options_of_a_magic_and_no_names_of_python(kernel):
    kernel.run("%reload_ext labkit")  # which offers nothing twice
    assert kernel.complete("%%torchrun -n 4 --t") == ["--timeout"]
    assert kernel.complete("%cluster v") == ["virtual"]
    assert all(word.startswith("--") for word in kernel.complete("%%torchrun --"))
    assert "timeit" not in kernel.complete("%check ")
    assert "--timeout" not in kernel.complete("\n%%torchrun -n 4 --t"), "a cell magic is on the first line"


# last in this file: the process that such ranks are forked from stays
def test_virtual_ranks_can_be_processes(kernel):
    assert "ranks are processes" in kernel.run("%cluster virtual --nproc-per-node 2 --ranks processes").stdout
    kernel.run(
        """%%torchrun -o run
import os, torch.distributed as dist
dist.init_process_group()
dist.barrier()
os.getpid()"""
    )
    assert kernel.run("len(set(run.values)), run.trace.clock").result == "(2, 'modelled')"
    crash = "%%torchrun -o run\nimport ctypes, os\nif os.environ['RANK'] == '1':\n    ctypes.string_at(0)"
    assert "SIGSEGV" in kernel.run(crash).error
    assert "cannot stay alive" in kernel.run("%%ranks\n1").stderr
    assert "must be threads" in kernel.run("%cluster virtual --ranks processes --fake").stderr
    assert "not 'fibres'" in kernel.run("%cluster virtual --ranks fibres").stderr
