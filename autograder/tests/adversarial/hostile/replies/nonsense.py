# Reports random bytes, frames without a kind, invalid numbers, and shapes that do not fit.
# marks: 0
# feedback: an exception | timeout
import json
import os
import random
import struct
import sys

__all__ = ["pass_around"]


def report_pipe():
    frame = sys._getframe()
    while "descriptors" not in frame.f_locals:
        frame = frame.f_back
    return frame.f_locals["descriptors"].report


def report(header, payload=b""):
    text = json.dumps(header).encode()
    data = memoryview(struct.pack("<IQ", len(text), len(payload)) + text + payload)
    while data:
        data = data[os.write(report_pipe(), data) :]


def pass_around(tensor):
    draw = random.Random(int(os.environ["RANK"]))
    own = {"rank": int(os.environ["RANK"]), "exit": 0, "returned_argument": 0}
    report({"kind": "result", **own, "exit": 1e400}, draw.randbytes(100))
    report({"kind": "trace"}, draw.randbytes(1000))
    report({"kind": ["result"], **own})
    os.write(report_pipe(), draw.randbytes(100_000))
    return tensor
