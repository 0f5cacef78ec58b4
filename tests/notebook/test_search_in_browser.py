"""Search in JupyterLab: the box on the home, the side bar and `%search` open the very place; so does `%explain`."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from accessibility import barriers
from front_notebook import FrontNotebook
from in_browser import started
from playwright.sync_api import Locator, Page, expect

from labkit.catalogue import find, root

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A course with its workspace inside, as after a clone: JupyterLab can open the guides."""
    folder = tmp_path_factory.mktemp("course")
    for part in ("labkit", "notebooks", "solutions", "templates"):
        (folder / part).symlink_to(root().resolve() / part)
    shutil.copytree(root() / "docs", folder / "docs")
    return folder


@pytest.fixture(scope="module")
def page(course: Path) -> Iterator[Page]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_ROOT", str(course))
        with started(course) as page:
            yield page


def heading(page: Page, name: str) -> Locator:
    """A heading of the guide in front."""
    front = page.locator(".jp-MarkdownViewer:not(.lm-mod-hidden)")
    return front.get_by_role("heading", name=name, exact=False).first


def results(page: Page, box: str, words: str) -> Locator:
    """Write words into a search box; return what it lists."""
    page.locator(box).get_by_role("searchbox", name="Search notebooks and guides").fill(words)
    expect(page.locator(box).get_by_role("status").filter(has_text="place")).to_be_visible()
    return page.locator(box).get_by_role("listitem")


def test_the_box_on_the_home_opens_a_guide_at_a_heading_and_a_notebook_at_a_cell(page: Page, course: Path) -> None:
    home = ".labkit-home .labkit-search"
    found = results(page, home, "skips a collective")
    expect(found.filter(has_text="Troubleshooting: One rank skips a collective").locator("mark").first).to_be_visible()
    assert barriers(page, ".labkit-home") == []
    found.get_by_role("link", name="Troubleshooting: One rank skips a collective").click()
    expect(heading(page, "One rank skips a collective")).to_be_in_viewport()
    page.get_by_role("link", name="← Course home").click()
    results(page, home, "rendezvous").get_by_role("link", name="01 · Process groups: 2 Ranks meet").click()
    notebook = FrontNotebook(page, course / "workspace" / find("process_group").notebook_name)
    (cell,) = [number for number, one in enumerate(notebook.cells) if "That is the *rendezvous*" in one.source]
    expect(notebook.cell(cell)).to_be_in_viewport()


def test_from_a_notebook_the_side_bar_and_the_magics_lead_to_the_pages(page: Page, course: Path) -> None:
    page.get_by_title("Search the course").click()
    expect(page.locator("#labkit-search").get_by_role("searchbox")).to_be_focused()
    results(page, "#labkit-search", "bucket").get_by_role("link", name="Glossary: bucket").click()
    expect(heading(page, "bucket")).to_be_in_viewport()
    front = page.locator(".jp-MarkdownViewer:not(.lm-mod-hidden)")
    front.get_by_role("link", name="exercise 11", exact=True).first.click()
    # the learner's own copy, without the solution
    opened = page.locator(".lm-DockPanel-tabBar .lm-mod-current", has_text="11_ddp.ipynb")
    expect(opened).to_have_attribute("title", re.compile("Path: workspace/phase3_multi_node/11_ddp.ipynb"))
    assert barriers(page, "#labkit-search") == []

    page.get_by_role("tab", name="01_process_group.ipynb").click()
    notebook = FrontNotebook(page, course / "workspace" / find("process_group").notebook_name)
    loads = notebook.numbers("%load_ext")[0]
    notebook.select(loads)
    notebook.run(loads)
    notebook.select(loads)
    notebook.root.get_by_role("link", name="guide", exact=True).first.click()
    expect(heading(page, "From one GPU to thousands")).to_be_in_viewport()
    page.get_by_role("tab", name="01_process_group.ipynb").click()
    notebook.select(loads)
    searched = notebook.insert_below(loads, "%search memory decides")
    searched.get_by_role("link", name="Which parallelism, when: Memory decides between DDP and ZeRO").click()
    expect(heading(page, "Memory decides between DDP and ZeRO")).to_be_in_viewport()

    page.get_by_role("tab", name="01_process_group.ipynb").click()
    notebook.select(loads)
    explained = notebook.insert_below(loads, "%explain OutOfMemoryError")
    expect(explained.locator(".jp-RenderedMarkdown")).to_contain_text("A virtual GPU is full")
    explained.get_by_role("link", name="troubleshooting", exact=True).click()
    expect(heading(page, "A virtual GPU is full")).to_be_in_viewport()
