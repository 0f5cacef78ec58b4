"""Attacks on a classroom: the API of the hub, other learners' servers, pages of other sites, forged marks, scripts."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote, urlsplit

import nbformat
import neighbours
import psutil
import pytest
import requests
import second_exercise
from browsers import chromium
from classroom_in_browser import Formgrader, logged_in
from classroom_person import Person
from foreign_page import ATTACK, POST_AND_FOLLOW, allowed, foreign_site
from hub_api_attempts import ATTEMPTS, REQUESTS
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output
from nbgrader.api import Gradebook
from playwright.sync_api import Browser, Page, Request, expect
from small_classroom import Classroom, Hub, small_classroom
from waiting import BROKEN_SECONDS, wait_until

from autograder.classroom import configured
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


def environments(hub: Hub) -> Iterator[tuple[psutil.Process, dict[str, str]]]:
    """Yield the hub's processes that run, with their environments."""
    for process in psutil.Process(hub.process.pid).children(recursive=True):
        # it has just ended; or it is bubblewrap's, into which its own user may not look, either
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            yield process, process.environ()


def without_login(classroom: Classroom) -> requests.Session:
    """Return a session without cookies."""
    nobody = requests.Session()
    nobody.verify, nobody.trust_env = str(classroom.certificate), False
    return nobody


def test_a_learner_s_token_gives_nothing_but_the_own_account(ada: Person) -> None:
    said = ada.run(REQUESTS.replace("ATTEMPTS", repr((("GET", "/user", {}), *ATTEMPTS))))
    own, *others = (line.rpartition(" => ") for line in said.splitlines())
    assert own[2] == "200" and len(others) == len(ATTEMPTS), said
    assert all(status in ("400", "403", "404", "405") for _, _, status in others), said


def test_nor_does_a_token_that_the_learner_has_asked_for(ada: Person, classroom: Classroom) -> None:
    assert ada.get("/hub/token").status_code == 200
    token = ada.send("POST", "/hub", "/api/users/ada/tokens", note="mine").json()["token"]
    nobody, headers = without_login(classroom), {"Authorization": f"token {token}"}

    def status(method: str, path: str, body: object) -> int:
        return nobody.request(
            method, classroom.address + path, headers=headers, json=body, timeout=BROKEN_SECONDS
        ).status_code

    assert status("GET", "/hub/api/user", {}) == 200
    said = {(method, path): status(method, f"/hub/api{path}", body) for method, path, body in ATTEMPTS}
    assert all(one in (400, 403, 404, 405) for one in said.values()), said
    for path in ("/services/small-course/api/contents", "/user/grace/api/contents", "/services/classroom/class"):
        assert status("GET", path, {}) in (403, 404), path


def test_a_learner_s_server_finds_nothing_of_another_s(ada: Person, classroom: Classroom, hub: Hub) -> None:
    grace = person(classroom, "grace")
    grace.start_server()
    assert grace.run(neighbours.OFFERS) == "1 seen\n"
    started = list(environments(hub))
    listening = []
    for process, _ in started:
        with suppress(psutil.NoSuchProcess):
            listening += [one for one in process.net_connections("all") if one.status == "LISTEN"]
    ports = sorted({one.laddr.port for one in listening if one.laddr})
    running = Path(next(found for _, environment in started if (found := environment.get(configured.RUNNING))))
    sockets = [str(running / name) for name in ("proxy.sock", "servers/grace.sock", "servers/ada.sock")]
    assert len(ports) >= 3 and all(Path(path).exists() for path in sockets), (ports, sockets)
    outside = {"ports": ports, "sockets": sockets, "processes": [one.pid for one, _ in started]}
    said = ada.run(neighbours.LOOKS.replace("{outside}", repr(outside)))
    found = dict(line.split(" => ") for line in said.splitlines())
    assert len(found) == 21 + len(ports) + len(sockets), said
    refused = {"ConnectionRefusedError", "FileNotFoundError", "PermissionError", "OSError", "[]", "EPERM", "EACCES"}
    assert set(found.values()) <= refused, said


