"""`labkit teach` in headless Chromium: JupyterLab with the formgrader on a real course."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from urllib.parse import urljoin

import nbformat
import pytest
import second_exercise
from browsers import chromium, new_context
from nbgrader.api import Gradebook
from playwright.sync_api import expect
from system_packages import needs_packages
from waiting import BROKEN_SECONDS, wait_until

from autograder.course_folder import Course
from autograder.sandbox import Sandbox
from autograder.submissions import with_module
from labkit.linux.free_port import free_port

PHASE, NOTEBOOK = second_exercise.PHASE, second_exercise.NOTEBOOK


NOON = datetime(2027, 3, 1, 12)
PUT = """async ([path, body]) => (await fetch(path, {
    method: "PUT",
    headers: {"X-CSRFToken": document.cookie.match(/_xsrf=([^;]*)/)[1], "Content-Type": "application/json"},
    body: JSON.stringify(body),
})).status"""
"""What the formgrader's dialog of an assignment sends."""


def add_an_exercise_after_grading(course: Course, lab: Path) -> None:
    """Grade a submission, then add a notebook to its assignment."""
    submission = with_module(course.released(PHASE, NOTEBOOK), second_exercise.NAME, second_exercise.SOLUTION)
    course.submit("ada", PHASE, NOTEBOOK, submission)
    course.autograde(PHASE)
    second_exercise.add_third_to(lab)
    notebook = second_exercise.notebook(second_exercise.FAR, second_exercise.FAR_SOLUTION, points=2)
    nbformat.write(notebook, lab / "notebooks" / PHASE / "102_pass_it_far.ipynb")


@pytest.mark.slow
def test_the_formgrader_opens_with_the_course_and_releases_an_assignment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_packages("chromium")
    lab = tmp_path / "lab"
    course = lab / "course"
    second_exercise.add_to(lab)
    source = lab / "notebooks" / PHASE / f"{NOTEBOOK}.ipynb"
    nbformat.write(second_exercise.notebook(second_exercise.NAME, second_exercise.SOLUTION, points=3), source)
    course.mkdir()
    places = {
        "LABKIT_ROOT": lab,
        "JUPYTER_CONFIG_DIR": tmp_path / "config",
        "JUPYTER_RUNTIME_DIR": tmp_path / "runtime",
    }
    command = [sys.executable, "-m", "labkit", "teach", "--course", str(course), "--no-browser"]
    with (tmp_path / "server.log").open("w") as log:
        server = subprocess.Popen(
            [*command, f"--port={free_port()}"],
            env={**os.environ, **{name: str(place) for name, place in places.items()}},
            stdout=log,
            stderr=log,
        )
    try:

        def address() -> re.Match[str] | None:
            said = (tmp_path / "server.log").read_text()
            assert server.poll() is None, said
            return re.search(r"^http://localhost:\S+\n", said, re.MULTILINE)

        found = wait_until(address, (tmp_path / "server.log").read_text)
        assert found is not None
        with chromium() as browser:
            page = new_context(browser).new_page()
            page.goto(found.group().strip())
            formgrader = page.frame_locator(".jp-IFrame iframe")
            expect(formgrader.locator("h1").nth(1)).to_have_text("Manage Assignments")
            expect(page.locator(".lm-MenuBar-itemLabel", has_text="Nbgrader")).to_be_visible()
            expect(
                page.locator("[data-id='nbgrader-create_assignemnts'], .nbgrader-CreateAssignmentWidget")
            ).to_have_count(0)
            row = formgrader.locator("tr", has_text=PHASE)
            row.locator(".glyphicon-education").click()
            expect(formgrader.locator(".modal-title", has_text="Success")).to_be_visible()
            assert (course / "release" / PHASE / f"{NOTEBOOK}.ipynb").is_file()
            formgrader.locator(".modal-footer button").first.click()
            expect(formgrader.locator(".modal-title")).to_have_count(0)
            if Sandbox().available:
                monkeypatch.setenv("LABKIT_ROOT", str(lab))
                add_an_exercise_after_grading(Course(course), lab)
                row.locator(".glyphicon-education").click()
                expect(formgrader.locator(".modal-title", has_text="Success")).to_be_visible()
                assert (course / "release" / PHASE / "102_pass_it_far.ipynb").is_file()
                assert [mark.score for mark in Course(course).marks(PHASE)] == [3.0]
            page.goto(urljoin(page.url, "/formgrader/gradebook"))
            expect(page.locator("h1").nth(1)).to_have_text("Manual Grading")
            for zone, status in (("+01:00", 200), ("+0100", 200), ("CEST", 400)):
                body = {"duedate_notimezone": "2027-03-01T13:00:00", "duedate_timezone": zone}
                answer = page.evaluate(PUT, [f"/formgrader/api/assignment/{PHASE}", body])
                assert answer == status, (zone, (tmp_path / "server.log").read_text())
                with Gradebook(f"sqlite:///{course}/gradebook.db") as gradebook:
                    assert gradebook.find_assignment(PHASE).duedate == NOON
            assert "'2027-03-01T13:00:00 CEST' is not a time: write" in (tmp_path / "server.log").read_text()
            file = page.goto(urljoin(page.url, "/formgrader/submissions/any/page.html"))
            assert file is not None and "sandbox allow-scripts" in file.headers["content-security-policy"]
    finally:
        server.terminate()
        server.wait(BROKEN_SECONDS)
