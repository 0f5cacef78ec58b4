"""A classroom when something is killed or started again in the middle: nothing is lost, nothing is done twice."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, BrokenBarrierError

import nbformat
import psutil
import pytest
import second_exercise
from classroom_in_browser import FLAGS, Formgrader, assignments, logged_in, solve
from classroom_person import Person
from nbformat.v4 import new_markdown_cell, new_notebook
from playwright.sync_api import BrowserContext, Page, expect, sync_playwright
from small_classroom import Classroom, Hub, small_classroom
from system_packages import needs_packages, program

from autograder.course import Course

PHASE, NOTEBOOK = second_exercise.PHASE, second_exercise.NOTEBOOK

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

GRADED_ON_SUBMIT = f'[grading]\non_submit = ["{PHASE}"]\n'

LONG_CELL = """
%load_ext labkit
%cluster local --nproc-per-node 2
get_ipython().run_cell_magic("torchrun", "-n 2", '''
import os, time
open("rank-" + os.environ["RANK"], "w").close()
time.sleep(3600)
''')
"""
"""A cell on two ranks that say when they run, and do not end."""


@pytest.fixture(scope="module")
def classroom(tmp_path_factory: pytest.TempPathFactory) -> Classroom:
    classroom = small_classroom(tmp_path_factory.mktemp("lab"))
    with classroom.site.open("a") as file:
        file.write(GRADED_ON_SUBMIT)
    return classroom


@pytest.fixture(scope="module")
def hub(classroom: Classroom) -> Iterator[Hub]:
    """A hub to which both learners have handed in something."""
    with classroom.running("--demo") as hub:
        yield hub


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


def ended(processes: list[psutil.Process]) -> bool:
    return psutil.wait_procs(processes, timeout=120)[1] == []


def in_a_judgement(hub: Hub) -> list[psutil.Process]:
    """Return the grading service with what it has started, as soon as something runs in its sandbox."""
    while True:
        for service in running(hub, "-m autograder.classroom.grading_service"):
            if "ending_with_hub" in " ".join(service.cmdline()):
                continue
            inside = service.children(recursive=True)
            if any("bwrap" in one.name() for one in inside):
                return [service, *inside]
        assert hub.process.poll() is None
        time.sleep(0.02)


def test_a_grading_service_killed_in_a_judgement_is_started_again_and_each_is_recorded_once(
    classroom: Classroom, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    graded = classroom.folder / "graded"
    service, *inside = in_a_judgement(hub)
    judged = {path.parent.name: path.read_bytes() for path in graded.glob("*/[!.]*.json")}
    assert len(judged) < 2, "it was killed while it judged"
    now = (graded / "now").read_text()
    service.kill()
    assert ended([service, *inside])

    while len(list(graded.glob("*/[!.]*.json"))) < 2:
        assert hub.process.poll() is None
        time.sleep(0.1)
    records = {path.parent.name: path for path in graded.glob("*/[!.]*.json")}
    assert {learner: json.loads(path.read_text())["score"] for learner, path in records.items()} == {
        "ada": 3,
        "grace": 2,
    }
    assert f"{now}.json" in {path.name for path in records.values()}
    for learner, text in judged.items():
        assert records[learner].read_bytes() == text, "what was done is not done again"
    monkeypatch.setenv("LABKIT_ROOT", str(classroom.root))
    marks = Course(classroom.folder / "course").marks(PHASE)
    assert sorted((mark.student, mark.score) for mark in marks) == [("ada", 3), ("grace", 2)]
    for learner in ("ada", "grace"):
        (page,) = (classroom.exchange / "feedback" / learner).iterdir()
        assert page.suffix == ".html" and not page.name.startswith(".")


def test_a_learner_s_server_killed_in_a_running_cell_leaves_nothing_and_starts_again(
    classroom: Classroom, hub: Hub
) -> None:
    ada, home = Person(classroom.address, "ada"), classroom.folder / "homes/ada"
    ada.start_server()
    notebook = new_notebook(cells=[new_markdown_cell("What I have found so far", id="found")])
    saved = ada.send("PUT", "/user/ada", "/api/contents/mine.ipynb", type="notebook", content=notebook)
    assert saved.status_code == 201, saved.text
    with ThreadPoolExecutor(1) as pool:
        cell = pool.submit(ada.run, LONG_CELL)
        while not all((home / f"rank-{rank}").exists() for rank in range(2)):
            assert not cell.done(), cell.result()
            time.sleep(0.1)
        sandbox, *inside = [one for one in running(hub, f"--bind {home} ") if "bwrap" in one.name()]
        everything = [sandbox, *sandbox.children(recursive=True)]
        assert {*inside} <= {*everything}
        assert len(everything) >= 6, "two of bubblewrap, server, kernel, two ranks"
        sandbox.kill()
        assert ended(everything)
        assert isinstance(cell.exception(120), AssertionError), "its connection was closed"

    while not re.search(r"Start\s+My Server", ada.get("/hub/home").text):  # the hub looks every half a minute
        time.sleep(0.5)
    ada.start_server()
    (again,) = [one for one in running(hub, f"--bind {home} ") if one.ppid() == sandbox_parent(hub)]
    assert again.pid != sandbox.pid
    kept = ada.get("/user/ada/api/contents/mine.ipynb").json()["content"]
    assert kept["cells"][0]["source"] == "What I have found so far"
    assert ada.run("print('goes on')") == "goes on\n"


def sandbox_parent(hub: Hub) -> int:
    """Return the process id of JupyterHub, whose children the sandboxes are."""
    return running(hub, "jupyterhub_config.py")[0].pid


TWO_RANKS = """%%torchrun -n 2
import torch, torch.distributed as dist
dist.init_process_group()
number = torch.tensor(dist.get_rank() + 1)
dist.all_reduce(number)
print("the sum is", number.item())
"""

PATIENCE_SECONDS = 240

MODULES = {"ada": (second_exercise.SOLUTION, 3), "grace": (second_exercise.SENDS_TWICE, 2)}
"""What each learner hands in, and its marks."""


def run_on_two_ranks(page: Page) -> None:
    """Run the notebook's first cell, and below it a new one on two ranks."""
    page.locator(".jp-CodeCell .cm-content", has_text="%cluster local").click()
    page.keyboard.press("Shift+Enter")
    page.keyboard.press("a")
    page.keyboard.press("Enter")
    page.keyboard.insert_text(TWO_RANKS)
    page.keyboard.press("Control+Enter")
    expect(page.locator(".jp-NotebookPanel .jp-OutputArea", has_text="the sum is 3").first).to_be_visible()
    page.keyboard.press("Control+S")


