"""Three people in a classroom at once, each in a Chromium of their own, from login to feedback read.

An instructor releases; two learners fetch, write an exercise, run it on ranks, check, validate and submit it, and read
their feedback. In the middle a learner's server is killed in a running cell, the grading service in a judgement, and
the hub is stopped and started again. The story is the same wherever learners' servers run: a `Place` knows where.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Barrier, BrokenBarrierError

import nbformat
import psutil
import second_exercise
from browsers import chromium
from classroom_in_browser import Formgrader, assignments, logged_in, solve
from playwright.sync_api import BrowserContext, Error, Page, expect
from small_classroom import Classroom, Hub
from system_packages import needs_packages
from waiting import wait_until

PHASE, NOTEBOOK = second_exercise.PHASE, second_exercise.NOTEBOOK

TWO_RANKS = """%%torchrun -n 2
import torch, torch.distributed as dist
dist.init_process_group()
number = torch.tensor(dist.get_rank() + 1)
dist.all_reduce(number)
print("the sum is", number.item())
"""

WITHOUT_END = """%%torchrun -n 2
import os, time
open("rank-" + os.environ["RANK"], "w").close()
time.sleep(3600)
"""
"""A cell on two ranks that say when they run."""

MODULES = ((second_exercise.SOLUTION, 3), (second_exercise.SENDS_TWICE, 2))
"""What the first and the second learner hand in, and its marks."""


@dataclass
class Place:
    """A classroom by the kind of its servers."""

    classroom: Classroom
    home: Callable[[str], Path]
    """A learner's home as this test sees it."""
    processes: Callable[[Hub, str], list[psutil.Process]]
    """Processes of a learner's server with all that it has started, the server first."""
    goes_on: bool = False
    """Whether servers go on while there is no hub."""
    learners: tuple[str, str] = ("ada", "grace")
    instructor: str = "instructor"
    passwords: Mapping[str, str] = field(default_factory=dict)
    """Passwords of people who have one already."""

    def marks(self) -> dict[str, int]:
        return {name: marks for name, (_, marks) in zip(self.learners, MODULES, strict=True)}

    def records(self, name: str) -> list[Path]:
        """Return the records of a learner's graded submissions."""
        return list((self.classroom.folder / "graded" / name).glob("[!.]*.json"))


def three_people(place: Place) -> None:
    """Act the story; raises what went wrong for somebody in it."""
    needs_packages("chromium")
    meet = Barrier(4)  # each step has its own limit, and a failure aborts it
    with place.classroom.site.open("a") as file:
        file.write(f'[grading]\non_submit = ["{PHASE}"]\n')
    with ThreadPoolExecutor(3) as pool:
        try:
            with place.classroom.running() as hub:
                people = {place.instructor: _teach(place, meet)}
                people |= {name: _learn(place, name, meet, hub) for name in place.learners}
                done = [
                    pool.submit(_in_a_browser, place, name, _password(place, hub, name), meet, do)
                    for name, do in people.items()
                ]
                meet.wait()  # for the release
                service, *inside = in_a_judgement(place.classroom, hub, lambda: meet.broken)
                service.kill()
                wait_for_end([service, *inside])
                meet.wait()  # until all have submitted
                servers = [place.processes(hub, name)[0] for name in place.learners]
            assert [_goes_on(server) for server in servers] == [place.goes_on] * 2
            with place.classroom.running() as hub:
                meet.wait()
                problems = [one.exception() for one in done]
                if place.goes_on:
                    assert [place.processes(hub, name)[0] for name in place.learners] == servers
        except BrokenBarrierError:
            problems = [one.exception() for one in done]
        except BaseException:
            meet.abort()
            raise
    for problem in sorted(filter(None, problems), key=lambda one: isinstance(one, BrokenBarrierError)):
        raise problem
    for name, marks in place.marks().items():
        (record,) = place.records(name)
        assert json.loads(record.read_text())["score"] == marks


