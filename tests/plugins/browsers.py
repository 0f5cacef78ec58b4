"""Headless Chromium for tests: the only place that starts a browser and says how patient it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, BrowserContext, expect, sync_playwright
from system_packages import needs_packages, program
from waiting import BROKEN_SECONDS

PATIENCE_MS = int(BROKEN_SECONDS * 1000)
"""Time-out of every page and of every `expect`, in milliseconds."""
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
FLAGS += ("--no-first-run", "--disable-sync", "--disable-quic")

# one value for the whole process, set when the first test module with a browser is imported
expect.set_options(timeout=PATIENCE_MS)


@contextmanager
def chromium(*flags: str) -> Iterator[Browser]:
    """A browser of its own; skips the test where Chromium is not installed. flags: besides those of all browsers."""
    needs_packages("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program("chromium"), args=[*FLAGS, *flags])
        try:
            yield browser
        finally:
            browser.close()


def new_context(browser: Browser, **options: Any) -> BrowserContext:
    """A context whose pages are as patient as all others. options: those of `Browser.new_context`."""
    context = browser.new_context(**options)
    context.set_default_timeout(PATIENCE_MS)
    return context