def learn(classroom: Classroom, name: str, meet: Barrier) -> Callable[[Page], Page]:
    """Return what a learner does until the submission, and then after the hub's restart."""
    module, marks = MODULES[name]
    file = classroom.folder / f"homes/{name}/{PHASE}/{NOTEBOOK}.ipynb"

    def do(page: Page) -> Page:
        expect(page.get_by_role("heading", name="Course home")).to_be_visible()
        meet.wait()  # for the release
        with assignments(page):
            page.get_by_role("button", name="Fetch", exact=True).click()
            page.get_by_role("button", name=PHASE).click()
            page.get_by_role("link", name=NOTEBOOK).click()
            solve(page, file, module)
            run_on_two_ranks(page)
            page.locator(".lm-TabBar-tab", has_text="Assignments").click()
            page.get_by_role("button", name="Submit").click()
            expect(page.locator("#submitted_assignments_list")).to_contain_text("UTC")
        before = outside_outputs(file)
        meet.wait()  # until all have submitted
        meet.wait()  # for the next hub
        page = again(page, classroom.address)
        assert outside_outputs(file) == before
        records = classroom.folder / "graded" / name
        limit = time.monotonic() + PATIENCE_SECONDS
        while not list(records.glob("[!.]*.json")):
            assert time.monotonic() < limit, f"{name}'s submission was not judged"
            page.wait_for_timeout(200)
        with assignments(page):
            page.get_by_role("button", name="Fetch Feedback").click()
            page.get_by_text("(view feedback)").click()
            page.locator(".jp-DirListing-item", has_text=f"{NOTEBOOK}.html").dblclick()
            shown = page.frame_locator(".jp-HTMLViewer iframe")
            expect(shown.locator("body")).to_contain_text(f"{marks} of 3 points")
        return page

    return do


