"""Figures that the reader works: what they show is what the lab's runs were, by keyboard, without motion, on paper."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import pytest
from accessibility import barriers
from browsers import chromium, new_context
from playwright.sync_api import Browser, Locator, Page, expect

from labkit.page_server import HEADERS
from labkit.plots import palette
from labkit.plots.schedules.pipeline import COLOUR
from labkit.site.figures import buckets, markup, microbatches, skipped_barrier
from labkit.site.figures.microbatches import SCHEDULES, STAGES
from labkit.trace import Kind
from labkit.trace.busy import busy

pytestmark = pytest.mark.slow

STATIC = Path(markup.__file__).parents[1] / "static"


# what is recorded ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(len(skipped_barrier.BATCHES)))
def test_the_barrier_s_figure_shows_the_run_and_what_the_lab_said_of_it(number: int) -> None:
    recorded = markup.recorded("skipped_barrier")["runs"][number]
    run = skipped_barrier.run(skipped_barrier.BATCHES[number])
    trace = run.trace
    began = trace.events[0].start
    nanoseconds = [(e.rank, e.kind, round((e.start - began) * 1e9), round((e.end - began) * 1e9)) for e in trace.events]
    assert [tuple(bar) for bar in recorded["bars"]] == nanoseconds
    assert recorded["diagnosis"] == run.diagnosis()
    assert skipped_barrier.PROGRAM.splitlines()[recorded["line"] - 1].strip() == "dist.barrier()"
    assert "{batches}" in skipped_barrier.PROGRAM.splitlines()[skipped_barrier.CHANGED_LINE - 1]
    if skipped_barrier.BATCHES[number] == max(skipped_barrier.BATCHES):
        assert run.ok and recorded["waiting"] == []
    else:
        assert [rank for rank, _ in recorded["waiting"]] == [0, 1, 3]
        assert f"at train.py, line {recorded['line']}, for rank 2" in run.diagnosis()
        assert "but rank 2 ended without it" in run.diagnosis()


@pytest.mark.parametrize("size", [4, 32])
def test_the_buckets_figure_shows_the_run(size: int) -> None:
    recorded = next(run for run in markup.recorded("buckets")["runs"] if run["size"] == size)
    trace = buckets.run(size).trace.since_barrier()
    began = min(event.start for event in trace.events)
    assert (recorded["seconds"], recorded["hidden"]) == (trace.seconds, busy(trace)[0].overlap)
    for kind, bars in ((Kind.COMPUTE, recorded["computing"]), (Kind.COLLECTIVE, recorded["messages"])):
        events = trace.of(0, kind)
        assert [bar[:2] for bar in bars] == [[round((t - began) * 1e6) for t in (e.start, e.end)] for e in events]
    assert len({time.overlap for time in busy(trace)}) == 1, "it shows one rank for all"


def test_a_bucket_of_middle_size_is_the_fastest() -> None:
    runs = markup.recorded("buckets")["runs"]
    assert [run["size"] for run in runs] == list(buckets.SIZES_MB)
    fastest = min(runs, key=lambda run: run["seconds"])
    assert runs[0]["seconds"] > 1.2 * fastest["seconds"] < runs[-1]["seconds"]
    for run in runs:
        assert sum(nbytes for *_, nbytes in run["messages"]) == buckets.LAYERS * 2**20


@pytest.mark.parametrize(("schedule", "count"), [("gpipe", 7), ("1f1b", 16)])
def test_the_pipeline_s_figure_shows_the_run(schedule: str, count: int) -> None:
    """A step alone is as in the recording, whose steps follow each other in one run."""
    recorded = markup.recorded("microbatches")["runs"][schedule][count - 1]
    run = microbatches.run(schedule, [count])
    trace = run.trace.since_barrier()
    began = min(block[2] for rank in run.values for block in rank[0])
    for packed, (blocks,) in zip(recorded["ranks"], run.values, strict=True):
        ticks = [(op, k, (a - began) * 1e5, (b - began) * 1e5) for op, k, a, b in blocks]
        assert [tuple(block) for block in microbatches.blocks(packed)] == [
            (op, k, pytest.approx(a, abs=0.51), pytest.approx(b, abs=0.51)) for op, k, a, b in ticks
        ]
    assert recorded["seconds"] == pytest.approx(trace.seconds)
    assert recorded["bubble"] == pytest.approx(sum(time.bubble for time in busy(trace)) / STAGES)
    ahead = list(accumulate(1 if op == "f" else -1 for op, *_ in run.values[0][0]))
    assert recorded["kept"] == max(ahead)


def test_the_bubble_is_the_formula_s_and_1f1b_keeps_less() -> None:
    runs = markup.recorded("microbatches")["runs"]
    assert list(runs) == list(SCHEDULES) and {len(each) for each in runs.values()} == {microbatches.MOST}
    for number, (gpipe, one_f_one_b) in enumerate(zip(*runs.values(), strict=True), 1):
        formula = (STAGES - 1) / (number + STAGES - 1)
        for run in (gpipe, one_f_one_b):
            assert formula <= run["bubble"] < formula + 0.03
        assert (gpipe["kept"], one_f_one_b["kept"]) == (number, min(number, STAGES))


def test_bars_have_the_colours_of_the_lab_s_pictures() -> None:
    style = (STATIC / "figures.css").read_text()
    wanted = {"compute": palette.KIND[Kind.COMPUTE], "collective": palette.KIND[Kind.COLLECTIVE]}
    wanted |= {"backward": COLOUR["backward"], "idle": palette.IDLE, "on-dark": palette.LIGHT_TEXT}
    for name, colour in wanted.items():
        assert f"--{name}: {colour.lower()};" in style
    assert COLOUR["forward"] == palette.KIND[Kind.COMPUTE]


def test_a_document_names_a_figure_that_exists() -> None:
    with pytest.raises(ValueError, match="'bukets' is no figure; there are skipped_barrier, buckets, microbatches"):
        markup.insert("# A page\n\n<!-- figure: bukets -->\n", "docs/index.md")


# what the reader does -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of the figures alone, which may load and do what the lab's own pages may."""
    folder = tmp_path_factory.mktemp("figures")
    for name in ("figures.css", "figures.js"):
        (folder / name).write_bytes((STATIC / name).read_bytes())
    policy = HEADERS["Content-Security-Policy"].replace("frame-ancestors 'none'; ", "")  # of headers only
    (folder / "page.html").write_text(
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Figures</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<link rel="stylesheet" href="figures.css"><script src="figures.js" defer></script></head><body><main>'
        f"<h1>Figures</h1>{''.join(map(markup.element, markup.FIGURES))}</main></body></html>"
    )
    return folder / "page.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture
