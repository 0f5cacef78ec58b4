"""Lines of JSON: a stream splits into them wherever its pieces end."""

import pytest

from labkit.transport import lines


def test_lines_may_arrive_in_pieces_of_any_size() -> None:
    stream = "".join(lines.encode(content) for content in ({"text": "one\ntwo"}, [], "三")).encode()
    for size in (1, 5, len(stream)):
        decoder = lines.Decoder()
        found = [line for at in range(0, len(stream), size) for line in decoder.feed(stream[at : at + size])]
        assert found == [b'{"text": "one\\ntwo"}', b"[]", b'"\\u4e09"']


def test_a_line_of_an_agent_is_recognised_among_other_output() -> None:
    assert lines.read(lines.line("frames", b"\0\n", run="a")) == ({"kind": "frames", "run": "a"}, b"\0\n")
    assert lines.read("a library's warning\n") is None
    with pytest.raises(lines.LineError, match="cannot be read"):
        lines.read('{"kind": "frames", "data": "?"}')


def test_lines_are_new_once_and_none_may_be_missing() -> None:
    counter = lines.LineCounter()
    assert [counter.is_new({"n": number}) for number in (0, 0, 1)] == [True, False, True]
    with pytest.raises(lines.LineError, match="line 2 of a node is missing"):
        counter.is_new({"n": 3})
