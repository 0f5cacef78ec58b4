"""Assembling printed lines: whatever ranks print, and however it is split on arrival."""

import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tqdm import tqdm

from labkit.notebook.output.lanes import Lanes
from labkit.rank_output.folding import FoldedLine, OutputLine, align, fold, label, settle
from labkit.rank_output.rows import LONGEST_LINE


def lines(*printed: tuple[int, str], gap: float = 0.0, start: float = 0.0) -> list[OutputLine]:
    return [OutputLine(start + index * gap, rank, "stdout", text) for index, (rank, text) in enumerate(printed)]


printed = st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc"), st.floats(0, 1)), max_size=30).map(
    lambda drawn: [OutputLine(time, rank, "stdout", text) for time, (rank, text, _) in enumerate(drawn)]
)


@pytest.mark.parametrize("arrange", [settle, align, list])
@given(given_lines=printed)
def test_arranging_loses_nothing_and_keeps_each_ranks_order(arrange, given_lines):
    arranged = arrange(given_lines)
    for rank in range(4):
        assert [x.text for x in arranged if x.rank == rank] == [x.text for x in given_lines if x.rank == rank]


@given(printed)
def test_folding_shows_each_ranks_lines_in_their_order(given_lines):
    folded = fold(given_lines)
    for rank in range(4):
        assert [row.text for row in folded if rank in row.ranks] == [x.text for x in given_lines if x.rank == rank]
    assert Counter(rank for row in folded for rank in row.ranks) == Counter(x.rank for x in given_lines)


def shown(folded: list[FoldedLine]) -> list[str]:
    return [f"{label(line.ranks, line.stream, None)} {line.text}" for line in folded]


def test_labels_tell_the_node_where_there_are_several():
    assert label([0, 1, 2, 3], "stdout", None) == "[0-3]"
    assert label([4, 5, 7], "stderr", 4) == "[1:4-5, 7 stderr]"
    # ranks count over all nodes, so ranks of several nodes need no node
    assert label([3, 4], "stdout", 4) == "[3-4]"


def test_lines_of_processes_are_settled_by_turns_within_a_moment():
    arrived = [(2, "hello 2"), (0, "hello 0"), (0, "same"), (2, "same"), (1, "hello 1"), (1, "same")]
    assert shown(fold(settle(lines(*arrived)))) == ["[0] hello 0", "[1] hello 1", "[2] hello 2", "[0-2] same"]
    # seconds apart, the order is what happened
    assert [line.text for line in settle(lines((1, "first"), (0, "second"), gap=2.0))] == ["first", "second"]
    # a rank that starts late is not
    late = [*lines((1, "hello 1"), (1, "same")), *lines((0, "hello 0"), (0, "same"), start=0.6)]
    assert shown(fold(settle(late))) == ["[0] hello 0", "[1] hello 1", "[0-1] same"]
    # nor are two of them, one after the other
    later = [line for start, rank in ((0.0, 0), (0.4, 2), (0.8, 1)) for line in
             lines((rank, f"hello {rank}"), (rank, "same"), gap=0.1, start=start)]  # fmt: skip
    assert shown(fold(settle(later))) == ["[0] hello 0", "[1] hello 1", "[2] hello 2", "[0-2] same"]
    # what others have printed long after their first lines is shown before a line that may be an answer to it
    answer = [*lines((0, "first"), (0, "asks"), gap=0.5), *lines((1, "answers"), start=0.8)]
    assert shown(fold(settle(answer))) == ["[0] first", "[0] asks", "[1] answers"]


def test_lines_of_virtual_ranks_keep_their_time_and_still_fold():
    by_turns = [(0, "hello 0"), (0, "same"), (1, "hello 1"), (1, "same"), (0, "after"), (1, "after")]
    assert shown(fold(align(lines(*by_turns)))) == ["[0] hello 0", "[1] hello 1", "[0-1] same", "[0-1] after"]
    served = [(0, "served 1"), (0, "served 2"), (1, "finished"), (2, "finished")]
    assert shown(fold(align(lines(*served)))) == ["[0] served 1", "[0] served 2", "[1-2] finished"]


pieces = [
    "ab",
    "c\n",
    "\n",
    "\r",
    "d\r\n",
    "\x1b[A",
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "\x08",
    "\x1b[2K",
    "\x00",
]


@given(st.lists(st.sampled_from(pieces), max_size=12), st.data())
def test_pieces_do_not_matter(drawn, data):
    whole = "".join(drawn)
    at_once, in_pieces = Lanes(in_order=True), Lanes(in_order=True)
    at_once.feed(0, "stdout", whole)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=5)))
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        in_pieces.feed(0, "stdout", whole[start:end])
    assert at_once.close() == in_pieces.close()


