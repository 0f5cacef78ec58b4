# Announces a report of a gigabyte and then sends it byte by byte, forever.
# marks: 0
# feedback: timeout
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
    text = json.dumps({"kind": "result", "rank": 0}).encode()
    os.write(report_pipe(), struct.pack("<IQ", len(text), 1 << 30) + text)
    while True:
        os.write(report_pipe(), b"\0")
