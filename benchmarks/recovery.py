"""Random kills of a training's ranks: losses, work lost, and the time to recover beside torchrun's own restart.

One or more ranks, chosen at random, are killed by SIGKILL at random moments, in steps and while checkpoints are being
written. The same program runs on `local` ranks (the lab's agents, which fork ranks from a process that has imported
torch) and under `torchrun --standalone`, which starts Python again. Recovery is the time from the last step before a
kill to the first step after it. The losses of every step must be those of a training that nobody killed, to the last
bit, and no restart may repeat more steps than there are between two checkpoints.

    python benchmarks/recovery.py [--kills 100] [--torchrun-kills 10] [--ranks 2] [--seed 0] [--quick]
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from labkit import catalogue
from labkit.course.phase4_production.fault_tolerance.given import ElasticConfig, Journal

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "benchmarks" / "recovery_program.py"
KILLS_PER_LAUNCH = 10
EVERY, STEPS = 10, 300
"""Steps between checkpoints, and steps of the training, both as in the program."""


@dataclass
class Measured:
    """Measurements of several launches."""

    kills: int = 0
    seconds: list[float] = field(default_factory=list)
    """Seconds of each recovery."""
    steps_lost: list[int] = field(default_factory=list)
    equal: bool = True
    """Whether all losses of all launches are those without kills."""


def locally(folder: Path, ranks: int, restarts: int) -> None:
    """Run the program on local ranks. Raises `RankFailed` if it does not come to its end."""
    exercise = catalogue.find("fault_tolerance")
    from labkit.exercises import load

    training = load(exercise, exercise.source("solution")[0]).ElasticTraining(folder)
    environment = {"FOLDER": str(folder)}
    training.launch_elastic_training(ElasticConfig(PROGRAM, ranks, max_restarts=restarts, environment=environment))


def with_torchrun(folder: Path, ranks: int, restarts: int) -> None:
    """Run the program under torchrun. Raises `CalledProcessError` if it does not come to its end."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    environment = {**os.environ, "FOLDER": str(folder), "OMP_NUM_THREADS": "1"}
    # by default torch's agent keeps one store for all restarts, in which gloo finds addresses of ranks that are dead
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    command += [f"--max-restarts={restarts}", str(PROGRAM)]
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=600)


def kill_some(folder: Path, ranks: int, kills: int, draw: random.Random, ended: Callable[[], bool]) -> int:
    """Kill ranks of the program that runs in `folder`, up to `kills` times; return how often."""
    journal, done = Journal(folder / "journal.jsonl"), 0
    beyond = 0  # the next kill must be in a later step: a step that fails twice in a row ends the job
    while done < kills and not ended():
        attempts = journal.steps_by_attempt()
        if len(attempts) <= done or not attempts[done] or attempts[done][-1].number <= beyond:
            time.sleep(0.005)
            continue
        time.sleep(draw.uniform(0, 0.2))
        for rank in draw.sample(range(ranks), draw.randint(1, ranks)):
            process = int((folder / f"rank{rank}.pid").read_text())
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:  # the program has ended
                return done
        done += 1
        steps = journal.steps_by_attempt()[done - 1]
        beyond = steps[-1].number + 1
    return done


def measure(
    run: Callable[[Path, int, int], None], kills: int, ranks: int, draw: random.Random, right: dict[int, float]
) -> Measured:
    """Launch until there were `kills` kills. right: the losses of a run without kills."""
    measured = Measured()
    while measured.kills < kills:
        with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor() as pool:
            folder, most = Path(name), min(KILLS_PER_LAUNCH, kills - measured.kills)
            job = pool.submit(run, folder, ranks, 3 * most)
            measured.kills += kill_some(folder, ranks, most, draw, job.done)
            job.result()
            journal = Journal(folder / "journal.jsonl")
            measured.seconds += journal.recovery_seconds()
            measured.steps_lost += journal.steps_lost()
            measured.equal &= journal.losses() == right
    return measured


def losses_without_kills(ranks: int) -> dict[int, float]:
    with tempfile.TemporaryDirectory() as name:
        locally(Path(name), ranks, 0)
        return Journal(Path(name) / "journal.jsonl").losses()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="on local ranks (default %(default)s)")
    parser.add_argument("--torchrun-kills", type=int, default=10, help="under torchrun (default %(default)s)")
    parser.add_argument("--ranks", type=int, default=2, help="(default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and ranks (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="5 kills, and 2 under torchrun")
    options = parser.parse_args()
    kills, beside = (5, 2) if options.quick else (options.kills, options.torchrun_kills)
    os.environ["LABKIT_WORKSPACE"] = str(ROOT / "solutions")
    os.environ["OMP_NUM_THREADS"] = "1"  # sums may differ in the last digits for other numbers of threads
    draw = random.Random(options.seed)
    right = losses_without_kills(options.ranks)
    measured = {}
    for name, run, count in (("local ranks", locally, kills), ("torchrun", with_torchrun, beside)):
        measured[name] = measurement = measure(run, count, options.ranks, draw, right)
        print(
            f"{name}: {measurement.kills} kills; losses {'equal' if measurement.equal else 'DIFFERENT'}; at most "
            f"{max(measurement.steps_lost)} steps done again, of {EVERY} between checkpoints; recovery "
            f"{statistics.median(measurement.seconds):.2f} s (median), {max(measurement.seconds):.2f} s (longest)",
            flush=True,
        )
    ratio = statistics.median(measured["local ranks"].seconds) / statistics.median(measured["torchrun"].seconds)
    print(f"recovery on local ranks / under torchrun: {ratio:.2f}")
    if not all(measurement.equal and max(measurement.steps_lost) <= EVERY for measurement in measured.values()):
        sys.exit("a kill has changed the training")


if __name__ == "__main__":
    main()
