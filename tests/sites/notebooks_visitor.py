"""A visitor in the image of notebooks: starts its server, opens a notebook, runs a cell on four ranks. Prints JSON.

Arguments: the image's CMD.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
import uuid
from pathlib import Path

import requests
from classroom_person import FOUR_RANKS, execute

SERVER = "http://127.0.0.1:8888"
NOTEBOOK = "phase1_data_parallel/01_process_group.ipynb"


def main(command: list[str]) -> None:
    log = Path.home() / "server.log"
    with log.open("w") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        session = requests.Session()
        session.headers["Authorization"] = f"token {token(log)}"
        page = session.get(f"{SERVER}/lab/tree/{NOTEBOOK}", timeout=60)
        opened = session.get(f"{SERVER}/api/contents/{NOTEBOOK}", timeout=60).json()
        kernel = session.post(f"{SERVER}/api/kernels", json={"name": "python3"}, timeout=60).json()["id"]
        url = f"{SERVER.replace('http', 'ws')}/api/kernels/{kernel}/channels?session_id={uuid.uuid4().hex}"
        ranks = asyncio.run(execute(url, {"Authorization": str(session.headers["Authorization"])}, FOUR_RANKS))
        found = {
            "without the token": requests.get(f"{SERVER}/api/contents", timeout=60).status_code,
            "page": "".join(re.findall("<title>(.*?)</title>", page.text)),
            "exercise cells": sum("%%exercise" in "".join(each["source"]) for each in opened["content"]["cells"]),
            "with solutions": [str(path) for path in notebooks() if "BEGIN SOLUTION" in path.read_text()],
            "ranks": [line for line in ranks.splitlines() if "the sum is" in line],
            "user": os.getuid(),
            "grader": importlib.util.find_spec("autograder") is not None,
        }
    finally:
        server.terminate()
        server.wait(60)
    print(json.dumps(found))


def notebooks() -> list[Path]:
    """All notebooks of the course, in the image and in the learner's home."""
    found = [path for folder in (Path("/opt/course"), Path.home()) for path in folder.rglob("*.ipynb")]
    assert len(found) > 50, found
    return found


def token(log: Path) -> str:
    """The token that the server prints with its address."""
    limit = time.monotonic() + 240
    while time.monotonic() < limit:
        if found := re.search(r"token=(\w+)", log.read_text()):
            return found[1]
        time.sleep(0.3)
    raise SystemExit(log.read_text())


if __name__ == "__main__":
    main(sys.argv[1:])
