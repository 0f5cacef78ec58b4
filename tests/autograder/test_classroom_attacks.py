"""Attacks on a classroom by a learner: the API of the hub, pages of other sites, forged marks, scripts."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator

import nbformat
import psutil
import pytest
import requests
import second_exercise
from classroom_in_browser import FLAGS, Formgrader, logged_in
from classroom_person import Person
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output
from nbgrader.api import Gradebook
from playwright.sync_api import Browser, Page, Request, expect, sync_playwright
from requests.adapters import HTTPAdapter
from small_classroom import Classroom, Hub, small_classroom
from system_packages import needs_packages, program
from urllib3.util import Retry

from autograder.submissions import with_module

PHASE, NOTEBOOK = second_exercise.PHASE, second_exercise.NOTEBOOK

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def classroom(tmp_path_factory: pytest.TempPathFactory) -> Classroom:
    """A classroom with TLS, whose exercise is graded on submit and has an answer in Markdown, too."""
    classroom = small_classroom(tmp_path_factory.mktemp("lab"))
    classroom.use_tls("IP:127.0.0.1")
    with classroom.site.open("a") as site:
        site.write(f'[grading]\non_submit = ["{PHASE}"]\n')
    path = classroom.root / f"notebooks/{PHASE}/{NOTEBOOK}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    answer = {"schema_version": 3, "grade": True, "solution": True, "locked": False, "task": False, "points": 1}
    notebook.cells.append(
        new_markdown_cell("Why?", id="why", metadata={"nbgrader": {**answer, "grade_id": "why"}}),
    )
    nbformat.write(notebook, path)
    return classroom


@pytest.fixture(scope="module")
def hub(classroom: Classroom) -> Iterator[Hub]:
    with classroom.running("--demo") as hub:
        yield hub


def person(classroom: Classroom, name: str, password: str = "correct horse") -> Person:
    return Person(classroom.address, name, password, certificate=str(classroom.certificate))


@pytest.fixture(scope="module")
def ada(hub: Hub, classroom: Classroom) -> Person:
    ada = person(classroom, "ada")
    ada.start_server()
    return ada


@pytest.fixture(scope="module")
def instructor(hub: Hub, classroom: Classroom) -> Person:
    return person(classroom, "instructor", hub.password)


REQUESTS = """
import json, os
from concurrent.futures import ThreadPoolExecutor

async def ask(method, path, body):
    from jupyterhub.httpclient import fetch
    token = {"Authorization": f"token {os.environ['JUPYTERHUB_API_TOKEN']}"}
    url = os.environ["JUPYTERHUB_API_URL"] + path
    return (await fetch(url, method=method, json=body, headers=token, raise_for_status=False)).status

async def ask_all():
    for method, path, body in ATTEMPTS:
        print(method, path, json.dumps(body), "=>", await ask(method, path, body))

import asyncio
with ThreadPoolExecutor() as pool:  # the kernel's own thread runs a loop already
    pool.submit(lambda: asyncio.run(ask_all())).result()
