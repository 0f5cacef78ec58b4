"""`labkit teach` in headless Chromium: JupyterLab with the formgrader on a real course."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from urllib.parse import urljoin

import nbformat
import pytest
import second_exercise
from browsers import chromium, new_context
from nbgrader.api import Gradebook
from playwright.sync_api import FrameLocator, Page, expect
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


@contextmanager
def teaching(tmp_path: Path) -> Iterator[tuple[Page, Path]]:
    """`labkit teach` in a browser, on a lab with one exercise and an empty course: the page and the server's log."""
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
    output = tmp_path / "server.log"
    with output.open("w") as log:
        server = subprocess.Popen(
            [*command, f"--port={free_port()}"],
            env={**os.environ, **{name: str(place) for name, place in places.items()}},
            stdout=log,
            stderr=log,
        )
    try:

        def address() -> re.Match[str] | None:
            said = output.read_text()
            assert server.poll() is None, said
            return re.search(r"^http://localhost:\S+\n", said, re.MULTILINE)

        found = wait_until(address, output.read_text)
        assert found is not None
        with chromium() as browser:
            page = new_context(browser).new_page()
            page.goto(found.group().strip())
            yield page, output
    finally:
        server.terminate()
        server.wait(BROKEN_SECONDS)


@pytest.mark.slow
def test_the_formgrader_opens_with_the_course_and_releases_an_assignment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = tmp_path / "lab"
    course = lab / "course"
    with teaching(tmp_path) as (page, log):
        formgrader = page.frame_locator(".jp-IFrame iframe")
        expect(formgrader.locator("h1").nth(1)).to_have_text("Manage Assignments")
        expect(page.locator(".lm-MenuBar-itemLabel", has_text="Nbgrader")).to_be_visible()
        expect(page.locator("[data-id='nbgrader-create_assignemnts'], .nbgrader-CreateAssignmentWidget")).to_have_count(
            0
        )
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
            assert answer == status, (zone, log.read_text())
            with Gradebook(f"sqlite:///{course}/gradebook.db") as gradebook:
                assert gradebook.find_assignment(PHASE).duedate == NOON
        assert "'2027-03-01T13:00:00 CEST' is not a time: write" in log.read_text()
        file = page.goto(urljoin(page.url, "/formgrader/submissions/any/page.html"))
        assert file is not None and "sandbox allow-scripts" in file.headers["content-security-policy"]


def to_manage_assignments(page: Page) -> FrameLocator:
    formgrader = page.frame_locator(".jp-IFrame iframe")
    expect(formgrader.locator("h1").nth(1)).to_have_text("Manage Assignments")
    return formgrader


@pytest.mark.slow
def test_a_due_date_that_is_refused_stays_in_the_dialog_with_the_reason(tmp_path: Path) -> None:
    with teaching(tmp_path) as (page, _):
        formgrader = to_manage_assignments(page)
        row = formgrader.locator("tr", has_text=PHASE)
        row.locator(".glyphicon-pencil").click()
        day, zone = formgrader.locator(".modal-duedate"), formgrader.locator(".modal-timezone")
        save, refused = formgrader.locator(".modal.in .save"), formgrader.locator(".modal .not-saved")
        day.fill("2027-03-01T13:00")
        zone.fill("CEST")
        for _ in range(2):  # the button serves again
            save.click()
            expect(refused).to_have_text(
                "Not saved: '2027-03-01T13:00 CEST' is not a time: write 2027-01-31 23:59:00 UTC, or +01:00 in "
                "place of UTC; as a time zone +01:00, UTC or Europe/Berlin"
            )
            expect(save).to_have_text("Save")
            expect(day).to_have_value("2027-03-01T13:00")
            expect(zone).to_have_value("CEST")
        zone.fill("+01:00")
        save.click()
        expect(formgrader.locator(".modal")).to_have_count(0)
        expect(row.locator(".duedate")).to_contain_text("2027-03-01 12:00")

        row.locator(".glyphicon-pencil").click()
        zone.fill("CEST")
        save.click()
        expect(refused).to_be_visible()
        formgrader.locator(".modal.in .btn-danger").click()
        expect(formgrader.locator(".modal")).to_have_count(0)
        row.locator(".glyphicon-pencil").click()
        expect(zone).not_to_have_value("CEST")  # given up: as the gradebook has it
        formgrader.locator(".modal.in .btn-danger").click()
        expect(formgrader.locator(".modal")).to_have_count(0)

        formgrader.get_by_role("link", name="Add new assignment...").click()
        formgrader.locator(".modal.in .name").fill("another")
        formgrader.locator(".modal.in .duedate").fill("2027-04-01T13:00")
        formgrader.locator(".modal.in .timezone").fill("CEST")
        formgrader.locator(".modal.in .save").click()
        expect(refused).to_contain_text("'2027-04-01T13:00 CEST' is not a time")
        expect(formgrader.locator(".modal-name")).to_have_value("another")
        expect(day).to_have_value("2027-04-01T13:00")
        expect(zone).to_have_value("CEST")
        expect(formgrader.locator("#add-assignment-modal")).to_have_count(0)
        formgrader.locator(".modal.in .btn-danger").click()
        expect(formgrader.locator("tr", has_text="another")).to_have_count(0)  # there is no such assignment


@pytest.mark.slow
@pytest.mark.skipif(not Sandbox().available, reason="needs namespaces, for the sandbox")
def test_what_a_locked_gradebook_does_not_take_is_kept_and_saved_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with teaching(tmp_path) as (page, _):
        to_manage_assignments(page)
        monkeypatch.setenv("LABKIT_ROOT", str(tmp_path / "lab"))
        course = Course(tmp_path / "lab" / "course")
        course.release(PHASE)
        submission = with_module(course.released(PHASE, NOTEBOOK), second_exercise.NAME, second_exercise.SOLUTION)
        course.submit("ada", PHASE, NOTEBOOK, submission)
        course.autograde(PHASE)
        with Gradebook(f"sqlite:///{course.folder}/gradebook.db") as gradebook:
            graded = gradebook.find_submission_notebook(NOTEBOOK, PHASE, "ada").id
        page.goto(urljoin(page.url, "/formgrader/manage_students"))
        with closing(sqlite3.connect(course.folder / "gradebook.db", isolation_level=None)) as database:
            page.locator("tr", has_text="ada").locator(".glyphicon-pencil").click()
            page.locator(".modal-email").fill("ada@example.org")
            database.execute("BEGIN EXCLUSIVE")
            page.locator(".modal.in .save").click()
            expect(page.locator(".modal .not-saved")).to_contain_text("gradebook.db is locked by another program")
            expect(page.locator(".modal-email")).to_have_value("ada@example.org")
            database.execute("ROLLBACK")
            page.locator(".modal.in .save").click()
            expect(page.locator(".modal")).to_have_count(0)
            expect(page.locator("tr", has_text="ada").locator(".email")).to_have_text("ada@example.org")

            page.goto(urljoin(page.url, f"/formgrader/submissions/{graded}/"))
            score = page.locator("input.score").first
            expect(score).to_have_attribute("placeholder", "3")  # loaded
            database.execute("BEGIN EXCLUSIVE")
            score.fill("2")
            score.press("Tab")
            expect(page.locator(".not-saved")).to_contain_text("Not saved: the gradebook")
            expect(score).to_have_value("2")
            database.execute("ROLLBACK")
            score.fill("1")
            score.press("Tab")
            expect(page.locator(".not-saved")).to_have_count(0)
        wait_until(lambda: [mark.score for mark in course.marks(PHASE)] == [1.0], lambda: str(course.marks(PHASE)))
