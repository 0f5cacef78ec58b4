"""`labkit analyze` of a monitor's folder: the planted limit is the one that it names, with what to try."""

from __future__ import annotations

import io
import math
import re
from pathlib import Path

import pytest
from PIL import Image

from labkit.cli import main
from labkit.course.phase4_production.monitoring.given import Alarm, JsonLines, StepRecord
from labkit.course.phase4_production.monitoring.given.json_lines import file_of

RANKS = 4


def write(
    folder: Path,
    *,
    steps: int = 40,
    seconds: tuple[float, float, float] = (0.06, 0.02, 0.005),
    slow: int = -1,
    fall: float = 0.5,
    leak: int = 0,
    nan_from: int = 10**9,
    slower_from: int = 10**9,
) -> None:
    """Write a run's log, in which the times of a step's parts add up to it.

    seconds: compute, communication, input. slow: this rank computes half as long again, and the others wait for it.
    fall: what the loss loses in the run. leak: bytes of a step.
    """
    compute, communication, waiting = seconds[0], seconds[1], 0.5 * seconds[0]
    sinks = [JsonLines(folder, rank, RANKS) for rank in range(RANKS)]
    for step in range(steps):
        for rank, sink in enumerate(sinks):
            own = compute * (2 if step >= slower_from else 1) + (waiting if rank == slow else 0)
            sent = communication + (waiting if slow >= 0 and rank != slow else 0)
            total = own + sent + seconds[2]
            loss = math.nan if step >= nan_from else 1 - fall * step / steps
            memory = (1 + rank) * 10**9 + leak * step
            sink.step(StepRecord(1e9 + step, rank, step, loss, 32 / total, total, own, sent, seconds[2], memory))
    if slow >= 0:
        sinks[0].alarm(Alarm("slow compute", slow, 20))
    for sink in sinks:
        sink.close()