def tab(browser: Browser, page_file: Path, request: pytest.FixtureRequest) -> Iterator[Page]:
    """The page; whatever it reports as an error, and any request but for its own files, fails the test."""
    options = {"viewport": {"width": 1000, "height": 900}, **getattr(request, "param", {})}
    context = new_context(browser, **options)
    opened = context.new_page()
    wrong: list[str] = []
    opened.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("request", lambda asked: wrong.append(asked.url) if not asked.url.startswith("file:") else None)
    if options.get("java_script_enabled", True):
        opened.clock.install()
    opened.goto(page_file.as_uri())
    yield opened
    context.close()
    assert wrong == []


def diagnosis(tab: Page) -> Locator:
    return tab.locator(".skipped_barrier pre.diagnosis.shown")


def assert_hangs(tab: Page) -> None:
    expect(diagnosis(tab)).to_have_text(skipped_barrier.run(skipped_barrier.FIRST_SHOWN).diagnosis())
    expect(tab.locator(".skipped_barrier .stuck")).to_contain_text("dist.barrier()")
    expect(tab.locator(".skipped_barrier .here i")).to_have_text(["0", "1", "3"])


def test_play_ends_with_what_the_lab_says_and_its_line(tab: Page) -> None:
    figure = tab.locator(".skipped_barrier")
    expect(figure.get_by_text("nothing yet")).to_be_visible()
    expect(diagnosis(tab)).to_have_count(0)
    figure.get_by_role("button", name="Play").click()
    tab.clock.run_for(1000)
    expect(figure.get_by_role("button", name="Pause")).to_be_visible()
    expect(diagnosis(tab)).to_have_count(0)
    tab.clock.run_for(5000)
    expect(figure.get_by_role("button", name="Again")).to_be_visible()
    assert_hangs(tab)
    expect(figure.get_by_role("status")).to_have_text("The lab says: rank 2 ended without it")
    expect(figure.get_by_role("img")).to_have_attribute("aria-label", re.compile(r"in the barrier: 0, 1, 3\.$"))
    figure.get_by_label("3", exact=True).check()
    figure.get_by_role("button", name="Play").click()
    tab.clock.run_for(6000)
    expect(figure.locator(".verdict .shown")).to_have_text(re.compile("All four ranks have ended"))
    expect(figure.locator(".program")).to_contain_text("batches = 3 if rank == 2 else 3")
    expect(figure.locator(".stuck")).to_have_count(0)


def test_play_can_be_paused_and_goes_on(tab: Page) -> None:
    figure = tab.locator(".skipped_barrier")
    figure.get_by_role("button", name="Play").click()
    tab.clock.run_for(2000)
    figure.get_by_role("button", name="Pause").click()
    moment = figure.get_by_role("slider").get_attribute("aria-valuetext")
    tab.clock.run_for(5000)
    assert figure.get_by_role("slider").get_attribute("aria-valuetext") == moment
    figure.get_by_role("button", name="Play").click()
    tab.clock.run_for(5000)
    assert_hangs(tab)