"""

ATTEMPTS = (
    ("GET", "/users", {}),
    ("POST", "/users", {"usernames": ["mallory"], "admin": True}),
    ("PATCH", "/users/ada", {"admin": True}),
    ("DELETE", "/users/grace", {}),
    ("POST", "/users/grace/server", {}),
    ("DELETE", "/users/grace/server", {}),
    ("GET", "/users/grace/tokens", {}),
    ("POST", "/users/grace/tokens", {}),
    ("POST", "/users/ada/tokens", {"scopes": ["admin:users"]}),
    ("POST", "/users/ada/tokens", {"roles": ["instructor"]}),
    ("POST", "/groups/instructors/users", {"users": ["ada"]}),
    ("POST", "/shares/ada/", {"user": "grace", "scopes": ["access:servers!server=ada/"]}),
    ("GET", "/services", {}),
    ("GET", "/proxy", {}),
    ("POST", "/shutdown", {}),
)


def test_a_learner_s_token_gives_nothing_but_the_own_account(ada: Person) -> None:
    said = ada.run(REQUESTS.replace("ATTEMPTS", repr((("GET", "/user", {}), *ATTEMPTS))))
    own, *others = (line.rpartition(" => ") for line in said.splitlines())
    assert own[2] == "200" and len(others) == len(ATTEMPTS), said
    assert all(status in ("400", "403", "404", "405") for _, _, status in others), said


def test_each_service_s_token_has_only_what_the_service_needs(
    ada: Person, instructor: Person, classroom: Classroom, hub: Hub
) -> None:
    tokens = {}
    for process in psutil.Process(hub.process.pid).children(recursive=True):
        environment = process.environ()
        if (name := environment.get("JUPYTERHUB_SERVICE_NAME")) and "bwrap" not in process.name():
            tokens[name] = environment["JUPYTERHUB_API_TOKEN"]
    assert set(tokens) == {"small-course", "classroom", "grading", "culler", "limits"}

    nobody = requests.Session()
    again = Retry(
        3, status_forcelist=[503], allowed_methods=None, backoff_factor=0.5
    )  # the proxy's answer, not the hub's
    nobody.mount("https://", HTTPAdapter(max_retries=again))
    nobody.verify, nobody.trust_env = str(classroom.certificate), False

    def status(token: str, method: str, path: str) -> int:
        headers, url = {"Authorization": f"token {token}"}, f"{classroom.address}{path}"
        return nobody.request(method, url, headers=headers, json={}, timeout=60).status_code

    for name, token in tokens.items():
        allowed = 200 if name == "culler" else 403
        assert status(token, "GET", "/hub/api/users") == allowed, name
        for method, path in (
            ("POST", "/users/ada/tokens"),
            ("GET", "/users/ada/tokens"),
            ("POST", "/users/ada/server"),
            ("POST", "/users"),
            ("PATCH", "/users/ada"),
            ("POST", "/shutdown"),
        ):
            assert status(token, method, f"/hub/api{path}") in (403, 404), (name, method, path)
        assert status(token, "GET", "/user/ada/api/contents") == 403, name


def test_the_culler_needs_no_certificate(ada: Person, classroom: Classroom) -> None:
    log = classroom.folder / "hub/hub.log"
    limit = time.monotonic() + 60
    while not (asked := re.search(r"GET /hub/api/users.*culler", log.read_text())) and time.monotonic() < limit:
        time.sleep(0.3)
    said = log.read_text()
    assert asked and f"200 {asked[0]}" in said and "CERTIFICATE" not in said, said


def test_cookies_are_for_tls_alone_and_no_other_site_s_page_can_post(
    ada: Person, instructor: Person, classroom: Classroom
) -> None:
    assert instructor.get("/services/small-course/formgrader/manage_assignments").status_code == 200
    logins = [cookie for one in (ada, instructor) for cookie in one.session.cookies if cookie.name != "_xsrf"]
    assert len(logins) >= 4 and all(cookie.secure for cookie in logins), logins
    elsewhere = {"Origin": "https://evil.example", "Referer": "https://evil.example/"}
    for path in (
        f"/services/small-course/formgrader/api/assignment/{PHASE}/unrelease",
        "/services/small-course/api/kernels",
        "/services/small-course/api/terminals",
        "/services/classroom/",
        "/hub/api/users/ada/server",
        "/hub/api/users/instructor/tokens",
    ):
        for headers in ({}, elsewhere):
            posted = instructor.session.post(f"{classroom.address}{path}", headers=headers, timeout=60)
            assert posted.status_code == 403, (path, headers, posted.status_code)
    for path in ("/hub/home", "/services/small-course/lab", "/services/classroom/"):
        policy = instructor.get(path).headers["Content-Security-Policy"]
        assert "frame-ancestors 'none'" in policy or "frame-ancestors 'self'" in policy, path


def script(name: str) -> str:
    """Return a script that asks the hub, with the cookies of whoever sees it, who that is."""
    return f'fetch("/hub/api/user?seen={name}")'


ACTIVE = (
    f"<script>{script('script')}</script>",
    f"<img src=x onerror='{script('img')}'>",
    f"<svg onload='{script('svg')}'></svg>",
    f"<details open ontoggle='{script('details')}'><summary>x</summary></details>",
    f"<iframe srcdoc='<script>{script('frame')}</script>'></iframe>",
    f"<a class=evil href='javascript:{script('link')}'>look</a>",
)
"""HTML that runs a script where it is shown as it is."""


def forged(released: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return a submission worth 2 of 3 points, that claims more and has scripts wherever it can."""
    notebook = with_module(released, second_exercise.NAME, second_exercise.SENDS_TWICE)
    html = "\n\n".join(ACTIVE)
    for cell in notebook.cells:
        settings = cell.metadata.get("nbgrader", {})
        if settings.get("grade"):
            settings["points"] = 100
        if settings.get("grade_id") == "why":
            cell.source = f"{html}\n\n[look](javascript:{script('markdown')})\n\n![x](attachment:x.svg)"
            cell.attachments = {"x.svg": {"image/svg+xml": f"<svg onload='{script('attached')}'/>"}}
        elif cell.cell_type == "markdown":
            cell.source += html
        else:
            cell.outputs = [new_output("display_data", {"text/html": html, "text/markdown": html})]
    score = new_output("execute_result", {"text/plain": "100.0"}, execution_count=1)
    more = {"schema_version": 3, "grade": True, "solution": False, "locked": True, "task": False, "points": 50}
    for name in ("grade_pass_it_on", "grade_more"):
        cell = new_code_cell('"100"', metadata={"nbgrader": {**more, "grade_id": name}}, outputs=[score])
        notebook.cells.append(cell)
    return notebook


