"""Fresh processes from a forkserver: output, concurrent runs, deaths, forks, and untrusted data."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from pathlib import Path

import pytest
from clocks import MOMENT, SLOWLY, LateClock
from waiting import wait_until

from labkit import Job, Run, local, virtual
from labkit.clusters import Cluster, State
from labkit.clusters.forkserver.client import ForkServer, shared
from labkit.clusters.forkserver.collector import KEPT_OUTPUT_CHARACTERS


def run(source: str, ranks: int = 1, **options: object) -> Run:
    return local(nproc_per_node=ranks).run(Job(source=source, **options))  # type: ignore[arg-type]


def test_output_is_live_and_complete_with_parts_of_lines(tmp_path: Path) -> None:
    seen: list[tuple[int, str, str]] = []
    source = """
import os, sys, time
print("one", end="", flush=True)
while not os.path.exists(f"SEEN{os.environ['RANK']}"):
    time.sleep(0.01)
print(" line")
print("in", "one", "piece")
os.write(1, b"from C\\n")
print("bad", file=sys.stderr)
os.write(1, "é".encode()[:1]); time.sleep(0.1); os.write(1, "é".encode()[1:])
print("no end", end="")
"""

    def on_output(rank: int, stream: str, text: str) -> None:
        seen.append((rank, stream, text))
        (tmp_path / str(rank)).touch()

    result = local(nproc_per_node=2).run(Job(source=source.replace("SEEN", f"{tmp_path}/")), on_output)
    for rank in range(2):
        parts = [(stream, text) for r, stream, text in seen if r == rank]
        assert parts[0] == ("stdout", "one"), "what was printed so far is shown before the line ends"
        printed = "".join(text for stream, text in parts if stream == "stdout")
        assert printed == "one line\nin one piece\nfrom C\néno end"
        assert "".join(text for stream, text in parts if stream == "stderr") == "bad\n"
        assert result.ranks[rank].output == "".join(text for _, text in parts)


@pytest.mark.parametrize(
    "cluster",
    [local(nproc_per_node=3), virtual(nproc_per_node=3), virtual(nproc_per_node=3, ranks="processes")],
    ids=["local", "virtual", "virtual in processes"],
)
def test_a_silent_job_tells_when_its_ranks_have_started_and_how_many_have_ended(
    cluster: Cluster, tmp_path: Path
) -> None:
    states: list[State] = []

    def on_state(state: State) -> None:
        states.append(state)
        (tmp_path / str(state.ended)).touch()

    # ranks 0 and 1 end when none is said to have ended, rank 2 when they are
    source = f"""
import os, time
while not os.path.exists(os.path.join({str(tmp_path)!r}, "2" if os.environ["RANK"] == "2" else "0")):
    time.sleep(0.1)
"""
    cluster.run(Job(source=source), on_state=on_state).raise_if_failed()
    assert {state.phase for state in states} == {"running"}
    assert (states[0].ended, states[-1].ended) == (0, 3)


def test_output_before_a_kill_is_not_lost() -> None:
    result = run("import os\nprint('almost')\nos.kill(os.getpid(), 9)")
    assert (result.ranks[0].output, result.ranks[0].exit) == ("almost\n", -9)
    assert result.diagnosis().startswith("rank 0 was killed by SIGKILL: this came from outside of the program")


def test_of_much_output_the_last_part_is_kept() -> None:
    line = "x" * 999 + "\n"
    result = run("for i in range(10_100):\n    print('x' * 999)\nprint('the end')")
    output = result.ranks[0].output
    note, _, kept = output.partition("\n")
    assert note == f"[{10_100 * len(line) + 8 - KEPT_OUTPUT_CHARACTERS} earlier characters are not kept]"
    assert len(kept) == KEPT_OUTPUT_CHARACTERS and kept.endswith("the end\n")


def test_values_of_many_megabytes_come_back() -> None:
    values = run("import os, torch\ntorch.full((10_000_000,), int(os.environ['RANK']))", 2).values
    assert [(v.numel(), int(v[-1])) for v in values] == [(10_000_000, 0), (10_000_000, 1)]


def test_two_runs_at_once(tmp_path: Path) -> None:
    results: dict[str, Run] = {}
    source = """
import os, time
print(NAME)
open(f"FOLDER/{NAME}", "w").close()
while len(os.listdir("FOLDER")) < 2:
    time.sleep(0.01)