def test_each_service_s_token_has_only_what_the_service_needs(
    ada: Person, instructor: Person, classroom: Classroom, hub: Hub
) -> None:
    tokens = {}
    for process, environment in environments(hub):
        if (name := environment.get("JUPYTERHUB_SERVICE_NAME")) and "bwrap" not in process.name():
            tokens[name] = environment["JUPYTERHUB_API_TOKEN"]
    assert set(tokens) == {"small-course", "classroom", "grading", "culler", "limits"}

    nobody = without_login(classroom)

    def status(token: str, method: str, path: str) -> int:
        headers, url = {"Authorization": f"token {token}"}, f"{classroom.address}{path}"
        return nobody.request(method, url, headers=headers, json={}, timeout=BROKEN_SECONDS).status_code

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
    asked = wait_until(lambda: re.search(r"GET /hub/api/users.*culler", log.read_text()), log.read_text)
    assert asked is not None
    said = log.read_text()
    assert f"200 {asked[0]}" in said and "CERTIFICATE" not in said, said


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
            posted = instructor.session.post(f"{classroom.address}{path}", headers=headers, timeout=BROKEN_SECONDS)
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
    found = wait_until(lambda: list(records.glob("*+forged.json")), pause_seconds=0.3)
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


ASKS_FOR_ANOTHER_S = """
import json, os
from concurrent.futures import ThreadPoolExecutor

async def ask_all():
    from jupyterhub.httpclient import fetch
    own = {"Authorization": f"token {os.environ['JUPYTERHUB_API_TOKEN']}"}
    forged = {"Authorization": f"token grace:{os.environ['JUPYTERHUB_API_TOKEN']}"}
    names = {"X-Forwarded-User": "grace", "X-Remote-User": "grace", "Cookie": "jupyterhub-user-grace=1"}
    named = "user=grace&name=grace&learner=grace&student=grace"
    course = os.environ["JUPYTERHUB_API_URL"] + "/course"
    for url, headers in (
        (course, own), (f"{course}?{named}", own), (course, {**own, **names}),
        (course, forged), (course, names), (f"{course}/grace", own), (f"{course}/../course/grace", own),
    ):
        answer = await fetch(url, headers=headers, raise_for_status=False)
        print(answer.status, json.dumps(await answer.json(content_type=None)) if answer.status == 200 else "")

import asyncio
with ThreadPoolExecutor() as pool:  # the kernel's own thread runs a loop already
    pool.submit(lambda: asyncio.run(ask_all())).result()
"""


def test_a_learner_s_course_is_the_own_one_whatever_the_request_says(
    ada: Person, classroom: Classroom, hub: Hub, graded: dict[str, object]
) -> None:
    grace, feedback = person(classroom, "grace"), classroom.exchange / "feedback"
    (page,) = wait_until(lambda: list((feedback / "grace").glob("[!.]*.html")), pause_seconds=0.3)
    marks = {}
    for one in (ada, grace):
        one.get("/services/classroom/")
        (assignment,) = one.get("/services/classroom/mine").json()["assignments"]
        ((marks[one.name],)) = (each["marks"] for each in assignment["notebooks"])
    assert marks["grace"]["feedback"] == f"feedback/{page.name}"

    said = ada.run(ASKS_FOR_ANOTHER_S).splitlines()
    assert [line[:3] for line in said] == ["200", "200", "200", "403", "403", "404", "404"], said
    for line in said[:3]:
        (assignment,) = json.loads(line[4:])["assignments"]
        assert [each["marks"] for each in assignment["notebooks"]] == [marks["ada"]], line

    for path, status in ((marks["ada"]["feedback"], 200), (marks["grace"]["feedback"], 404), ("mine/grace", 404)):
        answer = ada.get(f"/services/classroom/{path}")
        assert answer.status_code == status, path
    assert "Feedback for ada" in (own := ada.get(f"/services/classroom/{marks['ada']['feedback']}")).text
    assert own.headers["Content-Security-Policy"].startswith("sandbox;")
    assert ada.get("/services/classroom/mine?user=grace").json() == ada.get("/services/classroom/mine").json()
    assert ada.get("/user/grace/labkit/course").status_code in (403, 404)
    nobody = without_login(classroom)
    for path in ("/hub/api/course", "/services/classroom/mine"):
        assert nobody.get(f"{classroom.address}{path}", timeout=BROKEN_SECONDS).status_code == 403


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium("--ignore-certificate-errors") as browser:
        yield browser


