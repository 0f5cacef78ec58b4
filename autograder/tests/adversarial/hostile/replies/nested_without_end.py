# Reports a result of lists nested a million deep.
# marks: 0
# feedback: an exception
import json
import os
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
    tree = b"[" * 1_000_000 + b"]" * 1_000_000
    header = {"kind": "result", "rank": int(os.environ["RANK"]), "exit": 0, "returned_argument": 0}
    report(header, struct.pack("<I", len(tree)) + tree)
    os._exit(0)
