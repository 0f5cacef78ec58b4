"""`labkit judge-challenge`: entries of learners in the sandbox, on instances that they do not know."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from autograder.challenge import judged
from autograder.sandbox import Sandbox
from autograder.submission_sandbox import SubmissionSandbox
from labkit.catalogue import root
from labkit.challenges.all_reduce.race import TEMPLATE
from labkit.challenges.goodput.race import measure
from labkit.challenges.step_13b import race as step_13b
from labkit.challenges.step_13b.trainings import Training
from labkit.cli import main
from labkit.predict import Transformer

pytestmark = pytest.mark.skipif(not Sandbox().available, reason="needs namespaces, for the sandbox")

SEED = 3_141_592_653


def test_an_entry_that_ends_its_sandbox_does_not_count_and_the_next_is_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ends = "import os, signal\n\n\nclass Policy:\n    def decide(self, state):\n        os.kill(-1, signal.SIGKILL)\n"
    (tmp_path / "ends.py").write_text(ends)
    (tmp_path / "mine.py").write_text((root() / "solutions/challenges/goodput/torchrun.py").read_text())
    files = [str(tmp_path / name) for name in ("ends.py", "mine.py")]
    assert main(["judge-challenge", "goodput", *files, "--seed", str(SEED)]) == 1
    shown = capsys.readouterr().out
    assert f"{files[0]}: does not count" in shown
    assert [line for line in shown.splitlines() if line.startswith(files[1])]


def test_a_seed_that_an_entry_could_find_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text("")
    assert main(["judge-challenge", "goodput", str(tmp_path / "mine.py"), "--seed", "7"]) == 2
    assert "--seed must be at least 1000000000" in capsys.readouterr().err


def test_scores_are_those_outside_and_a_fault_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = (root() / "solutions/challenges/goodput/torchrun.py").read_text()
    (tmp_path / "mine.py").write_text(source)
    (tmp_path / "bad.py").write_text("class Policy:\n    def decide(self, state):\n        return 1 / 0\n")
    files = [str(tmp_path / name) for name in ("mine.py", "bad.py")]
    assert main(["judge-challenge", "goodput", *files, "--seed", str(SEED)]) == 1
    shown = capsys.readouterr().out
    assert "ZeroDivisionError on rank 1 at challenges/bad.py, line 3" in shown
    (row,) = [line for line in shown.splitlines() if line.startswith(files[0])]
    assert [f"{outcome.value:.1f}" for outcome in measure(source, "mine", seed=SEED)] == row.split()[1:5]


def test_ranks_cannot_exchange_data_in_files() -> None:
    lines = (
        "torch.save(tensor, f'/tmp/{dist.get_rank()}')",
        "dist.barrier()",
        "tensor.add_(torch.load(f'/tmp/{(dist.get_rank() + 1) % dist.get_world_size()}'))",
    )
    source = TEMPLATE.replace("    dist.all_reduce(tensor)", "\n".join(f"    {line}" for line in lines) + "\n   ")
    (found,) = judged("all_reduce", source, "mine", SEED, Sandbox())
    assert "FileNotFoundError" in found.fault and "challenges/mine.py" in found.fault


def test_a_plan_is_made_in_the_sandbox_and_only_its_data_counts_outside() -> None:
    """With a small model on four GPUs: the entry predicts, and spoils its own process as well as it can."""
    model = Transformer("gpt", layers=4, width=256, heads=8, vocab=512, sequence=64, tied=True)
    small = Training("small", {"gpu": "a100-40gb", "nnodes": 2, "nproc_per_node": 2}, model, batch=16)
    source = (root() / "solutions/challenges/step_13b/formulas.py").read_text()
    spoils = (
        "import time\nfrom labkit.course.phase4_production.llm_13b import given\n\n"
        "time.perf_counter = given.extended = lambda *_: 0.0\n"
    )
    ranks = SubmissionSandbox(Sandbox())
    try:
        (found,) = step_13b.measure(f"{source}\n{spoils}", "mine", trainings=[small], make=ranks.virtual)
    finally:
        ranks.close()
    (outside,) = step_13b.measure(source, "mine", trainings=[small])
    assert not found.fault and found.value == outside.value > small.lower_bound()


@pytest.mark.parametrize("seconds", [0, 1])
def test_an_entry_that_keeps_the_judge_busy_is_ended_by_the_clock(seconds: float) -> None:
    """The sandbox's limits leave out what other programs use, and the judge is one: it reads what entries print."""
    source = "while True:\n    print('x' * 10_000)\n"
    (outcome,) = judged("goodput", source, "entry", SEED, Sandbox(), longest_seconds=seconds)
    assert math.isnan(outcome.value) and f"judging it took longer than {seconds} s by the clock" in outcome.fault