def analyzed(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[str, list[str]]:
    """Return the facts' text and the findings."""
    assert main(["analyze", str(folder), *options]) == 0
    facts, _, findings = capsys.readouterr().out.partition("## What limits it\n\n")
    return facts, findings.splitlines()


@pytest.mark.parametrize(
    ("seconds", "shares", "first", "advice", "others"),
    [
        ((0.08, 0.015, 0.005), "compute 80%, communication 15%, input 5%", "compute, 80%", "mixed precision",
         ["Communication is 15% of a step: without it training is 1.2 times"]),
        ((0.02, 0.3, 0.005), "compute 6%, communication 92%, input 2%", "communication, 92%", "larger batches", []),
        ((0.02, 0.005, 0.075), "compute 20%, communication 5%, input 75%", "input, 75%", "more workers", []),
        ((0.04, 0.03, 0.03), "compute 40%, communication 30%, input 30%", "compute, 40%", "mixed precision",
         ["Communication is 30% of a step: without it training is 1.4 times",
          "Input is 30% of a step: without it training is 1.4 times"]),
    ],
    ids=["compute", "communication", "input", "all"],
)  # fmt: skip
def test_the_part_that_takes_most_of_a_step_is_the_limit(
    seconds: tuple[float, float, float],
    shares: str,
    first: str,
    advice: str,
    others: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(tmp_path, seconds=seconds)
    facts, findings = analyzed(tmp_path, capsys)
    assert f"{1e3 * sum(seconds):,.4g} ms for a step: {shares}\n" in facts
    assert "40 steps on 4 of 4 ranks" in facts and "4 GB on the fullest rank" in facts
    assert f"{4 * 32 / sum(seconds):,.4g} samples/s, {32 / sum(seconds):,.4g} for each rank" in facts
    assert "loss 1 at first, 0.5125 at last" in facts
    assert findings[0].startswith(f"- Most of a step is {first}. Try: {advice}")
    assert len(findings) == 1 + len(others)
    for finding, other in zip(findings[1:], others, strict=True):
        assert finding.startswith(f"- {other}") and "Try: " in finding


def test_a_straggler_comes_first_and_waiting_for_it_is_no_communication(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A faster network would not help."""
    write(tmp_path, seconds=(0.06, 0.005, 0.005), slow=2)
    facts, findings = analyzed(tmp_path, capsys)
    assert "compute 60%, communication 5%, input 5%, waiting for rank 2 30%" in facts
    assert findings[0].startswith("- Rank 2 computes and loads 46% longer than the median: all others wait for it")
    assert "Try: look at rank 2's machine" in findings[0]
    assert [finding[:12] for finding in findings[1:]] == ["- Most of a ", "- Alarm: slo"]
    assert findings[-1] == "- Alarm: slow compute on rank 2, step 20."


@pytest.mark.parametrize(
    ("planted", "found"),
    [
        ({"leak": 10**8}, "- Memory grows until the end of the run. Try: keep `loss.item()`"),
        ({"fall": -0.1}, "- The loss does not fall. Try: a lower learning rate"),
        ({"nan_from": 39}, "- The loss is not finite at the end. Try: a lower learning rate, gradient clipping"),
        ({"slower_from": 30}, "- Throughput fell by 41% in the course of the run."),
    ],
    ids=["leak", "loss", "not finite", "throughput"],
)
def test_what_changes_in_the_course_of_a_run_is_found(
    planted: dict[str, float], found: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "as it should be")
    healthy = analyzed(tmp_path / "as it should be", capsys)[1]
    write(tmp_path / "planted", **planted)  # type: ignore[arg-type]
    new = [finding for finding in analyzed(tmp_path / "planted", capsys)[1] if finding not in healthy]
    assert len(new) == 1 and new[0].startswith(found)


def test_reports_are_text_a_page_of_its_own_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "run <1>", slow=1)
    files = [tmp_path / f"found.{kind}" for kind in ("md", "html", "png")]
    assert (
        main(["analyze", str(tmp_path / "run <1>"), *(word for file in files for word in ("--report", str(file)))]) == 0
    )
    output = capsys.readouterr().out
    text, page, picture = files
    assert output == text.read_text() + "".join(f"written: {file}\n" for file in files)
    html = page.read_text()
    assert "run &lt;1&gt;</h1>" in html and "<1>" not in html
    assert "<li>Rank 1 computes and loads 46% longer" in html and "<em>Try: look at rank 1" in html
    assert html.count("<img") == 1 and 'alt="Training: loss, throughput, step time by part' in html
    assert not re.findall(r"<script|<link|@import|(?:src|href)=[\"'](?!data:)|url\((?!data:)", html)
    with Image.open(io.BytesIO(picture.read_bytes())) as drawn:
        assert drawn.format == "PNG" and min(drawn.size) > 400 and len(drawn.getcolors(1 << 20)) > 8


def test_a_torn_line_and_other_files_do_not_disturb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, steps=8)
    before = analyzed(tmp_path, capsys)
    for rank in range(RANKS):
        with file_of(tmp_path, rank).open("a") as file:
            file.write('{"kind": "step", "time": 1.0, "rank": 0, "st' + ("\n[1]\n" if rank else ""))
    (tmp_path / "scaling.jsonl").write_text("{}\n")
    assert analyzed(tmp_path, capsys) == before


@pytest.mark.parametrize(
    ("metrics", "options", "message"),
    [
        ("empty", "", "empty has no steps of a monitor: no rank-00000.jsonl with lines of the kind step"),
        ("began", "", "began has no steps of a monitor"),
        ("nowhere", "", "there is no file or folder nowhere"),
        ("began", "--report found.txt", "--report found.txt: its name must end in .html, .md, .png"),
        ("run", "--report nowhere/found.md", "there is no folder nowhere for found.md"),
    ],
)
def test_what_cannot_be_analyzed_gets_one_line(
    metrics: str,
    options: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    JsonLines(tmp_path / "began", 0, 1).close()
    write(tmp_path / "run", steps=1)
    assert main(["analyze", metrics, *options.split()]) == 2
    written = capsys.readouterr()
    assert written.err.startswith("labkit: ") and written.err.count("\n") == 1 and message in written.err
    assert written.out == ""
