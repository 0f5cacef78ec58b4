"""The course site, built once: links, completeness, what it must not show, and how it reads in a browser."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest
from accessibility import barriers
from browsers import chromium, new_context
from html_pages import Page, read_pages, target, within_clicks
from playwright.sync_api import Browser, expect
from playwright.sync_api import Page as Tab

from labkit.catalogue import Exercise, all_exercises
from labkit.command_line.commands import CommandError
from labkit.site import command, glossary_links, live, notebooks
from labkit.site.notebooks import SHORTEST, source_hash
from labkit.site.reference import PACKAGES, public_names

pytestmark = pytest.mark.slow

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
BUILD = "import sys, pathlib; from labkit.site.command import main; sys.exit(main(*map(pathlib.Path, sys.argv[1:])))"

QUESTIONS = {
    # newcomers
    "How do I begin?": ("start", "./lab start"),
    "What do I need to know before?": ("start", "You need to know PyTorch, but nothing about multiple processes"),
    "Do I need a GPU?": ("start", "no root, no GPU"),
    "Which exercise comes after which, and how long does it take?": ("course-map", "you write, and see"),
    "How do I run a cell on four ranks?": ("start", "%%torchrun -n 4"),
    "I am stuck: is there a hint?": ("start", "show the next hint for the TODO"),
    "What are virtual ranks, and what is exact about them?": ("virtual", "modelled"),
    "Can I use my own torch with CUDA?": ("start", "./lab --system-torch start"),
    "How long does a step of my model take on 32 GPUs?": (
        "predict",
        "labkit predict --model gpt-13b --cluster a100x32",
    ),
    "How do I run on our Slurm cluster?": ("slurm", "sbatch"),
    "What does this error mean?": ("troubleshooting", "Default process group has not been initialized"),
    "Which parallelism do I need for my model?": ("strategies", "Fastest layouts"),
    "Why is my run slow?": ("performance", "Look for the rank that does not wait"),
    # teachers
    "How long is the course, week by week?": ("teaching", "Ten weeks"),
    "How many GPUs do I need for a class?": ("teaching", "no GPU: virtual ranks model them"),
    "How do I release, collect and grade?": ("start", "nbgrader collect phase3_multi_node"),
    "How are late submissions treated?": ("grading", "extension"),
    "Can a submission read the hidden checks?": ("sandbox", "submission"),
    "How do I find copied work?": ("integrity", "submission"),
    "Which points come from where: who measures what?": ("judging", "measured"),
    "How do I set the lab up for a class?": ("deployment", "where work is graded"),
    "What do I back up, and what is made anew?": ("operations", "marks of the judge come back, those by hand do not"),
    "What does a learner get back?": ("feedback", "feedback"),
    # maintainers
    "Where is a deadlock found?": ("architecture", "Where is a deadlock found and explained?"),
    "How do I add an exercise?": ("new_exercise", "./lab new-exercise phase4_production/mean_loss"),
    "How do I run the tests?": ("contributing", "./lab test tests/test_cli.py -k edit"),
    "What does a public function do?": ("reference/labkit", "class Job("),
}
"""Each question's page, and words of its answer."""
SHOWN = ("index", "course-map", "predict", "notebooks/phase3_multi_node/10_ring_allreduce", "reference/labkit.clusters")
"""Pages that are looked at in a browser: one of each kind."""
SICK_RUNS = "performance"
"""The page with ten runs and their cures."""


release = functools.cache(notebooks.release)


