"""A class in the compose file's hub, over HTTP as JupyterLab sends it. Prints JSON: what each step of the class led to.

The instructor releases a phase; a learner logs in, starts the own server, opens a notebook, runs a cell, writes the
module and submits; the feedback comes back. Arguments: the folder of the services' logs, and the learner's name.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import nbformat

sys.path.extend(str(Path(__file__).parents[1] / name) for name in ("autograder", "plugins"))
from classroom_person import FOUR_RANKS, Person
from waiting import wait_until

from autograder.submissions import with_module
from labkit.catalogue import find

HUB = "http://hub:8000"
COURSE = "distributed-training"
EXERCISE = "phase1_data_parallel/process_group"


def main(logs: Path, name: str) -> None:
    exercise = find(EXERCISE)
    assignment = {"course_id": COURSE, "assignment_id": exercise.phase}
    release(password((logs / "hub.log").read_text()), exercise.phase)
    learner = Person(HUB, name)
    learner.start_server()
    fetched = learner.post("/assignments/fetch", **assignment).json()["value"]
    path = f"/api/contents/{exercise.notebook_name}"
    opened = learner.get(f"/user/{name}{path}").json()
    released = nbformat.from_dict(opened["content"])
    ranks = learner.run(FOUR_RANKS)
    written = with_module(released, EXERCISE, exercise.source("solution")[0])
    learner.send("PUT", f"/user/{name}", path, type="notebook", content=written).raise_for_status()
    submitted = learner.post("/assignments/submit", **assignment).json()["value"]
    page = feedback(learner, assignment)
    found = {
        "fetched": status(fetched, exercise.phase),
        "with solutions": "BEGIN SOLUTION" in json.dumps(opened),
        "ranks": sorted(line for line in ranks.splitlines() if "the sum is" in line),
        "submitted": status(submitted, exercise.phase),
        "feedback": "".join(re.findall(r"<title>(.*?)</title>", page)),
    }
    print(json.dumps(found))


def password(log: str) -> str:
    (found,) = re.findall(r"instructor instructor: password (\S+)", log)
    return str(found)


def release(secret: str, assignment: str) -> None:
    """Generate and release an assignment, as the formgrader's buttons do."""
    instructor = Person(HUB, "instructor", secret)
    service = f"/services/{COURSE}"
    instructor.get(f"{service}/formgrader/")
    for step in ("assign", "release"):
        reply = instructor.send("POST", service, f"/formgrader/api/assignment/{assignment}/{step}").json()
        assert reply["success"], reply


def status(assignments: list[dict[str, Any]], name: str) -> list[str]:
    """What the list of assignments shows for one of them."""
    return sorted({str(each["status"]) for each in assignments if each["assignment_id"] == name})


def feedback(learner: Person, assignment: dict[str, str]) -> str:
    """The page about the exercise, once the hub has graded what the learner submitted."""

    def folders() -> list[str]:
        listed = learner.post("/assignments/fetch_feedback", **assignment).json()["value"]
        found = [submission["local_feedback_path"] for each in listed for submission in each.get("submissions", ())]
        return [folder for folder in found if folder]

    folder, *_ = wait_until(folders, pause_seconds=1)
    name = f"{folder}/{Path(find(EXERCISE).notebook_name).stem}.html"
    return str(learner.get(f"/user/{learner.name}/api/contents/{name}").json()["content"])


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