NAME
"""

    def start(name: str) -> None:
        results[name] = run(source.replace("NAME", repr(name)).replace("FOLDER", str(tmp_path)), 2)

    threads = [threading.Thread(target=start, args=(name,)) for name in ("first", "second")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in ("first", "second"):
        assert results[name].values == [name] * 2
        assert [r.output for r in results[name].ranks] == [f"{name}\n"] * 2


def test_a_warm_process_that_died_is_replaced() -> None:
    forkserver = ForkServer()
    cluster = local(nproc_per_node=1, forkserver=forkserver)
    source = "import os\nint(open(f'/proc/{os.getppid()}/stat').read().rpartition(')')[2].split()[1])"
    (first,) = cluster.run(Job(source=source)).values
    os.kill(first, signal.SIGKILL)
    (second,) = cluster.run(Job(source=source)).values
    assert second != first
    forkserver.close()


def test_a_forked_child_of_the_kernel_starts_its_own() -> None:
    source = "import os\nint(open(f'/proc/{os.getppid()}/stat').read().rpartition(')')[2].split()[1])"
    (ours,) = run(source).values
    queue = multiprocessing.get_context("fork").SimpleQueue()
    child = multiprocessing.get_context("fork").Process(target=lambda: queue.put(run(source).values[0]))
    child.start()
    theirs = queue.get()
    child.join()
    assert theirs != ours
    assert run(source).values == [ours], "and the parent's own is untouched"
    wait_until(lambda: not Path(f"/proc/{theirs}").exists())


def test_a_warm_process_that_cannot_start_says_why() -> None:
    from labkit.clusters.forkserver.client import ForkServerDied

    forkserver = ForkServer(command_prefix=["sh", "-c", "echo no room >&2; exit 1", "--"])
    with pytest.raises(ForkServerDied, match="no room"):
        local(nproc_per_node=1, forkserver=forkserver).run(Job(source="1"))


def test_an_environment_of_its_own_is_all_that_ranks_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "hidden")
    forkserver = ForkServer(environment={"PATH": os.environ["PATH"], "COLOUR": "blue"})
    source = "import os\n(os.environ.get('SECRET'), os.environ['COLOUR'])"
    assert local(nproc_per_node=1, forkserver=forkserver).run(Job(source=source)).values == [(None, "blue")]
    forkserver.close()


HOSTILE = """\
import json, os, stat, struct
from labkit.clusters.forkserver import reports
from labkit.clusters.rank_result import RankResult, RankError
from labkit.trace import Event, Kind, Trace
from labkit.transport import frames
def pipes():
    for name in os.listdir("/proc/self/fd"):
        try:
            if int(name) > 2 and stat.S_ISFIFO(os.fstat(int(name)).st_mode):
                yield int(name)
        except OSError:
            pass
def say(data):
    for descriptor in pipes():
        try:
            os.write(descriptor, data)
        except OSError:
            pass
if os.environ["RANK"] == "1":
"""


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("say(os.urandom(64 << 10))", "a frame of"),
        ("say(struct.pack('<IQ', 4, 1 << 50) + b'null')", "a frame of 1125899906842624 bytes"),
        ("say(struct.pack('<IQ', 4, 0) + b'null')", "a header that is not an object"),
        ("say(struct.pack('<IQ', 40000, 0) + b'[' * 40000)", "a header that is not JSON"),
        ("say(reports.result_frame(RankResult(0, value='mine')))", "a rank that the process does not host"),
        ("say(reports.result_frame(RankResult(7)))", "a rank that the process does not host"),
        ("say(frames.encode(dict(kind='result', rank=1, exit='no'), b''))", "malformed value"),
        ("say(reports.trace_frame(Trace(2, [Event(5, Kind.SEND, 'send', 0.0, 1.0)])))", "values of the wrong form"),
        ("say(reports.trace_frame(Trace(2, [Event(1, Kind.SEND, '', float('nan'), 1.0)])))", "of the wrong form"),
        ("say(reports.trace_frame(Trace(1000)))", "a trace of another number of ranks"),
        ("for _ in range(1001): say(reports.trace_frame(Trace(2)))", "more than 1000 traces"),
        ("say(reports.result_frame(RankResult(1, error=RankError('E', 'm', time=float('inf')))))", "no number"),
    ],
)
def test_malformed_reports_cost_only_their_sender(statement: str, message: str) -> None:
    result = run(HOSTILE + "    " + statement + "\n'fine'", 2)
    assert result.values == ["fine", None]
    error = result.ranks[1].error
    assert error is not None and error.type == "MalformedReport" and message in error.message
    assert result.ranks[1].exit == 1


def test_nothing_that_arrives_is_unpickled(tmp_path: Path) -> None:
    """Every field of a report that could carry bytes carries a pickle that would leave a mark."""
    mark = tmp_path / "mark"
    source = (
        HOSTILE.replace('"1"', '"0"')
        + f"""\
    import pickle
    class Trap:
        def __reduce__(self):
            return (open, ({str(mark)!r}, "w"))
    trap = pickle.dumps(Trap())
    for kind in ("result", "trace", "output", "note", "thread"):
        say(frames.encode(dict(kind=kind, rank=0, stream="stdout", exit=0, identifier=1), trap))
Trap()
"""
    )
    run(source, 1)
    assert not mark.exists()


def test_values_beyond_the_bound_are_refused() -> None:
    forkserver = ForkServer(max_bytes=1 << 20)
    result = local(nproc_per_node=2, forkserver=forkserver).run(
        Job(source="import os, torch\ntorch.zeros(1 << 20) if os.environ['RANK'] == '1' else 'small'")
    )
    assert result.ranks[0].value in ("small", None)
    error = result.ranks[1].error
    assert error is not None and "a frame of 4194" in error.message
    forkserver.close()


def test_a_rank_may_print_without_end_until_the_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = LateClock(SLOWLY)
    monkeypatch.setattr(shared(), "clock", clock)
    job = Job(source="while True:\n    print('y' * 1000)", timeout=MOMENT)
    result = local(nproc_per_node=1).run(job, lambda *_: clock.start())
    assert result.stopped == "timeout after 0.0002 s"
    assert "y" * 900 in result.ranks[0].output


def test_an_end_by_no_known_signal_can_be_told() -> None:
    found = run(HOSTILE + "    say(reports.result_frame(RankResult(1, exit=-999)))", 2)
    assert found.ranks[1].exit == -999 and "signal 999" in found.diagnosis()