def in_a_judgement(
    classroom: Classroom, hub: Hub, given_up: Callable[[], bool] = lambda: False
) -> list[psutil.Process]:
    """Return the grading service with what it has started, as soon as a submission runs in its sandbox.

    By then nbgrader has written a part of what it makes of the submission.
    """
    written = classroom.folder / "course/autograded"

    def judging() -> list[psutil.Process]:
        assert hub.process.poll() is None
        if given_up():
            raise BrokenBarrierError
        for service in running(hub, "-m autograder.classroom.grading_service"):
            if "ending_with_hub" in " ".join(service.cmdline()) or not list(written.glob(f"*/{PHASE}/*.ipynb")):
                continue
            inside = service.children(recursive=True)
            if any("bwrap" in one.name() for one in inside):
                return [service, *inside]
        return []

    return wait_until(judging, pause_seconds=0.02)


def running(hub: Hub, part: str) -> list[psutil.Process]:
    """Return the hub's processes in whose command a text is, those started first at the beginning."""
    found = []
    for process in psutil.Process(hub.process.pid).children(recursive=True):
        try:
            if part in " ".join(process.cmdline()):
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def wait_for_end(processes: list[psutil.Process]) -> None:
    """Wait until all of them have ended, whoever asks for their exit status."""
    wait_until(lambda: not any(map(_goes_on, processes)), lambda: [one for one in processes if _goes_on(one)])