REFUSED = re.compile(r"(refused to connect\.|ERROR (400|403))$")
"""What a frame shows: Chromium's page, and JupyterLab's."""


@contextmanager
def settling(page: Page) -> Iterator[None]:
    """Give what starts in this context time to end: no request begins or ends for half a second.

    Playwright's `networkidle` never comes where it misses the end of a request.
    """
    events = 0

    def count(_: Request) -> None:
        nonlocal events
        events += 1

    def is_quiet() -> bool:
        before = events
        page.wait_for_timeout(500)
        return events == before

    kinds = ("request", "requestfinished", "requestfailed")
    for kind in kinds:
        page.on(kind, count)
    yield
    wait_until(is_quiet, lambda: page.url)
    for kind in kinds:
        page.remove_listener(kind, count)


def visit(page: Page, url: str) -> None:
    """Open a page, press all links of the attack, and give what has started time to end."""
    with settling(page):
        page.goto(url)
        for link in page.locator("a:text-is('look')").all():
            link.click(no_wait_after=True)


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
    each = {"script", "img", "svg", "details", "frame", "link"}

    def has_run_each() -> bool:
        page.wait_for_timeout(100)  # Playwright takes in what happens while one of its functions waits
        return seen() == each

    wait_until(has_run_each, lambda: f"unprotected, each of them runs, not only {seen()}")
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
    with settling(page):
        page.goto(f"{course}/lab/tree/{collected}.ipynb")
        page.locator(".jp-Notebook").wait_for()
        expect(page.locator(".jp-NotebookPanel")).to_contain_text("def pass_it_on")
    assert seen() == set()
    page.context.close()  # JupyterLab would still start kernels


def state(ada: Person, instructor: Person, classroom: Classroom) -> dict[str, object]:
    """Return what a page of another site would like to change."""
    found: dict[str, object] = {}
    for who, server in ((ada, "/user/ada"), (instructor, "/services/small-course")):
        for kind, name in (("kernels", "id"), ("terminals", "name"), ("sessions", "id")):
            answer = who.get(f"{server}/api/{kind}")
            found[f"{server} {kind}"] = sorted(one[name] for one in answer.json())
    found["users"] = {one["name"]: (one["admin"], one["server"]) for one in instructor.get("/hub/api/users").json()}
    with closing(sqlite3.connect(classroom.folder / "hub/jupyterhub.sqlite")) as database:
        found["tokens"] = database.execute("select note from api_tokens where note like '%evil%'").fetchall()
    for folder in ("homes/ada", "course", "exchange/small-course/inbound/ada", "exchange/small-course/outbound"):
        names = (path.name for path in (classroom.folder / folder).iterdir())
        # the queue may grade the demo's submissions meanwhile, which adds folders to the course
        kept = names if folder != "course" else (name for name in names if name == "release" or "evil" in name)
        found[folder] = sorted(name for name in kept if not name.startswith("."))
    return found


