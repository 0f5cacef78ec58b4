"""Frames on a stream: what a peer may send, and how it may end."""

import socket

import pytest

from labkit.transport import frames


def test_frames_may_arrive_in_pieces_of_any_size() -> None:
    sent = [({"kind": "one"}, b"abc"), ({"kind": "two", "rank": 3}, b""), ({}, bytes(1000))]
    stream = b"".join(frames.encode(*frame) for frame in sent)
    for size in (1, 7, len(stream)):
        decoder = frames.Decoder(1000)
        pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
        assert [frame for piece in pieces for frame in decoder.feed(piece)] == sent


@pytest.mark.parametrize(
    ("text", "payload", "what"),
    [(4, 1001, "a frame of 1001 bytes"), (1 << 20, 0, "a frame of 0 bytes"), (4, 0, "not JSON")],
)
def test_a_frame_that_is_too_large_is_refused_before_its_bytes_arrive(text: int, payload: int, what: str) -> None:
    with pytest.raises(frames.FrameError, match=what):
        list(frames.Decoder(1000).feed(frames.PREFIX.pack(text, payload) + b"{{{{"))


def test_a_header_must_be_an_object() -> None:
    with pytest.raises(frames.FrameError, match="not an object"):
        list(frames.Decoder(1000).feed(frames.joined(b"null")))


@pytest.mark.parametrize(
    ("sent", "what"), [(b"", "after 0 of 12 bytes"), (b"12345", "after 5 of 12 bytes"), (None, "after 2 of 7 bytes")]
)
def test_a_peer_that_closes_within_a_frame_is_an_error(sent: bytes | None, what: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(frames.joined(b"", b"payload")[:14] if sent is None else sent)
        theirs.close()
        with pytest.raises(EOFError, match=what):
            frames.receive(ours, 1000)


def test_a_frame_larger_than_the_receiver_allows_is_an_error() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(frames.joined(b"", b"payload"))
        with pytest.raises(frames.FrameError, match="a frame of 7 bytes, 6 are allowed"):
            frames.receive(ours, 6)
