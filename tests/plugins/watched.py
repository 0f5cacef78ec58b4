"""A training that goes on only when `%monitor` has shown its first steps: the dashboard is live, on any cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from labkit import catalogue

RANKS = 2
TRAINING = """%%torchrun
import pathlib, time, torch.distributed as dist
from labkit.exercises import monitoring

dist.init_process_group()
rank = dist.get_rank()
monitor = monitoring.DistributedTrainingMonitor(rank, dist.get_world_size(), interval=5, log_dir={folder!r})
for step in range(20):
    while step == 10 and not pathlib.Path({seen!r}).exists():
        time.sleep(0.05)
    monitor.log_step_metrics(step, float("nan") if (rank, step) == (1, 7) else 1.0, samples=8)
monitor.close()
"""
WATCH = """
from pathlib import Path

def look(change):
    if change["new"]["last_step"] >= 9 and len(change["new"]["ranks"]) == {ranks}:
        Path({seen!r}).touch()

shown = get_ipython().run_line_magic("monitor", {folder!r})
shown.observe(look, "data")
"""
LAST = """
import time
while shown.data["last_step"] < 19:
    time.sleep(0.05)
# a busy machine may make ranks slow, too
alarms = [(alarm["rank"], alarm["step"]) for alarm in shown.data["alarms"] if alarm["cause"] == "loss not finite"]
print(shown.data["last_step"], shown.data["ranks"], alarms)
shown.close()
"""


def watched(run: Callable[[str], str], folder: Path) -> str:
    """Train on the ranks of the kernel's cluster, watched, with the log in `folder`; return what was shown last."""
    exercise = catalogue.find("monitoring")
    where = {"folder": str(folder), "seen": str(folder / "seen"), "ranks": RANKS}
    run(f"%%exercise {exercise.name}\n{exercise.source('solution')[0]}")
    run(WATCH.format(**where))
    return run(TRAINING.format(**where)) + run(LAST)


SHOWN = "19 [0, 1] [(1, 7)]\n"