HAND_IN = """
from datetime import UTC, datetime
from pathlib import Path
stamp = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f UTC")
folder = Path(f"/exchange/small-course/inbound/ada+{PHASE}+{stamp}+forged")
folder.mkdir()
for name, text in FILES.items():
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text)
(folder / "timestamp.txt").write_text(stamp)
(folder / "submission_secret.txt").write_text("a" * 64)
"""


@pytest.fixture(scope="module")
def graded(ada: Person, classroom: Classroom) -> dict[str, object]:
    """The record of the forged submission, which the hub has graded as it came in."""
    released = nbformat.read(classroom.folder / f"course/release/{PHASE}/{NOTEBOOK}.ipynb", as_version=4)
    html = "".join(ACTIVE)
    files = {
        f"{NOTEBOOK}.ipynb": nbformat.writes(forged(released)),
        f"{NOTEBOOK}.html": html,
        "feedback/page.html": html,
        "gradebook.db": "forged",
        "nbgrader_config.py": f"open({str(classroom.folder / 'forged')!r}, 'w')",
        f"<img src=x onerror='{script('name').replace('/', '&#47;')}'>.ipynb": "{}",
    }
    code = HAND_IN.replace("{PHASE}", PHASE).replace("FILES", repr(files))
    assert ada.run(code) == ""
    records = classroom.folder / "graded/ada"
    limit = time.monotonic() + 300
    while not (found := list(records.glob("*+forged.json"))) and time.monotonic() < limit:
        time.sleep(0.3)
    return dict(json.loads(found[0].read_text()))


def test_marks_are_what_the_judge_gives_whatever_a_submission_claims(
    graded: dict[str, object], classroom: Classroom
) -> None:
    assert (graded["judged"], graded["score"], graded["max_score"]) == (True, 2, 4), graded
    with Gradebook(f"sqlite:///{classroom.folder}/course/gradebook.db") as gradebook:
        notebook = gradebook.find_submission_notebook(NOTEBOOK, PHASE, "ada")
        assert {grade.name: (grade.score, grade.max_score) for grade in notebook.grades} == {
            "grade_pass_it_on": (2, 3),
            "why": (0, 1),
        }
    assert not (classroom.folder / "forged").exists()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    needs_packages("chromium")
    expect.set_options(timeout=60_000)
    with sync_playwright() as playwright:
        flags = [*FLAGS, "--ignore-certificate-errors"]
        browser = playwright.chromium.launch(executable_path=program("chromium"), args=flags)
        yield browser
        browser.close()


def visit(page: Page, url: str) -> None:
    """Open a page, press all links of the attack, and give what has started time to end."""
    page.goto(url)
    for link in page.locator("a:text-is('look')").all():
        link.click(no_wait_after=True)
    page.wait_for_load_state("networkidle")


def test_nothing_of_a_submission_runs_in_the_instructor_s_browser(
    browser: Browser, classroom: Classroom, hub: Hub, graded: dict[str, object]
) -> None:
    page = logged_in(browser, classroom.address, "instructor", hub.password)
    Formgrader(page)
    asked: list[Request] = []
    page.context.on("request", lambda request: asked.append(request) if "?seen=" in request.url else None)

    def seen() -> set[str]:
        """Return which scripts have asked with the instructor's cookies; a sandboxed page's have none."""
        return {one.url.partition("?seen=")[2] for one in asked if "cookie" in one.all_headers()}

    control = f"{classroom.address}/hub/control"
    page.route(control, lambda route: route.fulfill(body="".join(ACTIVE), content_type="text/html"))
    visit(page, control)
    assert seen() == {"script", "img", "svg", "details", "frame", "link"}, "unprotected, each of them runs"
    asked.clear()

    course = f"{classroom.address}/services/small-course"
    with Gradebook(f"sqlite:///{classroom.folder}/course/gradebook.db") as gradebook:
        submission = gradebook.find_submission_notebook(NOTEBOOK, PHASE, "ada").id
    collected = f"submitted/ada/{PHASE}/{NOTEBOOK}"
    visit(page, f"{course}/formgrader/submissions/{submission}/")
    expect(page.locator("#notebook").last).to_contain_text("def pass_it_on")
    for path in (
        f"formgrader/manage_submissions/{PHASE}",
        f"formgrader/gradebook/{PHASE}/{NOTEBOOK}",
        f"formgrader/submissions/{submission}/..%2f..%2f..%2f{collected}.html",
        f"files/feedback/ada/{PHASE}/{NOTEBOOK}.html",
        f"files/{collected}.html",
        f"nbconvert/html/{collected}.ipynb",
    ):
        visit(page, f"{course}/{path}")
        assert seen() == set(), path
    visit(page, f"{classroom.address}/services/classroom/")
    page.goto(f"{course}/lab/tree/{collected}.ipynb")
    page.locator(".jp-Notebook").wait_for()
    expect(page.locator(".jp-NotebookPanel")).to_contain_text("def pass_it_on")
    page.wait_for_load_state("networkidle")
    assert seen() == set()