def open_texts(lanes: Lanes) -> dict[int, list[str]]:
    return {rank: [row.text for _, row in rows] for rank, rows in lanes.open_rows().items()}


def test_a_carriage_return_writes_the_line_anew():
    lanes = Lanes(in_order=True)
    lanes.feed(1, "stderr", "10%\r55%")
    assert open_texts(lanes) == {1: ["55%"]} and lanes.text() == ""
    lanes.feed(1, "stderr", "\r100%\n")
    assert open_texts(lanes) == {} and lanes.close() == "[1] 100%\n"


def test_bars_within_bars_are_one_line_each():
    lanes = Lanes(in_order=False)
    lanes.feed(0, "stdout", "before\n")
    for epoch in range(3):
        lanes.feed(0, "stderr", f"\repochs: {epoch}/3")
        for step in range(5):
            lanes.feed(0, "stderr", f"\n\rsteps: {step}/5\x1b[A")
            assert open_texts(lanes)[0] == [f"epochs: {epoch}/3", f"steps: {step}/5"]
        lanes.feed(0, "stderr", "\n\r          \r\x1b[A")  # the inner bar is cleared
    lanes.feed(0, "stderr", "\repochs: 3/3\n\r\nafter\n")
    assert lanes.close() == "[0] before\n[0] epochs: 3/3\n[0 stderr] after\n"


def test_tqdm_itself_leaves_one_line_for_all_ranks():
    lanes = Lanes(in_order=False)
    for rank in range(4):

        class Stream:
            def write(self, text: str, rank: int = rank) -> None:
                lanes.feed(rank, "stderr", text)

            def flush(self) -> None: ...

        for _ in tqdm(range(2), desc="epochs", file=Stream(), mininterval=0):
            for _ in tqdm(range(3), desc="steps", file=Stream(), leave=False, position=1, mininterval=0):
                time.sleep(0.001 * rank)  # noqa: TID251  # ranks differ in speed; nothing waits for that
    (line,) = lanes.close().splitlines()
    assert line.startswith("[0-3] epochs: 100%|") and "| 2/2 [" in line


def test_what_could_do_harm_is_taken_out():
    lanes = Lanes(in_order=True)
    lanes.feed(0, "stdout", "\x1b]0;a title\x07plain\x1b[10;10H \x1b[?1049h\x1b(0text\n")
    lanes.feed(0, "stdout", "\x1b[31mred\nplain again\n<script>alert(1)</script>\n")
    lanes.feed(0, "stdout", "".join(map(chr, range(0x80, 0xA0))) + "\x00\x01\x02\ud800 end\x07\n")
    assert lanes.close().splitlines() == [
        "[0] plain text",
        "[0] \x1b[31mred\x1b[0m",
        "[0] plain again",
        "[0] <script>alert(1)</script>",
        "[0] \ufffd end",
    ]


def test_a_line_without_end_stays_short():
    lanes = Lanes(in_order=True)
    for _ in range(10_000):
        lanes.feed(0, "stdout", "x" * LONGEST_LINE)
    assert len(lanes.close()) == LONGEST_LINE + len("[0] …\n")


def test_many_ranks_that_print_much_fold_to_little():
    lanes = Lanes(in_order=False)
    for step in range(100):
        for rank in range(256):
            lanes.feed(rank, "stdout", f"step {step}\n")
    text = lanes.close().splitlines()
    assert len(text) < 380
    assert text[0] == "[0-255] step 0"


def test_the_end_of_every_rank_is_shown_whoever_prints_most():
    lanes = Lanes(in_order=False)
    for rank in range(8):
        lanes.feed(rank, "stdout", "".join(f"rank {rank} step {step}\n" for step in range(100_000)))
    lanes.feed(3, "stdout", "".join(f"still {step}\n" for step in range(100_000)))
    text = lanes.close()
    assert len(text) < 20_000 and "[0] rank 0 step 0\n" in text
    for rank in (0, 1, 2, 4, 5, 6, 7):
        assert f"[{rank}] rank {rank} step 99999\n" in text
    assert "[3] still 99999\n" in text
    # all of them are counted
    said = next(line for line in text.splitlines() if line.startswith("... "))
    assert int(said.split()[1].replace(",", "")) + len(text.splitlines()) - 1 == 900_000
    assert sum(len(chunk.text) for kept in (lanes._first, *lanes._last.values()) for chunk in kept) < 1_000_000
    assert "still 99999" in [line.text for line in lanes.recent(3)]
