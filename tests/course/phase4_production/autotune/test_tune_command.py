"""`labkit tune`: an objective in a file, and the layout of a model, with the exercise as it is in the workspace."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Literal

import pytest

from labkit import catalogue
from labkit.cli import main
from labkit.course.phase4_production.autotune.given import LayoutSpace, predicted
from labkit.course.phase4_production.autotune.given.command import parse_space, words
from labkit.course.phase4_production.autotune.given.configurations import LogUniform, Uniform
from labkit.predict import model
from labkit.predict.command import parse_cluster

EXERCISE = catalogue.find("autotune")
OBJECTIVE = """
import math
from target_of_training import RATE

def objective(configuration, steps):
    # a line for each trial
    with open("calls.txt", "a") as file:
        file.write(f"{configuration['rate']!r} {configuration['width']} {steps}\\n")
    if configuration["width"] == 64:
        raise MemoryError
    return abs(math.log(configuration["rate"] / RATE)) + configuration["width"] / 100 + 1 / steps

def wrong(configuration, steps):
    return depth_of(configuration)

def depth_of(configuration):
    return configuration["depth"]

def unwritten(configuration, steps):
    raise NotImplementedError("later")

def silent(configuration, steps):
    pass

def diverges(configuration, steps):
    return math.nan

number = 1
"""
SPACE = ["--space", "rate=log:1e-4..10", "--space", "width=16,32,64"]


@pytest.fixture
def folder(tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with an objective that imports its neighbour; the exercise is solved."""
    own = workspace / f"{EXERCISE.name}.py"
    own.parent.mkdir(parents=True)
    own.write_text(EXERCISE.source("solution")[0])
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "train.py").write_text(OBJECTIVE)
    (tmp_path / "target_of_training.py").write_text("RATE = 0.1\n")
    return tmp_path / "here"