def _goes_on(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _password(place: Place, hub: Hub, name: str) -> str:
    if name in place.passwords:
        return place.passwords[name]
    return hub.password if name == place.instructor else "correct horse"


def _in_a_browser(place: Place, name: str, password: str, meet: Barrier, do: Callable[[Page], Page]) -> None:
    """Do something as a person in a browser of its own."""
    try:
        with chromium() as browser:  # of this thread: Playwright's objects belong to the thread that made them
            context: BrowserContext = do(logged_in(browser, place.classroom.address, name, password)).context
            context.close()
    except BaseException:
        meet.abort()
        raise


def _teach(place: Place, meet: Barrier) -> Callable[[Page], Page]:
    """Return what the instructor does: release, look at the class while it works, and again after the restart."""
    address = f"{place.classroom.address}/services/classroom/class"

    def row(page: Page, name: str) -> str:
        shown = page.goto(address)
        assert shown is not None and shown.status == 200, shown
        # all of it, also what is only read aloud
        return page.get_by_role("table").first.get_by_role("row", name=name).text_content() or ""

    def do(page: Page) -> Page:
        formgrader = Formgrader(page)
        formgrader.press(PHASE, "education")
        formgrader.press(PHASE, "cloud-upload")
        meet.wait()
        looking = page.context.new_page()
        looks = [row(looking, place.learners[0])]
        while meet.n_waiting < 3 and not meet.broken:  # the learners' and the test's own
            looks.append(row(looking, place.learners[0]))
            looking.wait_for_timeout(500)
        assert "not handed in" in looks[0], looks
        meet.wait()
        meet.wait()
        looking = _again(looking, address)
        for name, marks in place.marks().items():
            wait_until(
                lambda name=name, marks=marks: f"{marks} of 3 points" in row(looking, name),  # type: ignore[misc]
                lambda name=name: row(looking, name),  # type: ignore[misc]
                pause_seconds=0.5,
            )
        return looking

    return do


def _learn(place: Place, name: str, meet: Barrier, hub: Hub) -> Callable[[Page], Page]:
    """Return what a learner does until the submission, and then after the hub's restart."""
    module, marks = dict(zip(place.learners, MODULES, strict=True))[name]
    file = place.home(name) / PHASE / f"{NOTEBOOK}.ipynb"

    def do(page: Page) -> Page:
        expect(page.get_by_role("heading", name="Course home")).to_be_visible()
        meet.wait()  # for the release
        with assignments(page):
            page.get_by_role("button", name="Fetch", exact=True).click()
            page.get_by_role("button", name=PHASE).click()
            page.get_by_role("link", name=NOTEBOOK).click()
            solve(page, file, module)
        _run_cells(page)
        if name == place.learners[1]:
            page = _lose_server(place, hub, name, page)
        with assignments(page):
            page.get_by_role("button", name=PHASE).first.click()
            page.get_by_role("button", name="Validate").click()
            dialog = page.get_by_role("dialog")
            expect(dialog).to_contain_text("Success! Your notebook passes all the tests.")
            dialog.get_by_role("button").last.click()
            page.get_by_role("button", name="Submit").click()
            expect(page.locator("#submitted_assignments_list")).to_contain_text("UTC")
        before = _cells(file)
        meet.wait()  # until all have submitted
        meet.wait()  # for the next hub
        page = _again(page, place.classroom.address)
        expect(page.get_by_role("heading", name="Course home")).to_be_visible()
        assert _cells(file) == before
        wait_until(lambda: place.records(name), lambda: f"{name}'s submission was not judged", pause_seconds=0.2)
        expect(page.locator(".labkit-marks")).to_contain_text(f"Marks: {marks} of 3")
        with assignments(page):
            page.get_by_role("button", name="Fetch Feedback").click()
            page.get_by_text("(view feedback)").click()
            page.locator(".jp-DirListing-item", has_text=f"{NOTEBOOK}.html").dblclick()
            shown = page.frame_locator(".jp-HTMLViewer iframe")
            expect(shown.locator("body")).to_contain_text(f"{marks} of 3 points")
        return page

    return do


def _run_cells(page: Page) -> None:
    """Run the notebook in front: its first cell, one on two ranks, the exercise and its check."""
    # JupyterLab forgets cells that are run before the kernel is connected
    expect(page.locator(".jp-Notebook-ExecutionIndicator")).to_have_attribute("data-status", "idle")
    page.locator(".jp-CodeCell .cm-content", has_text="%cluster local").click()
    page.keyboard.press("Control+Enter")
    _run_new_cell(page, TWO_RANKS)
    _shows(page, "the sum is 3")
    page.locator(".jp-CodeCell .cm-content", has_text="%%exercise").click()
    page.keyboard.press("Control+Enter")
    page.locator(".jp-CodeCell .cm-content", has_text="%check").click()
    page.keyboard.press("Control+Enter")
    _shows(page, "the left neighbour's tensor arrives")
    page.keyboard.press("Control+S")


def _run_new_cell(page: Page, text: str) -> None:
    """Run a new cell below the one in which the cursor is."""
    for key in ("Escape", "b", "Enter"):
        page.keyboard.press(key)
    page.keyboard.insert_text(text)
    page.keyboard.press("Control+Enter")


def _shows(page: Page, text: str) -> None:
    expect(page.locator(".jp-NotebookPanel .jp-OutputArea", has_text=text).first).to_be_visible()


def _lose_server(place: Place, hub: Hub, name: str, page: Page) -> Page:
    """Run a cell that does not end; kill the server; return a page of the next one, which has the notebook."""
    file = place.home(name) / PHASE / f"{NOTEBOOK}.ipynb"
    before = _cells(file)
    _run_new_cell(page, WITHOUT_END)
    ran = [file.parent / f"rank-{rank}" for rank in range(2)]
    wait_until(lambda: all(path.exists() for path in ran), lambda: "the cell did not run")
    everything = place.processes(hub, name)
    assert len(everything) >= 4, f"server, kernel, two ranks: {everything}"
    everything[0].kill()
    wait_for_end(everything)
    page = _again(page, place.classroom.address)

    look_ms = 20_000

    def is_home() -> bool:
        # the hub looks every half a minute; a cluster may have started the server again by itself
        nonlocal look_ms
        with suppress(Error):
            page.goto(f"{place.classroom.address}/hub/spawn")
            page.get_by_role("heading", name="Course home").wait_for(timeout=look_ms)
            return True
        look_ms *= 2  # JupyterLab may need longer on a busy machine
        return False

    wait_until(is_home, page.content, pause_seconds=0.5)
    assert [one for one in _cells(file) if one in before] == before
    return page


def _cells(file: Path) -> list[str]:
    return [cell.source for cell in nbformat.read(file, as_version=4).cells]


def _again(page: Page, address: str) -> Page:
    """Return a page in the same browser, which has kept the login, and visits the classroom."""
    new = page.context.new_page()
    page.close()
    new.goto(address)
    expect(new.get_by_label("Password")).to_have_count(0)
    return new