def test_a_page_of_another_site_reads_and_changes_nothing(
    browser: Browser, classroom: Classroom, hub: Hub, ada: Person, instructor: Person
) -> None:
    hub_at, course = classroom.address, "/services/small-course"
    kernel = ada.post("/api/kernels", name="python3").json()
    instructor.get(f"{course}/lab")
    theirs = instructor.send("POST", course, "/api/kernels", name="python3").json()
    evil = '{"name": "python3", "note": "evil=", "usernames": ["mallory"], "content": "x", "type": "file"}'
    hubs = [
        ("POST", "/hub/api/users"),
        ("POST", "/hub/api/shutdown"),
        ("DELETE", "/hub/api/users/ada/server"),
        ("POST", "/services/classroom/"),
    ]
    attacks = {
        "instructor": (
            [
                *("/hub/api/user", "/hub/token", "/hub/admin", f"{course}/api/contents"),
                "/services/classroom/class",
                f"{course}/formgrader/manage_submissions/{PHASE}",
            ],
            [
                *hubs,
                ("POST", "/hub/api/users/instructor/tokens"),
                ("POST", f"{course}/formgrader/api/assignment/{PHASE}/unrelease"),
                ("POST", f"{course}/formgrader/api/submission/{PHASE}/ada/autograde"),
                ("POST", f"{course}/api/kernels"),
                ("POST", f"{course}/api/terminals"),
                ("PUT", f"{course}/api/contents/evil"),
                ("DELETE", f"{course}/api/kernels/{theirs['id']}"),
            ],
            [f"{course}/api/kernels/{theirs['id']}/channels", f"{course}/api/events/subscribe"],
        ),
        "ada": (
            [
                *("/hub/api/user", "/hub/token", "/services/classroom/", "/user/ada/lab", "/user/ada/api/contents"),
                *("/user/ada/files/HOME.md", "/user/ada/assignments?course_id=small-course"),
            ],
            [
                *hubs,
                ("POST", "/hub/api/users/ada/tokens"),
                ("POST", f"/user/ada/assignments/submit?course_id=small-course&assignment_id={PHASE}"),
                ("POST", "/user/ada/api/kernels"),
                ("POST", "/user/ada/api/terminals"),
                ("POST", "/user/ada/api/shutdown"),
                ("PUT", "/user/ada/api/contents/evil"),
                ("DELETE", f"/user/ada/api/kernels/{kernel['id']}"),
            ],
            [f"/user/ada/api/kernels/{kernel['id']}/channels", "/user/ada/api/events/subscribe"],
        ),
    }
    before = state(ada, instructor, classroom)
    for name, (pages, posts, sockets) in attacks.items():
        password = hub.password if name == "instructor" else "correct horse"
        page = logged_in(browser, f"{hub_at}/hub/login?next=%2Fhub%2Fhome", name, password)
        page.wait_for_url(f"{hub_at}/hub/home")
        server = course if name == "instructor" else "/user/ada"
        # each gives a cookie of its own; a workspace in which no notebook is open, and none gets a kernel
        for path in (f"{server}/lab/workspaces/empty", "/services/classroom/"):
            page.goto(hub_at + path, wait_until="commit")
        given = {
            "pages": [hub_at + path for path in pages],
            "posts": [(method, hub_at + path, "application/json", evil) for method, path in posts],
            "sockets": [hub_at.replace("https", "wss") + path for path in sockets],
        }
        page.goto(f"{hub_at}/hub/home")
        tokens = {one["path"]: one["value"] for one in page.context.cookies() if one["name"] == "_xsrf"}

        def with_token(url: str, tokens: dict[str, str] = tokens) -> str:
            service = max((path for path in tokens if urlsplit(url).path.startswith(path)), key=len)
            return f"{url}{'&' if '?' in url else '?'}_xsrf={quote(tokens[service])}"

        own = page.evaluate(
            ATTACK, {"posts": [], **{kind: [with_token(url) for url in given[kind]] for kind in ("pages", "sockets")}}
        )
        able = [what for what, outcome in own.items() if outcome in (200, "connected")]
        assert len(able) == len(pages) + len(sockets), json.dumps(own, indent=1)
        for certificate in (None, classroom.certificate):
            with foreign_site(certificate) as address:
                page.goto(address)
                assert allowed(page.evaluate(ATTACK, given)) == {}, (name, address)
                shown = [frame.evaluate("document.body.innerText") for frame in page.frames[1:]]
                refused = [text for text in shown if REFUSED.search(text)]
                assert len(shown) == len(refused) > len(pages), shown
                start, _, rest = evil.partition("=")
                forms = [(path, {start: rest}, "text/plain") for method, path in posts if method == "POST"]
                other = {"username": "grace", "password": "correct horse"}
                forms.append(("/hub/login", other, "application/x-www-form-urlencoded"))
                for path, fields, kind in forms:
                    tab = page.context.new_page()  # left open: it may still show the answer
                    tab.goto(address)
                    with tab.expect_response(lambda one: one.request.method == "POST") as answer:
                        tab.evaluate(POST_AND_FOLLOW, [hub_at + path, fields, kind])
                    assert answer.value.status in (400, 403), (name, address, path)
        page.goto(f"{hub_at}/hub/api/user")
        assert f'"name": "{name}"' in page.content(), "still logged in, as the same person"
    assert state(ada, instructor, classroom) == before
