"""Output of ranks: at once if there is little, in batches if there is much, always whole and in order."""

from __future__ import annotations

import os

from clocks import ManualClock
from waiting import wait_until

from labkit import Job, virtual
from labkit.clusters.forkserver.output_batches import OutputBatches
from labkit.clusters.forkserver.rank_process import ProcessReporter


def test_a_single_text_is_passed_on_at_once() -> None:
    seen: list[tuple[int, str, str]] = []
    batches = OutputBatches(lambda *output: seen.append(output))
    batches.add(3, "stdout", "hello")
    assert seen == [(3, "stdout", "hello")]


def test_many_texts_come_joined_and_in_order() -> None:
    seen: list[tuple[int, str, str]] = []
    batches = OutputBatches(lambda *output: seen.append(output), ManualClock())
    sent = [(number // 700 % 2, "stderr" if number % 5 == 0 else "stdout", f"{number}\n") for number in range(7000)]
    for output in sent:
        batches.add(*output)
    batches.flush()
    assert len(seen) < len(sent)
    for rank, stream in {output[:2] for output in sent}:
        assert "".join(text for *whose, text in seen if whose == [rank, stream]) == "".join(
            text for *whose, text in sent if whose == [rank, stream]
        )
    assert "".join(text for *_, text in seen) == "".join(text for *_, text in sent)


def test_ranks_that_print_a_lot_take_few_messages() -> None:
    source = "for number in range(5000):\n    print('line', number)"
    calls: list[int] = []
    run = virtual(nproc_per_node=2).run(Job(source=source, trace=False), on_output=lambda rank, *_: calls.append(rank))
    wanted = "".join(f"line {number}\n" for number in range(5000))
    assert [rank.output for rank in run.raise_if_failed().ranks] == [wanted] * 2
    assert len(calls) < 5000


def test_a_forked_process_prints_whatever_the_parent_was_about_to_print() -> None:
    reading, writing = os.pipe()
    reporter = ProcessReporter(writing)
    with reporter._lock, reporter._batches._lock:  # as if output were being passed on at the fork
        child = os.fork()
        if child == 0:
            reporter.output(0, "stdout", "from the child")
            os._exit(0)
    wait_until(lambda: os.waitpid(child, os.WNOHANG)[0])
    assert b"from the child" in os.read(reading, 1000)
