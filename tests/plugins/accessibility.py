"""What axe-core finds in a part of a page."""

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page


def barriers(page: Page, selector: str) -> list[str]:
    """Serious and critical findings in the elements that `selector` finds, one line for each; there must be some."""
    page.locator(selector).first.wait_for()
    found = Axe().run(page, context=selector).response["violations"]
    return [
        f"{finding['id']}: {finding['help']}: {node['html']}"
        for finding in found
        if finding["impact"] in ("serious", "critical")
        for node in finding["nodes"]
    ]
