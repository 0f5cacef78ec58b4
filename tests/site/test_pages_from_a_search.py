"""Pages for people who come with a problem: programs run as they are, and print what the page says; sums are right."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import BROKEN_SECONDS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(ROOT / "benchmarks"))

import before_you_buy  # noqa: E402
import readme_picture  # noqa: E402


def written(page: str, folder: Path) -> dict[str, str]:
    """Write the programs of a page, each named in its first line, into a folder; return their texts by name."""
    found = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    programs = {name: f"# {name}\n{text}" for name, text in found}
    for name, text in programs.items():
        (folder / name).write_text(text)
    return programs


def ran(*command: str, folder: Path, **environment: str) -> str:
    """Run a command of this Python's environment in the folder; return all that it prints."""
    program = shutil.which(command[0], path=str(Path(sys.executable).parent))
    assert program is not None
    done = subprocess.run(
        [program, *command[1:]], cwd=folder, capture_output=True, text=True, timeout=BROKEN_SECONDS,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder), **environment},
    )  # fmt: skip
    return done.stdout + done.stderr


def outputs(page: str) -> list[str]:
    return [block.strip() for block in re.findall(r"```text\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)]


def assert_shown(lines: str, text: str) -> None:
    for line in lines.splitlines():
        pattern = ".*".join(re.escape(" ".join(part.split())) for part in line.split("…"))
        assert re.search(pattern, " ".join(text.split())), f"{line}\nnot in\n{text}"


@pytest.mark.parametrize("cluster", ["virtual", "local"])
def test_the_hang_is_explained_as_the_page_shows(tmp_path: Path, cluster: str) -> None:
    written("hangs.md", tmp_path)
    expected = dict(zip(("virtual", "local"), outputs("hangs.md"), strict=True))[cluster]
    limit = ("--hang-timeout", "10") if cluster == "local" else ()
    assert_shown(
        expected, ran("labkit", "launch", "train.py", "--cluster", cluster, "-n", "4", *limit, folder=tmp_path)
    )


def test_torch_compares_the_calls(tmp_path: Path) -> None:
    written("hangs.md", tmp_path)
    text = ran("torchrun", "--nproc-per-node=4", "train.py", folder=tmp_path, TORCH_DISTRIBUTED_DEBUG="DETAIL")
    (quoted,) = re.findall(r'raises \*"(.*?)"\*', (DOCS / "hangs.md").read_text(), re.DOTALL)
    assert_shown(" ".join(quoted.split()).replace("...", "…"), text)


def test_programs_name_the_lines_of_their_calls() -> None:
    (program,) = re.findall(r"```python\n(# train.py.*?)```", (DOCS / "hangs.md").read_text(), re.DOTALL)
    lines = program.splitlines()
    for call, number in re.findall(r"`(\w+) \(train\.py:(\d+)\)`", (DOCS / "hangs.md").read_text()):
        assert call in lines[int(number) - 1]


def test_variables_of_torch_exist() -> None:
    import torch

    libraries = [path.read_bytes() for path in (Path(torch.__file__).parent / "lib").glob("libtorch_c*.so")]
    names = set(re.findall(r"`(TORCH_FR_\w+?)(?:=[^`]*)?`", (DOCS / "hangs.md").read_text()))
    assert len(names) == 2
    for name in names:
        assert any(name.encode() in library for library in libraries), name


def test_both_tests_without_gpus_pass(tmp_path: Path) -> None:
    assert set(written("testing_without_gpus.md", tmp_path)) == {
        "gradients.py", "test_with_torch.py", "test_with_labkit.py",
    }  # fmt: skip
    text = ran("pytest", "-q", "-p", "no:cacheprovider", ".", folder=tmp_path)
    assert re.search(r"\b8 passed", text) and "failed" not in text, text


def test_they_find_a_wrong_divisor(tmp_path: Path) -> None:
    programs = written("testing_without_gpus.md", tmp_path)
    wrong = programs["gradients.py"].replace("/= dist.get_world_size()", "/= 2")
    assert wrong != programs["gradients.py"]
    (tmp_path / "gradients.py").write_text(wrong)
    assert "1 failed" in ran("pytest", "-q", "-p", "no:cacheprovider", "test_with_torch.py", folder=tmp_path)


def test_the_slow_rank_has_the_short_bar(tmp_path: Path) -> None:
    written("timeline.md", tmp_path)
    ran("torchrun", "--nproc-per-node=2", "profiled.py", folder=tmp_path)
    seconds = []
    for rank in range(2):
        events = json.loads((tmp_path / f"rank{rank}.json").read_text())["traceEvents"]
        assert {"ProfilerStep#3", "input"} <= {event.get("name") for event in events}
        seconds.append(sum(event["dur"] for event in events if event.get("name") == "gloo:all_reduce"))
    assert seconds[0] > 2 * seconds[1] > 0


def test_networks_are_those_of_the_program() -> None:
    page = before_you_buy.PAGE.read_text()
    assert before_you_buy.filled(page) == page, "run python benchmarks/before_you_buy.py"


def test_sums_by_hand_are_right() -> None:
    page = " ".join((DOCS / "before_you_buy.md").read_text().split())
    parameters, layers, width, sequence, gpus = 8.03e9, 32, 4096, 8192, 16
    rate = gpus * 989e12 * 0.45 / (6 * parameters + 6 * layers * width * sequence)
    days, hours = 1e11 / rate / 86_400, 1e11 / rate / 3600 * gpus
    assert f"= {round(rate, -4):,.0f}".replace(",", "{,}") in page
    assert f"take {days:.1f} days, {round(hours, -2):,.0f} GPU hours" in page
    activations = 34 * sequence * width * layers
    assert f"{16 * parameters / 1e9:.0f} GB" in page and f"= {activations / 1e9:.0f} GB" in page
    logits = 4 * sequence * 128_256
    assert f"= {logits / 1e9:.1f} GB" in page
    assert f"Together some {round((16 * parameters / gpus + activations + logits) / 1e9, -1):.0f} GB" in page
    assert f"about {54 / 419 * 16_384 / 16 / 30:.0f} months" in page.replace("four", "4")
    for cards, gigabits in ((8, 400), (1, 100), (1, 25)):
        seconds = 3 / 2 * 2 * parameters / (cards * gigabits / 8 * 1e9)
        assert re.search(rf"\| {cards} x {gigabits} Gbit/s[^|]*\| {seconds:.2g} \|", page)
    assert f"beside {sequence / (rate / gpus):.1f} s of computing" in page
    assert f"{2 * sequence * width / 1e6:.0f} MB a sequence" in page


def test_the_moving_picture_is_that_of_the_run() -> None:
    picture = readme_picture.IMAGES / "ring.svg"
    assert picture.read_text() == readme_picture.drawn(readme_picture.run()), "run python benchmarks/readme_picture.py"
