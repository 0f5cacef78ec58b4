"""`labkit analyze` of a benchmark's file: it says where the planted loss of efficiency went."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from PIL import Image

from labkit.cli import main
from labkit.course.phase4_production.scaling_study.given import Measurement, append

GPUS = (1, 2, 4, 8)
COMMUNICATION = "Try: larger batches for each GPU or gradient accumulation"


def write(
    file: Path, *, exposed: float = 0.0, slower: float = 0.0, origin: str = "virtual", strong: bool = False
) -> None:
    """Write a study on 1 to 8 GPUs: with 8 of them the given share of a step is exposed communication, and a sample
    takes `slower` more computing."""
    for gpus in GPUS:
        batch = 64 // gpus if strong else 64
        computing = 1e-3 * batch * (1 + (slower if gpus == 8 else 0))
        step = computing / (1 - exposed) if gpus == 8 else computing
        append(
            file,
            Measurement(origin, "ddp", gpus, batch, (step,) * 3, (computing,) * 3, 10**9, 1, "dgx-a100", "resnet50"),  # type: ignore[arg-type]
        )


def analyzed(file: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[str, list[str]]:
    """Return the whole text and the findings."""
    assert main(["analyze", str(file), *options]) == 0
    text = capsys.readouterr().out
    return text, text.split("## What limits it\n\n")[1].partition("\n\n")[0].splitlines()


@pytest.mark.parametrize(
    ("planted", "found"),
    [
        ({"exposed": 0.04}, "efficiency 96% at 8 GPUs: nothing limits it so far."),
        ({"exposed": 0.2}, f"efficiency 80% at 8 GPUs: exposed communication takes 20% of a step. {COMMUNICATION}"),
        ({"exposed": 0.2, "strong": True}, f"exposed communication takes 20% of a step. {COMMUNICATION}"),
        (
            {"slower": 0.25, "strong": True},
            "efficiency 80% at 8 GPUs: computing itself is less efficient, 25% slower for each sample than at 1. "
            "Try: batches are too small for a GPU",
        ),
        ({"slower": 0.25, "exposed": 0.5}, "efficiency 40% at 8 GPUs: exposed communication takes 50% of a step."),
        ({"slower": 1.0, "exposed": 0.1}, "efficiency 45% at 8 GPUs: computing itself is less efficient, 100% slower"),
    ],
)
def test_the_planted_loss_is_named(
    planted: dict[str, float], found: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "scaling.jsonl"
    write(file, **planted)  # type: ignore[arg-type]
    text, findings = analyzed(file, capsys)
    kind = "strong" if "strong" in planted else "weak"
    assert len(findings) == 1 and findings[0].startswith(f"- resnet50, ddp, dgx-a100, {kind}, batch 64, virtual: ")
    assert found in findings[0]
    assert f"## {kind.capitalize()} scaling: resnet50, dgx-a100" in text and text.count("| virtual | ddp |") == 4


def test_each_origin_is_judged_alone_and_law_and_figures_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "scaling.jsonl"
    for gpus in GPUS:  # Gustafson's law: 10 % of the time does not scale
        for origin, serial in (("real", 0.1), ("predict", 0.0)):
            step = 0.064 * gpus / (serial + (1 - serial) * gpus)
            append(file, Measurement(origin, "ddp", gpus, 64, (step,), (0.064,), 0, 1, "own", "resnet50"))  # type: ignore[arg-type]
    text, findings = analyzed(file, capsys)
    assert [re.sub(r".*, (\w+): efficiency (\d+%) .*", r"\1 \2", one) for one in findings] == [
        "real 91%",
        "predict 100%",
    ]
    assert "exposed communication takes 9%" in findings[0] and findings[1].endswith("nothing limits it so far.")
    assert "real: gustafson with serial 0.1000, 0.0% off on average. Limit: efficiency falls to 90.0%" in text
    assert "predict: gustafson with serial 0.0000, 0.0% off on average. No limit in sight" in text


def test_weak_and_strong_curves_of_one_file_have_their_own_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "scaling.jsonl"
    write(file, exposed=0.2)
    write(file, strong=True, slower=0.25)
    files = [tmp_path / f"found.{kind}" for kind in ("md", "html", "png")]
    text, findings = analyzed(file, capsys, *(word for one in files for word in ("--report", str(one))))
    assert len(findings) == 2 and ", weak, " in findings[0] and ", strong, " in findings[1]
    drawn = [tmp_path / f"found-{number}.png" for number in (1, 2)]
    assert text == files[0].read_text() + "".join(f"written: {one}\n" for one in (*files[:2], *drawn))
    for path in drawn:
        with Image.open(io.BytesIO(path.read_bytes())) as picture:
            assert picture.format == "PNG" and min(picture.size) > 400
    page = files[1].read_text()
    assert page.count("<img") == 2 and 'alt="Weak scaling' in page and 'alt="Strong scaling' in page
    assert "exposed communication takes 20% of a step." in page and f"<em>{COMMUNICATION}" in page
    assert not re.findall(r"<script|<link|@import|(?:src|href)=[\"'](?!data:)|url\((?!data:)", page)


def test_a_line_that_was_cut_off_counts_as_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "scaling.jsonl"
    write(file, exposed=0.2)
    whole = file.read_bytes()
    for cut in (3, 20, 90):
        file.write_bytes(whole[: whole.rindex(b"\n", 0, -1) + 1 + cut])
        text, findings = analyzed(file, capsys)
        assert text.count("| virtual | ddp |") == 3 and "efficiency 100% at 4 GPUs" in findings[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "mine has no measurements"),
        ("# notes\n", "mine, line 1: not a line of `labkit bench`"),
        ('{"kind": "run", "format": 1, "rank": 0}\n', "mine, line 1: not a line of `labkit bench`"),
        ('{"kind": "measurement", "origin": "real"}\n', "mine, line 1: not a measurement: 'step_seconds'"),
        ("ONE\n", "mine has no curve: each needs two numbers of GPUs"),
        ("ONE\n0.064\n", "mine, line 2: not a line of `labkit bench`"),
        ("ZERO\n", "mine, line 1: not a measurement: compute_seconds (0.0,)"),
    ],
)
def test_a_file_without_curves_gets_one_line(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for word, computing in (("ONE", 0.064), ("ZERO", 0.0)):
        append(Path(word), Measurement("real", "ddp", 1, 64, (0.064,), (computing,)))
        text = text.replace(word, Path(word).read_text().strip())
    Path("mine").write_text(text)
    assert main(["analyze", "mine"]) == 2
    written = capsys.readouterr()
    assert written.err == f"labkit: {message}\n" and written.out == ""
