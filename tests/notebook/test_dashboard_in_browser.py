"""The dashboard in a browser: `labkit dashboard` with 64 ranks, and `%monitor` while a cell trains."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from accessibility import barriers
from in_browser import browsing, ended, opened, run
from playwright.sync_api import Page, expect
from system_packages import needs_packages
from waiting import BROKEN_SECONDS

from labkit.course.phase4_production.monitoring.given import Alarm, JsonLines, StepRecord

pytestmark = pytest.mark.slow

# live ranks write while the widget is open; the monitor is the course's solution
SETUP = """
%load_ext labkit
import tempfile
from labkit import Job, catalogue, virtual
exercise = catalogue.find("monitoring")
modules = {exercise.name: exercise.source("solution")[0]}
kept = tempfile.TemporaryDirectory()
folder = kept.name
"""
TRAINING = '''
PROGRAM = """
import time, torch.distributed as dist
from labkit.exercises import monitoring
dist.init_process_group()
rank = dist.get_rank()
monitor = monitoring.DistributedTrainingMonitor(rank, dist.get_world_size(), log_dir=folder)
for step in range(40):
    time.sleep(0.03 if rank == 2 else 0.02)
    monitor.log_step_metrics(step, 1.0, 8)
"""
virtual(nproc_per_node=4).run(Job(source=f"folder = {folder!r}" + PROGRAM, modules=modules)).raise_if_failed()
'''


def add(sinks: list[JsonLines], steps: range) -> None:
    for step in steps:
        for rank, sink in enumerate(sinks):
            compute = 0.02 if rank == 37 else 0.01
            gpu = 50 if rank == 37 else 90, 40 * 10**9, 60 + rank % 8
            operations = {"all_reduce": [0.01], "all_gather": [0.0001, 3.0]}
            record = StepRecord(float(step), rank, step, 1 / (1 + step), 50.0, 0.03, compute, 0.01, 0.002, 10**9, *gpu)
            sink.step(record._replace(operations=operations))


def until(page: Page, condition: str) -> None:
    """Wait until `condition`, in JavaScript over the dashboard's `data`, holds."""
    page.wait_for_function(
        f"() => {{ const data = document.querySelector('.labkit-dashboard')?.dataset; return data && ({condition}); }}"
    )


def test_a_page_shows_64_ranks_while_they_write(tmp_path: Path) -> None:
    needs_packages("chromium")
    sinks = [JsonLines(tmp_path, rank, 64) for rank in range(64)]
    add(sinks, range(200))
    command = [sys.executable, "-m", "labkit", "dashboard", str(tmp_path), "--no-browser"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = re.search(r"http://\S+", server.stdout.readline())
        assert address
        with browsing() as page:
            page.goto(address[0])
            until(page, "data.step === '199' && data.ranks === '64'")
            shown = page.locator(".labkit-dashboard")
            expect(shown).to_contain_text("Step 199 · 64 of 64 ranks · 0 alarms")
            expect(shown).to_contain_text("3.2 k samples/s")
            expect(shown).to_contain_text("slowest now: rank 37, +83 %")
            expect(shown).to_contain_text("GPU utilization of a rank90 %")
            expect(shown.get_by_role("row", name="37 50 %")).to_have_text("3750 %40 GB65 °C")
            expect(shown.get_by_role("row", name="all_gather")).to_contain_text("all_gather25,6001.5 s")
            calls = shown.get_by_role("row", name="all_gather").get_by_role("img")
            expect(calls).to_have_attribute("aria-label", "up to 100 µs: 12,800, up to 5 s: 12,800")
            expect(shown.locator("canvas")).to_have_count(6)
            # rank 37's row is red, its neighbour's is not
            colours = shown.locator("canvas").last.evaluate(
                """canvas => [36, 37].map((rank) => {
                    const ratio = window.devicePixelRatio || 1;
                    const tall = (canvas.height / ratio - 26) / 64;
                    const [x, y] = [canvas.width / 2, ratio * (6 + (rank + 0.5) * tall)];
                    return [...canvas.getContext("2d").getImageData(x, y, 1, 1).data];
                })"""
            )
            assert colours[0][3] == 0 and colours[1][0] > 150 and colours[1][3] > 200

            # ink on paper, in the colours that the reader prefers
            for scheme, ink, paper in (
                ("dark", "rgb(224, 224, 224)", "rgb(17, 17, 17)"),
                ("light", "rgb(33, 33, 33)", "rgb(255, 255, 255)"),
            ):
                page.emulate_media(color_scheme=scheme)
                expect(shown).to_have_css("color", ink)
                expect(shown).to_have_css("background-color", paper)
                assert barriers(page, "body") == []

            add(sinks, range(200, 210))
            sinks[0].alarm(Alarm("slow compute", 37, 209))
            until(page, "data.step === '209' && data.alarms === '1'")
            expect(shown.get_by_role("row").last).to_have_text("slow compute37209")
            assert barriers(page, ".labkit-dashboard") == []
    finally:
        server.terminate()
        server.wait(BROKEN_SECONDS)


def test_monitor_follows_a_cell_that_trains(tmp_path: Path) -> None:
    with opened(tmp_path, [SETUP, "%monitor {folder}", TRAINING]) as page:
        ended(run(page, 0))
        ended(run(page, 1))
        expect(page.locator(".labkit-dashboard")).to_contain_text("No steps yet")
        run(page, 2)
        until(page, "data.step === '39' && data.ranks === '4' && data.alarms === '1'")
        expect(page.locator(".labkit-dashboard")).to_contain_text("slow compute")
        assert barriers(page, ".labkit-dashboard") == []