def tuned(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main(["tune", *options]) == 0
    return capsys.readouterr().out


def test_an_objective_in_a_file_is_tuned_within_the_budget(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tuned(capsys, "../train.py", *SPACE, "--budget", "120", "--min-steps", "2")
    lines = Path("calls.txt").read_text().splitlines()
    calls = [(float(rate), int(width), int(steps)) for rate, width, steps in map(str.split, lines)]
    # 3 rungs of 9, 3 and 1 trials with 40 steps each: four rungs would take 4 * 27 * 2
    assert [steps for *_, steps in calls] == [4] * 9 + [12] * 3 + [36]
    assert {width for _, width, _ in calls} == {16, 32, 64}
    assert all(1e-4 <= rate <= 10 for rate, *_ in calls)

    def loss(rate: float, width: int, steps: int) -> float:
        return math.inf if width == 64 else abs(math.log(rate / 0.1)) + width / 100 + 1 / steps

    rate, width, _ = min(calls[:9], key=lambda call: loss(*call))
    assert (rate, width) == calls[-1][:2]
    rows = [line.split() for line in out.splitlines()[1:4]]
    for row, (steps, own) in zip(rows, ((4, calls[:9]), (12, calls[9:12]), (36, calls[12:])), strict=True):
        losses = [loss(*call) for call in own]
        assert row == [str(steps), str(len(own)), f"{min(losses):.4g}", f"{max(losses):.4g}"]
    assert rows[0][3] == "inf"  # ran out of memory, and did not end the search
    best = f"best: rate={rate:.4g}, width={width}; loss {loss(rate, width, 36):.4g} after 36 of 108 steps\n"
    assert out.endswith(best)


def test_the_seed_decides_which_configurations_are_tried(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tried = {}
    for seed in ("7", "7", "8"):
        Path("calls.txt").unlink(missing_ok=True)
        space = ["--space", "rate=log:1e-4..10", "--space", "width=16,32"]
        out = tuned(capsys, "../train.py", *space, "--budget", "60", "--seed", seed)
        found = out, Path("calls.txt").read_text()
        assert tried.setdefault(seed, found) == found
    assert tried["7"] != tried["8"]


def test_the_layout_of_a_model_is_the_best_of_all_that_fit(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """ZeRO is needed: Adam's states of 1.3 billion parameters exceed a GPU of 16 GB."""
    options = ["--model", "gpt-1.3b", "--cluster", "t4x8", "--batch", "32"]
    out = tuned(capsys, *options)
    assert out == tuned(capsys, *options)
    described, cluster = model("gpt-1.3b"), parse_cluster("t4x8")
    measure = predicted(described, cluster)
    plans = {plan: measure(plan) for plan in LayoutSpace(described, cluster, 32).all()}
    fitting = {plan: found for plan, found in plans.items() if found.nbytes <= 16e9}
    assert 0 < len(fitting) < len(plans)
    heading, layout, strategy = out.splitlines()
    measured = re.fullmatch(r"gpt-1\.3b on 8 t4.*, batch 32: (\d+) layouts measured", heading)
    assert measured and int(measured[1]) <= 96
    (named,) = (plan for plan in fitting if layout.endswith(f": {words(plan)}"))
    assert f"{fitting[named].seconds:.4g} s, {fitting[named].nbytes / 1e9:5.1f} of 16 GB" in layout
    assert fitting[named].seconds <= 1.05 * min(found.seconds for found in fitting.values())
    assert re.match(r"  strategy +[\d.]+ s: zero\w*, data 8, tensor 1, pipeline 1, ", strategy)


def test_a_limit_of_trials_is_kept(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tuned(capsys, "--model", "mlp-64x64x10", "--cluster", "a100x4", "--trials", "3")
    assert "mlp-64x64x10 on 4 a100-80gb, batch 32: 3 layouts measured\n" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "give either FILE, with an objective and --space, or --model"),
        ("--model resnet50 --space width=1,2", "--space is for FILE; a model's layouts are searched as they are"),
        ("../train.py --model resnet50", "give either FILE, with an objective and --space, or --model"),
        ("nowhere.py --space a=1", "there is no file nowhere.py"),
        ("../train.py", "space must have an entry or more"),
        ("../train.py --space width", "--space takes name=16,32 or name=0..0.5 or name=log:1e-4..1, got 'width'"),
        ("../train.py --space width=", "--space takes name=16,32"),
        ("../train.py --space rate=1..0", "--space rate: an interval goes from low to a higher number"),
        ("../train.py --space rate=log:0..1", "--space rate: a logarithmic interval begins above 0"),
        ("../train.py --space rate=lin:0..1", "--space rate: an interval is name=0..0.5 or name=log:1e-4..1"),
        ("../train.py --space rate=1..2..3", "--space rate: could not convert string to float: '2..3'"),
        ("../train.py --space width=16,,32", "--space width: choices differ, and none is empty; got '16,,32'"),
        ("../train.py --space width=16,16,16", "--space width: choices differ, and none is empty"),
        # as text they differ; drawing 2 different ones would never end
        (
            "../train.py --space width=1,1.0,1e0 --reduction 2 --budget 4",
            "a list of different choices, got [1, 1.0, 1.0]",
        ),
        ("../train.py --space width=1 --space width=2", "--space width is given twice"),
        ("../train.py --space width=1 --budget 0", "budget must be an integer from 1, got 0"),
        ("../train.py --space width=1 --reduction 1", "reduction must be an integer from 2, got 1"),
        ("../train.py --space width=1 --function number", "train.py has no function number(configuration, steps)"),
        ("../train.py --space width=1 --function nothing", "train.py has no function nothing(configuration, steps)"),
        ("../train.py --space width=1 --function wrong", "../train.py, line 17: KeyError: 'depth'"),
        ("../train.py --space width=1 --function unwritten", "../train.py, line 20: NotImplementedError: later"),
        ("../train.py --space width=1 --function silent", "../train.py: TypeError: float() argument must be"),
        (
            "../train.py --space width=1,2 --function diverges",
            "all 2 trials failed: out of memory, or a loss that is not",
        ),
        ("broken.py --space width=1", "broken.py: SyntaxError: invalid syntax (broken.py, line 2)"),
        ("--model nosuch", "unknown model 'nosuch'; there are: gpt2-small"),
        ("--model resnet50 --cluster a100", "a cluster is a kind of GPU, x, and a number of GPUs"),
        ("--model resnet50 --trials 0", "trials must be an integer from 1, got 0"),
        ("--model resnet50 --cluster a100x2 --batch 3", "batch 3 of resnet50 cannot be divided among 2 GPUs"),
        ("--model gpt-39b --cluster l4x1", "no layout of gpt-39b that was measured fits into the memory of a GPU"),
    ],
)
def test_a_wrong_request_gets_one_line(
    options: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("broken.py").write_text("\n1 +\n")
    assert main(["tune", *options.split()]) == 2
    written = capsys.readouterr()
    assert message in written.err and written.err.startswith("labkit: ") and written.err.count("\n") == 1
    assert written.out == ""


@pytest.mark.parametrize("own", [None, "template"])
def test_before_the_exercise_is_written_the_solution_tunes(
    own: Literal["template"] | None, folder: Path, workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As for `labkit bench` and `labkit launch --config`."""
    module = workspace / f"{EXERCISE.name}.py"
    module.unlink()
    if own is not None:
        module.write_text(EXERCISE.source(own)[0])
    assert main(["tune", "../train.py", *SPACE, "--budget", "120"]) == 0
    written = capsys.readouterr()
    assert "best: rate=" in written.out
    assert written.err.endswith("note: it tunes with the solution of autotune.\n")


def test_entries_of_a_space() -> None:
    entries = dict(
        map(parse_space, ["a=16,0.5", "b=sgd,true,null", "c=0..0.5", "d=log:1e-4..1", "e=[1]", "f=-1..1", "g=x=y,z:1"])
    )
    assert entries == {
        "a": [16, 0.5],
        "b": ["sgd", True, None],
        "c": Uniform(0, 0.5),
        "d": LogUniform(1e-4, 1),
        "e": [[1]],
        "f": Uniform(-1, 1),
        "g": ["x=y", "z:1"],
    }
    assert type(entries["d"]) is LogUniform and type(entries["c"]) is Uniform
