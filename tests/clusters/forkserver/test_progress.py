"""Another process reads the operations that a rank records."""

from __future__ import annotations

import os
import threading

from labkit.clusters.forkserver.progress import COLLECTIVE, MOST_UNDER_WAY, RECEIVE, SEND, Board, Slot


def test_another_process_reads_what_is_under_way() -> None:
    board = Board(2)
    pid = os.fork()
    if pid == 0:
        slot = board.slot(1)
        slot.group("all", range(4))
        slot.end(slot.begin(COLLECTIVE, "barrier", "Cell In[1], line 1", "all", 0))
        slot.wait(slot.begin(RECEIVE, "recv", "x" * 500 + ", line 5", "all", peer=3, tag=7, nbytes=64))
        slot.begin(SEND, "isend", "Cell In[1], line 6", "all", peer=2)
        slot.begin(COLLECTIVE, "all_reduce", "", "unknown group", 5, spins=True)
        os._exit(0)
    os.waitpid(pid, 0)
    assert (board.counts(0), board.under_way(0)) == ((0, 0), [])
    assert board.counts(1) == (4, 1)
    receive, send, collective = board.under_way(1)
    assert (receive.kind, receive.name, receive.peer, receive.tag, receive.nbytes) == ("receive", "recv", 3, 7, 64)
    assert (receive.group, receive.ranks) == ("all", (0, 1, 2, 3))
    assert receive.waited_for and receive.line.endswith("xx, line 5"), "of a long path, its end tells most"
    assert (send.kind, send.peer, send.waited_for) == ("send", 2, False)
    assert (collective.sequence, collective.group, collective.ranks, collective.spins) == (5, "", (), True)
    assert receive.seconds >= send.seconds >= collective.seconds >= 0


def test_more_than_can_be_known_are_counted() -> None:
    board = Board(1)
    slot = board.slot(0)
    operations = [slot.begin(SEND, "isend", "") for _ in range(MOST_UNDER_WAY + 5)]
    assert len(board.under_way(0)) == MOST_UNDER_WAY
    for operation in operations:
        slot.wait(operation)
        slot.end(operation)
    assert board.counts(0) == (MOST_UNDER_WAY + 5,) * 2 and board.under_way(0) == []


def test_many_threads_may_write() -> None:
    board = Board(1)
    slot: Slot = board.slot(0)

    def work() -> None:
        for _ in range(2_000):
            slot.end(slot.begin(COLLECTIVE, "all_reduce", "line"))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert board.under_way(0) == [] and board.counts(0) == (8_000, 8_000)


def test_a_program_that_writes_nonsense_there_does_no_harm() -> None:
    board = Board(1)
    slot = board.slot(0)
    for byte in (b"\xff", b"\x01", b"["):
        slot._memory[:] = byte * len(slot._memory)
        assert all(isinstance(operation.seconds, float) for operation in board.under_way(0))
