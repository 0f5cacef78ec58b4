"""Requests, messages and file descriptors between processes that trust each other."""

import os
import socket
import threading

import pytest
import torch

from labkit.transport import datagrams, descriptors, pickled


def test_a_request_arrives_with_its_tensors_and_its_files() -> None:
    ours, theirs = socket.socketpair()
    files = [os.memfd_create(str(number)) for number in range(70)]
    for number, file in enumerate(files):
        os.write(file, bytes([number]))
    request = {
        "plain": torch.arange(1 << 20),
        "view": torch.arange(6.0)[::2],
        "grad": torch.ones(2, requires_grad=True),
    }
    with ours, theirs:
        sender = threading.Thread(target=pickled.send, args=(theirs, request, files))
        sender.start()
        received = pickled.receive(ours)
        copies = descriptors.receive(ours, len(files))
        sender.join()
    assert all(torch.equal(received[name], tensor) for name, tensor in request.items())
    assert received["grad"].requires_grad
    assert [os.pread(copy, 1, 0)[0] for copy in copies] == list(range(70))
    for file in (*files, *copies):
        os.close(file)


def test_a_sender_that_ends_before_its_files_is_an_error() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            descriptors.send(theirs, [0, 1])
        with pytest.raises(EOFError, match="after 2 of 3 file descriptors"):
            descriptors.receive(ours, 3)


def test_datagrams_keep_their_boundaries_and_their_files() -> None:
    ours, theirs = datagrams.pair()
    with ours:
        with theirs:
            datagrams.send(theirs, {"first": 1}, [0])
            datagrams.send(theirs, {"second": 2})
            with pytest.raises(ValueError, match="65548 bytes, 65536 are allowed"):
                datagrams.send(theirs, {"third": "x" * 65535})
        content, (copy,) = datagrams.receive(ours, 1)
        os.close(copy)
        assert content == {"first": 1}
        assert datagrams.receive(ours, 1) == ({"second": 2}, [])
        assert datagrams.receive(ours, 1) == (None, [])


def test_the_kernel_names_the_sender_of_a_datagram() -> None:
    ours, theirs = datagrams.pair()
    datagrams.ask_for_senders(ours)
    with ours:
        with theirs:
            datagrams.send(theirs, {"here": True})
        assert datagrams.receive_with_sender(ours) == ({"here": True}, os.getpid())
        assert datagrams.receive_with_sender(ours) == (None, 0)
