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
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
from accessibility import barriers
from browsers import chromium, new_context
from html_pages import Page, read_pages, target, within_clicks
from playwright.sync_api import Browser, expect
from playwright.sync_api import Page as Tab

from labkit import repository
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
    "Where is the source?": ("start", "Get this repository"),
    "Which version is it?": ("start", "version 0.1.0"),
    "Can I try it without installing?": ("start", "A browser is enough"),
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
    "My job hangs: which rank is it?": ("hangs", "which rank is not in it"),
    "How do I test code with collectives in CI?": ("testing_without_gpus", "a CI machine without a GPU"),
    "Which network do I need?": ("before_you_buy", "eight times as long"),
    "What does a long bar of an all-reduce mean?": ("timeline", "the rank with the short bar came last"),
    "Why is my run slow?": ("performance", "Look for the rank that does not wait"),
    # teachers
    "How long is the course, week by week?": ("teaching", "Ten weeks"),
    "How many GPUs do I need for a class?": ("teaching", "no GPU: virtual ranks model them"),
    "How do I release, collect and grade?": ("grading", "nbgrader collect phase3_multi_node"),
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
FIRST_PAGE_BYTES = 300_000
"""Maximum of all files that the first page loads, uncompressed."""
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
    assert ("no address of the repository is set" in site.built.stdout) == (repository.repository() is None)


def test_pages_say_what_they_are(site: Site) -> None:
    titles = [re.findall(r"<title>(.*?)</title>", page.path.read_text())[0] for page in site.pages.values()]
    documents = [site.page(name).path.read_text() for name in ("index", "start", "hangs", "course-map", SHOWN[3])]
    assert len(titles) - len(set(titles)) == 0, [title for title in titles if titles.count(title) > 1]
    for text in documents:
        described = re.findall(r'<meta name="description" content="([^"]+)">', text)
        assert len(described) == 1 and 40 < len(described[0]) < 300
        assert re.search(r'<meta property="og:image" content="[./]*preview/card.png">', text)
        assert re.search(r'<link rel="[a-z ]*icon" href="[^"]*icon.svg">', text)
    assert (site.folder / "preview" / "card.png").is_file()


def test_notebooks_can_be_downloaded_as_a_learner_gets_them(site: Site) -> None:
    for exercise in all_exercises():
        page = site.page(f"notebooks/{exercise.notebook_name[:-6]}")
        file = site.folder / "downloads" / exercise.notebook.name
        assert (file, "") in [target(page, link) for link in page.links]
        downloaded = nbformat.read(file, as_version=4)
        assert [cell.source for cell in downloaded.cells] == [cell.source for cell in release(exercise).cells]
        assert not any(cell.get("outputs") for cell in downloaded.cells)


def test_a_printed_page_has_no_link_over_its_text(site: Site, browser: Browser) -> None:
    tab = opened(browser, site, "index")
    tab.emulate_media(media="print")
    assert not tab.get_by_text("Skip to content").is_visible()
    tab.context.close()


def test_the_card_of_rules_is_one_sheet(site: Site, browser: Browser) -> None:
    tab = opened(browser, site, "rules")
    printed = tab.pdf(format="A4")
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) == 1
    tab.context.close()


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


@pytest.mark.parametrize("width", [1250, 320])
def test_the_first_page_is_light_and_nothing_on_it_moves_by_itself(site: Site, browser: Browser, width: int) -> None:
    tab = new_context(browser, viewport={"width": width, "height": 900}).new_page()
    loaded: set[str] = set()
    tab.on("request", lambda request: loaded.add(request.url))
    tab.add_init_script(
        "window.moved = []; const observer = new PerformanceObserver((list) => { "
        "for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.moved.push(entry.value); }); "
        "observer.observe({ type: 'layout-shift', buffered: true });"
    )
    tab.goto((site.folder / "index.html").as_uri())
    for figure in tab.locator(".lab-figure").all():
        figure.scroll_into_view_if_needed()
    figure = tab.locator(".lab-figure.skipped_barrier")
    figure.get_by_role("button", name="Play").click()
    expect(figure.get_by_role("button", name="Again")).to_be_visible()
    assert tab.evaluate("window.moved") == []
    files = [Path(unquote(urlsplit(url).path)) for url in loaded]
    weights = {file.name: file.stat().st_size for file in files}
    assert sum(weights.values()) <= FIRST_PAGE_BYTES, sorted(weights.items(), key=lambda item: -item[1])
    tab.context.close()


def test_figures_are_on_the_first_page_and_on_the_first_notebook_s(site: Site, browser: Browser) -> None:
    first = f"notebooks/{all_exercises()[0].notebook_name[:-6]}"
    for name, figures, width in (("index", 3, 320), (first, 1, 320)):
        tab = opened(browser, site, name, width=width)
        assert tab.locator(".lab-figure").count() == figures
        for slider in tab.locator(".lab-figure input[type=range]").all():
            slider.press("End")
        expect(tab.locator(".skipped_barrier pre.diagnosis.shown")).to_contain_text("rank 2 ended without it")
        assert tab.evaluate("document.scrollingElement.scrollWidth") <= width
        assert barriers(tab, "html") == []
        tab.context.close()
    page = site.page(first).path.read_text()
    assert page.index('class="lab-figure') < page.index('class="cell ')


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
