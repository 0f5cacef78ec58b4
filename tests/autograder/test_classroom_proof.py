"""A classroom when something is killed or started again in the middle: nothing is lost, nothing is done twice."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import psutil
import pytest
from classroom_person import Person
from classroom_story import PHASE, Place, in_a_judgement, running, three_people, wait_for_end
from nbformat.v4 import new_markdown_cell, new_notebook
from small_classroom import Classroom, Hub, small_classroom
from waiting import BROKEN_SECONDS, wait_until

from autograder.classroom.limits import sandboxes
from autograder.course_folder import Course

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


def test_a_grading_service_killed_in_a_judgement_is_started_again_and_each_is_recorded_once(
    classroom: Classroom, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    graded = classroom.folder / "graded"
    service, *inside = in_a_judgement(classroom, hub)
    judged = {path.parent.name: path.read_bytes() for path in graded.glob("*/[!.]*.json")}
    assert len(judged) < 2, "it was killed while it judged"
    now = (graded / "now").read_text()
    service.kill()
    wait_for_end([service, *inside])

    def are_recorded() -> bool:
        assert hub.process.poll() is None
        return len(list(graded.glob("*/[!.]*.json"))) >= 2

    wait_until(are_recorded)
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

        def ranks_run() -> bool:
            assert not cell.done(), cell.result()
            return all((home / f"rank-{rank}").exists() for rank in range(2))

        wait_until(ranks_run)
        first, *inside = everything = sandbox(classroom, hub, "ada")
        assert len(inside) >= 5, "bubblewrap's second, server, kernel, two ranks"
        first.kill()
        wait_for_end(everything)
        assert isinstance(cell.exception(BROKEN_SECONDS), AssertionError), "its connection was closed"

    # the hub looks every half a minute
    wait_until(lambda: re.search(r"Start\s+My Server", ada.get("/hub/home").text), pause_seconds=0.5)
    ada.start_server()
    assert sandbox(classroom, hub, "ada")[0] != first
    kept = ada.get("/user/ada/api/contents/mine.ipynb").json()["content"]
    assert kept["cells"][0]["source"] == "What I have found so far"
    assert ada.run("print('goes on')") == "goes on\n"


def sandbox(classroom: Classroom, hub: Hub, learner: str) -> list[psutil.Process]:
    """Return the processes of a learner's server, bubblewrap first."""
    homes = classroom.folder / "homes"
    first = next(one for one in running(hub, f"--bind {homes / learner} ") if "bwrap" in one.name())
    (server,) = [one for one in sandboxes.running(first.ppid(), homes) if one.first == first.pid]
    return [psutil.Process(pid) for pid in server.pids()]


def test_three_people_at_once_lose_nothing_by_what_is_killed_and_started_again(tmp_path: Path) -> None:
    classroom = small_classroom(tmp_path)
    three_people(Place(classroom, (classroom.folder / "homes").joinpath, partial(sandbox, classroom)))
