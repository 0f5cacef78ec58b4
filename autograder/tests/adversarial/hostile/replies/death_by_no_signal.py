# Reports that it was killed by signal 999, which does not exist, with an error at a time that is not a number.
# marks: 0
# feedback: a rank that ended early | timeout
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


def pass_around(tensor):
    tree = json.dumps({"list": [{"bytes": [0, 8]}, {"tuple": []}, None]}).encode()
    payload = struct.pack("<I", len(tree)) + tree + struct.pack("<I", 4) + b"null"
    header = json.dumps(
        {"kind": "result", "rank": int(os.environ["RANK"]), "exit": -999, "returned_argument": None}
    ).encode()
    os.write(report_pipe(), struct.pack("<IQ", len(header), len(payload)) + header + payload)
    time.sleep(100)