@dataclass
class Site:
    """The built site."""

    folder: Path
    built: subprocess.CompletedProcess[str]
    pages: dict[Path, Page]

    def page(self, name: str) -> Page:
        return self.pages[self.folder / f"{name}.html"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder = tmp_path_factory.mktemp("site").resolve()
    command = [sys.executable, "-c", BUILD, str(folder / "site"), str(folder / "work")]
    built = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    return Site(folder / "site", built, read_pages(folder / "site"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


def opened(browser: Browser, site: Site, name: str, width: int = 1250, scheme: str = "light") -> Tab:
    """A page as a file, without a server; a request to anywhere else fails the test."""
    tab = new_context(browser, viewport={"width": width, "height": 900}, color_scheme=scheme).new_page()
    elsewhere: list[str] = []
    tab.on("request", lambda request: elsewhere.append(request.url) if not request.url.startswith("file:") else None)
    tab.goto((site.folder / f"{name}.html").as_uri())
    tab.wait_for_load_state("load")
    assert elsewhere == []
    return tab


def test_it_builds_without_a_warning(site: Site) -> None:
    assert site.built.returncode == 0, site.built.stderr
    assert site.built.stderr == ""
    assert "pages in" in site.built.stdout


def test_terms_are_linked_where_they_occur_first(site: Site) -> None:
    linked = set()
    for page in site.pages.values():
        links = re.findall(r'<a class="glossary-term[^"]*" href="[^"]*glossary.html#([^"]+)"', page.path.read_text())
        assert len(links) == len(set(links)), f"{page.path.name} links a term twice"
        linked |= set(links)
    # of these words no page but the glossary makes use
    assert linked >= set(glossary_links.terms().values()) - {"judged-ranks", "rank-pool"}
    notebook = site.page(SHOWN[3]).path.read_text()
    first = notebook.index('glossary.html#rank"')
    assert not re.search(r"<p>[^<]*\branks?\b", notebook[:first].partition("<article")[2])


def test_every_link_leads_somewhere(site: Site) -> None:
    broken = []
    for page in site.pages.values():
        for link in page.links + page.loaded:
            found = target(page, link)
            if found is None:
                continue
            path, anchor = found
            if not path.is_file() or (anchor and path in site.pages and anchor not in site.pages[path].ids):
                broken.append(f"{page.path.relative_to(site.folder)}: {link}")
    assert broken == []


def test_nothing_is_loaded_from_elsewhere(site: Site) -> None:
    loaded = {link for page in site.pages.values() for link in page.loaded}
    assert {link for link in loaded if re.match("[a-z]+:|//", link) and not link.startswith("data:")} == set()


@pytest.mark.parametrize("exercise", all_exercises(), ids=lambda exercise: exercise.short_name)
def test_every_exercise_is_on_the_map_and_has_a_page(site: Site, exercise: Exercise) -> None:
    page = site.page("course-map")
    leads_to = [target(page, link) for link in page.of_article]
    notebook = site.folder / f"notebooks/{exercise.notebook_name[:-6]}.html"
    assert leads_to.count((notebook, "")) >= 2, "in the diagram and in the table"
    entry = exercise.entry
    assert f"{entry.minutes} min, {entry.points:g} points" in page.text
    assert "raise NotImplementedError" in site.pages[notebook].text


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_documented(site: Site, package: str) -> None:
    names = {f"{package}.{name}" for name in public_names(package)}
    assert names <= site.page(f"reference/{package}").ids
    for name in public_names(package):
        value = getattr(importlib.import_module(package), name)
        made = isinstance(value, type) and (value.__doc__ or "").startswith(f"{name}(")  # by dataclass
        if inspect.isclass(value) or inspect.isroutine(value):
            assert value.__doc__ and not made, f"{package}.{name} has no docstring"


def solution_blocks(text: str) -> list[list[str]]:
    """The lines of each solution block, without indentation and empty lines."""
    blocks = re.findall(rf"{BEGIN}\n(.*?){END}", text, re.DOTALL)
    return [[" ".join(line.split()) for line in block.splitlines() if line.strip()] for block in blocks]


def test_no_page_shows_a_solution(site: Site) -> None:
    """No page has three lines of a solution one after the other; a notebook's page has none that its release lacks."""
    texts = {page.path.relative_to(site.folder).as_posix(): page.text for page in site.pages.values()}
    shown = []
    for exercise in all_exercises():
        blocks = solution_blocks(exercise.paths["solution"].read_text())
        assert blocks, exercise.name
        released = " ".join(" ".join(cell.source.replace("`", "").split()) for cell in release(exercise).cells)
        own = texts[f"notebooks/{exercise.notebook_name[:-6]}.html"]
        alive = " ".join(path.read_text() for path in (site.folder / "live" / exercise.short_name).glob("*.js"))
        for block in blocks:
            runs = [" ".join(block[at : at + 3]) for at in range(max(len(block) - 2, 1))]
            runs = [run for run in runs if len(run) > 60]
            shown += [f"{name}: {run}" for name, text in texts.items() for run in runs if run in text]
            lines = [line for line in block if len(line) >= SHORTEST and not line.startswith("#")]
            shown += [f"{exercise.name}: {line}" for line in lines if line in own and line not in released]
            shown += [f"{exercise.name}: {line}" for line in lines if line in alive and line not in released]
    assert shown == []
    assert not any(BEGIN in text for name, text in texts.items() if name.startswith("notebooks/"))


def test_what_the_release_hides_is_found_where_it_is_not_hidden(site: Site) -> None:
    """The comparison above would see a solution: it finds those of the solved notebooks."""
    exercise = all_exercises()[0]
    solved = " ".join(exercise.notebook.read_text().replace("\\n", " ").replace('\\"', '"').replace('",', "").split())
    block = max(solution_blocks(exercise.paths["solution"].read_text()), key=len)
    assert all(line in solved for line in block[:3])


@pytest.mark.parametrize("exercise", all_exercises(), ids=lambda exercise: exercise.short_name)
def test_outputs_that_depend_on_the_solution_are_left_out(exercise: Exercise) -> None:
    assert "data-labkit-exercise" in exercise.notebook.read_text(), "the solved notebook has reports of checks"
    for cell in release(exercise).cells:
        if cell.cell_type == "code" and ("%check" in cell.source or cell.metadata.get("nbgrader")):
            assert cell.outputs == []
        for output in cell.get("outputs", []):
            assert "data-labkit-exercise" not in str(output.get("data"))


@pytest.mark.parametrize("question", QUESTIONS)
def test_answers_are_two_clicks_from_the_front_page(site: Site, question: str) -> None:
    name, words = QUESTIONS[question]
    page = site.page(name)
    assert words in page.text
    assert page in within_clicks(site.pages, site.folder / "index.html", 2)


@pytest.mark.parametrize(
    ("name", "scheme"), [*((name, "light") for name in SHOWN if name != "predict"), ("index", "dark")]
)
def test_it_is_accessible(site: Site, browser: Browser, name: str, scheme: str) -> None:
    tab = opened(browser, site, name, scheme=scheme)
    assert barriers(tab, "html") == []
    tab.context.close()


@pytest.mark.parametrize("name", SHOWN)
def test_it_fits_a_phone(site: Site, browser: Browser, name: str) -> None:
    tab = opened(browser, site, name, width=390)
    assert tab.evaluate("document.scrollingElement.scrollWidth") <= 390
    tab.context.close()


def test_pictures_follow_the_colour_scheme(site: Site, browser: Browser) -> None:
    for scheme, other in (("light", "dark"), ("dark", "light")):
        tab = opened(browser, site, SHOWN[3], scheme=scheme)
        expect(tab.locator(f"img.only-{scheme}").first).to_be_visible()
        expect(tab.locator(f"img.only-{other}").first).to_be_hidden()
        assert tab.locator("img.labkit-picture:not([alt])").count() == 0
        tab.context.close()


def test_pictures_are_alive_without_a_kernel(site: Site, browser: Browser) -> None:
    tab = opened(browser, site, SHOWN[3])
    for place in tab.locator(".labkit-live").all():
        place.evaluate("place => place.closest('details')?.setAttribute('open', '')")
        place.scroll_into_view_if_needed()
        expect(place).to_have_attribute("data-state", "live")
        expect(place.locator(".still")).to_be_hidden()
    player = tab.locator(".labkit-stepper").first
    player.get_by_role("button", name="one step on").click()
    expect(player.locator("img.shown")).to_have_attribute("alt", re.compile("after 1 of 6 rounds"))
    timeline = tab.locator(".labkit-viewer").first
    timeline.get_by_role("button", name=re.compile("what determined")).click()
    expect(timeline.get_by_role("button", name=re.compile("what determined"))).to_have_attribute("aria-pressed", "true")
    assert barriers(tab, "html") == []
    tab.context.close()


def test_sick_runs_are_alive_on_equal_axes(site: Site, browser: Browser) -> None:
    tab = opened(browser, site, SICK_RUNS, width=390)
    assert tab.locator(".labkit-live").count() == 20
    sick, cured = (tab.locator(f'.labkit-live[data-name="{SICK_RUNS}/{kind}_1"]') for kind in ("sick", "cured"))
    expect(sick.locator(".still img")).to_have_attribute("alt", "Run 1: timeline of four ranks")
    cured.evaluate("place => place.closest('details').setAttribute('open', '')")
    for place in (sick, cured):
        place.scroll_into_view_if_needed()
        expect(place).to_have_attribute("data-state", "live")
        expect(place.locator(".still")).to_be_hidden()
    shown = [place.locator(".labkit-viewer[data-to]").get_attribute("data-to") for place in (sick, cured)]
    assert shown[0] == shown[1], "a cured run would look as long as the sick one"
    cured.locator("canvas").focus()
    tab.keyboard.press("+")
    expect(cured.locator(".range")).to_have_text(re.compile("shown"))
    assert tab.evaluate("document.scrollingElement.scrollWidth") <= 390
    assert barriers(tab, "html") == []
    tab.context.close()


def test_a_recording_shows_what_the_notebook_s_picture_shows() -> None:
    known = {exercise.short_name: exercise for exercise in all_exercises()}
    recordings = [path for path in live.recordings() if path.parent.name != SICK_RUNS]  # compared elsewhere
    assert len(recordings) > 20
    for path in recordings:
        cells = nbformat.read(known[path.parent.name].notebook, as_version=4).cells
        cell = next((cell for cell in cells if cell.id == path.stem), None)
        again = f"python -m labkit.site.recording {known[path.parent.name].notebook.name}"
        recorded = live.recorded(f"{path.parent.name}/{path.stem}")
        assert cell is not None and recorded is not None and recorded["source"] == source_hash(cell.source), again
        pictures = [
            output.metadata["image/png"] for output in cell.outputs if "image/png" in output.get("metadata", {})
        ]
        assert pictures[-1]["alt"] == recorded["about"]["alt"], again


def test_search_works_without_a_server(site: Site, browser: Browser) -> None:
    tab = opened(browser, site, "search")
    tab.goto(f"{(site.folder / 'search.html').as_uri()}?q=rendezvous")
    expect(tab.locator("#search-results li a", has_text="Process groups").first).to_be_visible()
    tab.context.close()


def test_what_follows_a_question_is_folded(site: Site, browser: Browser) -> None:
    tab = opened(browser, site, SHOWN[3])
    folded = tab.locator("details", has_text="63 MB sent by rank 0")
    assert folded.get_attribute("open") is None
    folded.locator("summary").click()
    expect(folded.get_by_text("63 MB sent by rank 0")).to_be_visible()
    tab.context.close()


@pytest.mark.parametrize("what", ["a file", "a folder of other files", "no course"])
def test_an_output_that_is_not_a_site_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    output = tmp_path / "site"
    if what == "a file":
        output.write_text("mine")
    elif what == "a folder of other files":
        output.mkdir()
        (output / "mine").touch()
    else:
        monkeypatch.setenv("LABKIT_ROOT", str(tmp_path))
    with pytest.raises(CommandError, match=r"is a file|files that are not of a site|made from a course"):
        command.main(output, tmp_path / "work")
    assert not (tmp_path / "work").exists()