def test_everything_can_be_done_by_keyboard(tab: Page) -> None:
    time, size, count = (tab.locator(f".{name}").get_by_role("slider") for name in markup.FIGURES)
    time.press("End")
    assert_hangs(tab)
    time.press("Home")
    expect(diagnosis(tab)).to_have_count(0)
    runs = markup.recorded("buckets")["runs"]
    for run in reversed(runs):
        shown = f"{run['seconds'] * 1e3:.1f} ms"
        expect(size).to_have_attribute("aria-valuetext", re.compile(rf"^{run['size']} MB: step {re.escape(shown)}"))
        expect(tab.locator(".buckets .numbers")).to_contain_text(shown)
        expect(tab.locator(".buckets svg .bar.collective")).to_have_count(len(run["messages"]))
        size.press("ArrowLeft")
    fastest = min(runs, key=lambda run: run["seconds"])["size"]
    expect(tab.locator(".buckets .status")).to_have_text(f"Fastest of all: {fastest} MB")
    count.press("End")
    figures = tab.locator(".microbatches .numbers")
    gpipe = markup.recorded("microbatches")["runs"]["gpipe"][-1]
    expect(figures).to_contain_text(f"{gpipe['bubble']:.1%}".replace("%", " %"))
    expect(figures).to_contain_text("15.8 %")
    expect(figures).to_contain_text("16 of 16")
    expect(tab.locator(".microbatches svg .bar")).to_have_count(2 * STAGES * microbatches.MOST)
    tab.keyboard.press("Shift+Tab")
    tab.keyboard.press("ArrowRight")
    expect(tab.get_by_role("radio", name="1F1B")).to_be_checked()
    expect(figures).to_contain_text("4 of 16")


@pytest.mark.parametrize("tab", [{"reduced_motion": "reduce"}], indirect=True)
def test_without_motion_play_goes_from_moment_to_moment(tab: Page) -> None:
    figure, slider = tab.locator(".skipped_barrier"), tab.locator(".skipped_barrier").get_by_role("slider")
    run = markup.recorded("skipped_barrier")["runs"][skipped_barrier.BATCHES.index(skipped_barrier.FIRST_SHOWN)]
    moments = sorted({time for bar in run["bars"] for time in bar[2:]} - {0})
    for moment in moments:
        figure.get_by_role("button", name="Next moment").click()
        expect(slider).to_have_attribute("aria-valuetext", re.compile(f"^{moment / 1000:.0f} µs"))
        at_rest = slider.get_attribute("aria-valuetext")
        tab.clock.run_for(1000)
        assert slider.get_attribute("aria-valuetext") == at_rest
    figure.get_by_role("button", name="Next moment").click()
    assert_hangs(tab)


def test_on_paper_the_run_has_ended_and_there_are_tables(tab: Page) -> None:
    tab.emulate_media(media="print")
    assert_hangs(tab)
    expect(tab.locator(".lab-figure table").locator("visible=true")).to_have_count(len(markup.FIGURES))
    expect(tab.get_by_role("button")).to_have_count(0)
    expect(tab.get_by_role("slider")).to_have_count(0)
    tab.emulate_media(media="screen")
    expect(tab.get_by_text("nothing yet")).to_be_visible()


@pytest.mark.parametrize("tab", [{"java_script_enabled": False}], indirect=True)
def test_without_scripts_there_is_a_table_and_the_diagnosis(tab: Page) -> None:
    # without scripts this browser answers no locator
    tree = tab.context.new_cdp_session(tab).send("Accessibility.getFullAXTree")["nodes"]
    shown = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in tree if not node["ignored"]]
    assert {role for role, _ in shown}.isdisjoint({"button", "slider", "radio", "image"})
    assert [name for _, name in shown].count("rank 2 ended without it") >= 3
    assert sum(role == "DisclosureTriangle" for role, _ in shown) == len(markup.FIGURES)


@pytest.mark.parametrize("tab", [{"viewport": {"width": 320, "height": 700}}], indirect=True)
def test_figures_fit_a_phone(tab: Page) -> None:
    for slider in tab.get_by_role("slider").all():
        slider.press("End")
    assert tab.evaluate("document.scrollingElement.scrollWidth") <= 320


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_figures_are_accessible_at_the_beginning_and_at_the_end(browser: Browser, page_file: Path, scheme: str) -> None:
    opened = new_context(browser, color_scheme=scheme).new_page()  # not `tab`: axe itself requests the style sheet
    opened.goto(page_file.as_uri())
    assert barriers(opened, ".lab-figure") == []
    for slider in opened.get_by_role("slider").all():
        slider.press("End")
    for summary in opened.locator("summary").all():
        summary.click()
    assert barriers(opened, ".lab-figure") == []
    opened.context.close()


def test_the_recording_on_the_page_is_the_run_s(page_file: Path) -> None:
    texts = re.findall(r'<script type="application/json">(.*?)</script>', page_file.read_text())
    assert [json.loads(text) for text in texts] == [markup.recorded(name) for name in markup.FIGURES]
