"""`./lab test --until-failure TEST... --busy 8`: run tests again and again, on a busy machine, until they fail.

Each run is a pytest process of its own. When one fails, its output is shown and kept, and its exit status is passed on.
Ctrl-C ends it, with the number of runs that have passed and exit status 0, unless a test of the interrupted run has
failed by then. Other options are pytest's.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "benchmarks"))

from busy_machine import busy

OUTPUTS = Path(".labkit", "until_failure")
"""Folder with the output of the runs that failed; a file of each command, as several may run in one checkout."""


def run_once(arguments: list[str], output: Path) -> int:
    """Run pytest, which prints into that file; return its exit status. At Ctrl-C, pytest prints what has failed."""
    command = [sys.executable, "-m", "pytest", *arguments]
    with output.open("wb") as file:
        # in a session of its own: Ctrl-C reaches it once, from here, and it has its time to end what it has started
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            try:
                process.wait()
            except KeyboardInterrupt:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            raise


def main() -> int:
    parser = argparse.ArgumentParser(
        "./lab test --until-failure", usage="%(prog)s TEST... [--busy N]", description=__doc__
    )
    parser.add_argument(
        "--busy", type=int, default=0, metavar="N", help="processes that keep the machine busy meanwhile"
    )
    own, arguments = parser.parse_known_args()
    if not arguments:
        parser.error("which test?")
    # a terminal that is closed, and `kill`, end it as Ctrl-C does
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    OUTPUTS.mkdir(parents=True, exist_ok=True)
    output = OUTPUTS / f"{os.getpid()}.txt"
    passed = 0
    try:
        with busy(own.busy):
            while (status := run_once(arguments, output)) == 0:
                passed += 1
                print(f"run {passed}: {closing_line(output)}", flush=True)
    except KeyboardInterrupt:
        status = 1 if re.search(r"\d+ (failed|error)", closing_line(output)) else 0
    if status == 0:
        output.unlink(missing_ok=True)
        print(f"\nno failure; runs that passed: {passed}", flush=True)
        return 0
    print(f"run {passed + 1}: {closing_line(output)}", output.read_text(errors="replace"), sep="\n", end="")
    print(f"runs that passed before: {passed}; output: {output}")
    return status


def closing_line(output: Path) -> str:
    """The last line of a run's output, without pytest's frame."""
    lines = output.read_text(errors="replace").splitlines() if output.exists() else []
    return lines[-1].strip("= ") if lines else "no output"


if __name__ == "__main__":
    sys.exit(main())
