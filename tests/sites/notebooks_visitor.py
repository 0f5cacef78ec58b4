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
import uuid
from pathlib import Path

import requests
from classroom_person import FOUR_RANKS, execute
from waiting import BROKEN_SECONDS, wait_until

SERVER = "http://127.0.0.1:8888"
NOTEBOOK = "phase1_data_parallel/01_process_group.ipynb"


def main(command: list[str]) -> None:
    log = Path.home() / "server.log"
    with log.open("w") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        session = requests.Session()
        session.headers["Authorization"] = f"token {token(log)}"
        page = session.get(f"{SERVER}/lab/tree/{NOTEBOOK}", timeout=BROKEN_SECONDS)
        opened = session.get(f"{SERVER}/api/contents/{NOTEBOOK}", timeout=BROKEN_SECONDS).json()
        kernel = session.post(f"{SERVER}/api/kernels", json={"name": "python3"}, timeout=BROKEN_SECONDS).json()["id"]
        url = f"{SERVER.replace('http', 'ws')}/api/kernels/{kernel}/channels?session_id={uuid.uuid4().hex}"
        ranks = asyncio.run(execute(url, {"Authorization": str(session.headers["Authorization"])}, FOUR_RANKS))
        found = {
            "without the token": requests.get(f"{SERVER}/api/contents", timeout=BROKEN_SECONDS).status_code,
            "page": "".join(re.findall("<title>(.*?)</title>", page.text)),
            "exercise cells": sum("%%exercise" in "".join(each["source"]) for each in opened["content"]["cells"]),
            "with solutions": [str(path) for path in notebooks() if "BEGIN SOLUTION" in path.read_text()],
            "ranks": [line for line in ranks.splitlines() if "the sum is" in line],
            "user": os.getuid(),
            "grader": importlib.util.find_spec("autograder") is not None,
        }
    finally:
        server.terminate()
        server.wait(BROKEN_SECONDS)
    print(json.dumps(found))


def notebooks() -> list[Path]:
    """All notebooks of the course, in the image and in the learner's home."""
    found = [path for folder in (Path("/opt/course"), Path.home()) for path in folder.rglob("*.ipynb")]
    assert len(found) > 50, found
    return found


def token(log: Path) -> str:
    """The token that the server prints with its address."""
    found = wait_until(lambda: re.search(r"token=(\w+)", log.read_text()), log.read_text)
    assert found is not None
    return found[1]


if __name__ == "__main__":
    main(sys.argv[1:])
