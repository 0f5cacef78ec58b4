# Returns a set of integers that all have one hash: rebuilding the set takes minutes.
# marks: 0
# feedback: timeout | an exception
import json
import os
import struct
import sys
import time

__all__ = ["pass_around"]


def report_pipe():
    frame = sys._getframe()
    while "descriptors" not in frame.f_locals:
        frame = frame.f_back
    return frame.f_locals["descriptors"].report


def wired(tree, *buffers):
    text = json.dumps(tree).encode()
    return b"".join([struct.pack("<I", len(text)), text, *buffers])


def pass_around(tensor):
    value = wired({"set": [number * sys.hash_info.modulus for number in range(20_000)]})
    payload = wired({"list": [{"bytes": [0, len(value)]}, {"tuple": []}, None]}, value)
    header = json.dumps(
        {"kind": "result", "rank": int(os.environ["RANK"]), "exit": 0, "returned_argument": None}
    ).encode()
    data = memoryview(struct.pack("<IQ", len(header), len(payload)) + header + payload)
    while data:
        data = data[os.write(report_pipe(), data) :]
    time.sleep(100)