def outside_outputs(file: Path) -> list[str]:
    return [cell.source for cell in nbformat.read(file, as_version=4).cells]


def again(page: Page, address: str) -> Page:
    """Return a page in the same browser, which has kept the login, and visits the classroom."""
    new = page.context.new_page()
    new.set_default_timeout(1000 * PATIENCE_SECONDS)
    page.close()
    new.goto(address)
    expect(new.get_by_label("Password")).to_have_count(0)
    return new


def teach(classroom: Classroom, meet: Barrier) -> Callable[[Page], Page]:
    """Return what the instructor does: release, look at the class while it works, and again after the restart."""

    def row(page: Page, name: str) -> str:
        shown = page.goto(f"{classroom.address}/services/classroom/class")
        assert shown is not None and shown.status == 200, shown
        # all of it, also what is only read aloud
        return page.get_by_role("table").first.get_by_role("row", name=name).text_content() or ""

    def do(page: Page) -> Page:
        formgrader = Formgrader(page)
        formgrader.press(PHASE, "education")
        formgrader.press(PHASE, "cloud-upload")
        meet.wait()
        looking = page.context.new_page()
        looks = [row(looking, "ada")]
        while meet.n_waiting < 3 and not meet.broken:  # the learners' and the test's own
            looks.append(row(looking, "ada"))
            looking.wait_for_timeout(500)
        assert "not handed in" in looks[0], looks
        meet.wait()
        meet.wait()
        looking = again(looking, f"{classroom.address}/services/classroom/class")
        for name, (_, marks) in MODULES.items():
            limit = time.monotonic() + PATIENCE_SECONDS
            while f"{marks} of 3 points" not in (shown := row(looking, name)):
                assert time.monotonic() < limit, shown
                looking.wait_for_timeout(500)
        return looking

    return do


def in_a_browser(
    address: str, name: str, password: str, meet: Barrier, do: Callable[[Page], Page]
) -> list[dict[str, object]]:
    """Do something as a person in a browser of its own; return the cookies at its end."""
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=program("chromium"), args=FLAGS)
            context: BrowserContext = do(logged_in(browser, address, name, password)).context
            cookies = [dict(cookie) for cookie in context.cookies()]
            browser.close()
            return cookies
    except BaseException:
        meet.abort()
        raise


def test_three_people_at_once_lose_nothing_by_a_restart_of_the_hub(tmp_path: Path) -> None:
    needs_packages("chromium")
    expect.set_options(timeout=1000 * PATIENCE_SECONDS)
    classroom, meet = small_classroom(tmp_path), Barrier(4, timeout=4 * PATIENCE_SECONDS)
    with classroom.site.open("a") as file:
        file.write(GRADED_ON_SUBMIT)
    with ThreadPoolExecutor(3) as pool:
        try:
            with classroom.running() as hub:
                people = [("instructor", hub.password, teach(classroom, meet))]
                people += [(name, "correct horse", learn(classroom, name, meet)) for name in MODULES]
                done = [pool.submit(in_a_browser, classroom.address, *person[:2], meet, person[2]) for person in people]
                meet.wait()
                meet.wait()
            with classroom.running():
                meet.wait()
                problems = [one.exception() for one in done]
        except BrokenBarrierError:
            problems = [one.exception() for one in done]
    for problem in sorted(filter(None, problems), key=lambda one: isinstance(one, BrokenBarrierError)):
        raise problem
    for name, (_, marks) in MODULES.items():
        (record,) = (classroom.folder / "graded" / name).glob("[!.]*.json")
        assert json.loads(record.read_text())["score"] == marks
