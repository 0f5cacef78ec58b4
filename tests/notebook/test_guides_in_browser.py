"""Guides in JupyterLab where it serves only the learner's workspace, as in a class's hub: the links lead to them."""

import re
from pathlib import Path

import pytest
from front_notebook import FrontNotebook
from in_browser import started
from playwright.sync_api import Locator, Page, expect

from labkit.catalogue import find

pytestmark = pytest.mark.slow


def heading(page: Page, name: str) -> Locator:
    """A heading of the guide in front."""
    return page.locator(".jp-MarkdownViewer:not(.lm-mod-hidden)").get_by_role("heading", name=name).first


def test_a_workspace_outside_of_the_course_leads_to_the_guides_and_back(tmp_path: Path) -> None:
    with started(tmp_path) as page:
        asked: list[str] = []
        home = page.url
        page.goto("about:blank")  # so that nothing of the first page, which may still ask, counts
        page.on("request", lambda request: asked.append(request.url) if "labkit/search" in request.url else None)
        page.goto(home)
        search = page.locator(".labkit-home .labkit-search")
        search.get_by_role("searchbox", name="Search notebooks and guides").fill("skips a collective")
        search.get_by_role("link", name="Troubleshooting: One rank skips a collective").click()
        expect(heading(page, "One rank skips a collective")).to_be_in_viewport()
        assert len([url for url in asked if url.endswith("?q=")]) == 1, "box, side bar and guides ask together"
        page.get_by_role("link", name="← Course home").click()
        page.locator(".labkit-card").first.get_by_role("link").click()
        notebook = FrontNotebook(page, tmp_path / "workspace" / find("process_group").notebook_name)
        notebook.root.get_by_role("link", name="guide", exact=True).first.click()
        expect(heading(page, "From one GPU to thousands")).to_be_in_viewport()
        guide = page.locator(".jp-MarkdownViewer:not(.lm-mod-hidden)")
        guide.get_by_role("link", name="exercise 02", exact=True).first.click()
        opened = page.locator(".lm-DockPanel-tabBar .lm-mod-current", has_text="02_collectives.ipynb")
        expect(opened).to_have_attribute("title", re.compile("Path: phase1_data_parallel/02_collectives.ipynb"))
