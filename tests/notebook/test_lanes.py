"""How printed lines are put together: whatever ranks print, and however it arrives in pieces."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.notebook.lanes import LONGEST_LINE, Lanes, Line, align, fold, settle


def lines(*printed: tuple[int, str], gap: float = 0.0) -> list[Line]:
    return [Line(index * gap, rank, "stdout", text) for index, (rank, text) in enumerate(printed)]


printed = st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc"), st.floats(0, 1)), max_size=30).map(
    lambda drawn: [Line(time, rank, "stdout", text) for time, (rank, text, _) in enumerate(drawn)]
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
        mine = [row.split("] ")[1] for row in folded if rank in expand(row)]
        assert mine == [x.text for x in given_lines if x.rank == rank]
    assert sum(len(expand(row)) for row in folded) == len(given_lines)
    assert Counter(rank for row in folded for rank in expand(row)) == Counter(x.rank for x in given_lines)


def expand(row: str) -> list[int]:
    ranks = []
    for part in row[1 : row.index("]")].split(", "):
        first, _, last = part.partition("-")
        ranks += range(int(first), int(last or first) + 1)
    return ranks


def test_lines_of_processes_are_settled_by_turns_within_a_moment():
    arrived = [(2, "hello 2"), (0, "hello 0"), (0, "same"), (2, "same"), (1, "hello 1"), (1, "same")]
    assert fold(settle(lines(*arrived))) == ["[0] hello 0", "[1] hello 1", "[2] hello 2", "[0-2] same"]
    # seconds apart, the order is what happened
    assert [line.text for line in settle(lines((1, "first"), (0, "second"), gap=2.0))] == ["first", "second"]


def test_lines_of_virtual_ranks_keep_their_time_and_still_fold():
    by_turns = [(0, "hello 0"), (0, "same"), (1, "hello 1"), (1, "same"), (0, "after"), (1, "after")]
    assert fold(align(lines(*by_turns))) == ["[0] hello 0", "[1] hello 1", "[0-1] same", "[0-1] after"]
    served = [(0, "served 1"), (0, "served 2"), (1, "finished"), (2, "finished")]
    assert fold(align(lines(*served))) == ["[0] served 1", "[0] served 2", "[1-2] finished"]


@given(st.lists(st.sampled_from(["ab", "c\n", "\n", "\r", "d\r\n"]), max_size=12), st.data())
def test_pieces_do_not_matter(pieces, data):
    whole = "".join(pieces)
    at_once, in_pieces = Lanes(in_order=True), Lanes(in_order=True)
    at_once.feed(0, "stdout", whole)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=5)))
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        in_pieces.feed(0, "stdout", whole[start:end])
    assert at_once.close() == in_pieces.close()


def test_a_carriage_return_writes_the_line_anew():
    lanes = Lanes(in_order=True)
    lanes.feed(1, "stderr", "10%\r55%")
    assert lanes.unfinished() == "[1] 55%" and lanes.text() == ""
    lanes.feed(1, "stderr", "\r100%\x1b[A\n")
    assert lanes.unfinished() == ""
    assert lanes.close() == "[1 stderr] 100%\n"


def test_a_line_without_end_stays_short():
    lanes = Lanes(in_order=True)
    for _ in range(100):
        lanes.feed(0, "stdout", "x" * LONGEST_LINE)
    assert len(lanes.unfinished()) < LONGEST_LINE + 10


def test_many_ranks_that_print_much_fold_to_little():
    lanes = Lanes(in_order=False)
    for step in range(100):
        for rank in range(256):
            lanes.feed(rank, "stdout", f"step {step}\n")
    text = lanes.close().splitlines()
    assert len(text) < 380
    assert text[0] == "[0-255] step 0"
