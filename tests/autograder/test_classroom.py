"""A classroom with its hub: what a learner who tries can reach, and the round trip in the browser."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import psutil
import pytest
import requests
import second_exercise
from accessibility import barriers
from browsers import chromium
from classroom_in_browser import Formgrader, assignments, logged_in, solve
from classroom_person import Person
from classroom_story import wait_for_end
from nbgrader.api import Gradebook
from playwright.sync_api import Browser, Page, expect
from small_classroom import ROOT, Classroom, Hub, small_classroom
from waiting import BROKEN_SECONDS, wait_until

from autograder.classroom.challenges.leaderboard import Judgement, Leaderboard
from labkit.challenges.challenge import Outcome
from labkit.trace import Event, Kind, Trace

PHASE, NOTEBOOK = second_exercise.PHASE, second_exercise.NOTEBOOK

pytestmark = pytest.mark.slow

PROBE = """
import os, socket, subprocess, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

def tried(what, attempt):
    try:
        print(what, "=>", attempt())
    except Exception as problem:
        print(what, "=>", type(problem).__name__)

def connected(port):
    with socket.create_connection(("127.0.0.1", port), timeout=5):
        return "connected"

def hub(path):
    import asyncio
    from jupyterhub.httpclient import fetch
    async def ask():
        token = {"Authorization": f"token {os.environ['JUPYTERHUB_API_TOKEN']}"}
        return (await fetch(os.environ["JUPYTERHUB_API_URL"] + path, headers=token, raise_for_status=False)).status
    with ThreadPoolExecutor() as pool:  # the kernel's own thread runs a loop already
        return pool.submit(lambda: asyncio.run(ask())).result()

OUTSIDE = {outside}
tried("own home", lambda: Path("note").write_text("mine"))
tried("own submission", lambda: Path("/exchange/small-course/inbound/x").write_text("mine"))
for name, path in OUTSIDE["files"].items():
    tried(name, lambda: sorted(os.listdir(path)) if os.path.isdir(path) else open(path).read(20))
tried("release", lambda: Path("/exchange/small-course/outbound/x").write_text("changed"))
tried("feedback", lambda: Path("/exchange/small-course/feedback/x").write_text("forged"))
tried("packages", lambda: Path(sys.prefix, "lib/x").write_text("changed"))
for name, port in OUTSIDE["ports"].items():
    tried(name, lambda: connected(port))
tried("network", lambda: socket.create_connection(("192.0.2.1", 80), timeout=5))
tried("other processes", lambda: [p for p in os.listdir("/proc") if p.isdigit() and b"jupyterhub --config" in
    open(f"/proc/{p}/cmdline", "rb").read().replace(b"\\0", b" ")])
def seen(file):
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            yield Path("/proc", process, file).read_text()
        except OSError:  # root's, or one that has ended
            pass

tried("filters", lambda: sorted({line.split()[1] for text in seen("status") for line in text.splitlines()
    if line.startswith("Seccomp:")}))
tried("started with", lambda: [text for text in seen("environ") if "API_TOKEN" in text])
tried("become root", lambda: os.setuid(0))
tried("new namespace", lambda: os.unshare(os.CLONE_NEWUSER) if hasattr(os, "unshare") else
    subprocess.run(["unshare", "-U", "true"], capture_output=True, check=True))
tried("own account", lambda: hub("/user"))
for path in ("/users", "/users/grace", "/services", "/proxy", "/groups"):
    tried("hub " + path, lambda: hub(path))
"""


@pytest.fixture(scope="module")
def classroom(tmp_path_factory: pytest.TempPathFactory) -> Classroom:
    return small_classroom(tmp_path_factory.mktemp("lab"))


@pytest.fixture(scope="module")
def hub(classroom: Classroom) -> Iterator[Hub]:
    with classroom.running() as hub:
        yield hub


@pytest.fixture(scope="module")
def browser(hub: Hub) -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def ada(hub: Hub, classroom: Classroom) -> Person:
    person = Person(classroom.address, "ada")
    person.start_server()
    return person


def outcomes(ada: Person, classroom: Classroom) -> dict[str, str]:
    port = int(classroom.address.rpartition(":")[2])
    files = {
        "homes": classroom.folder / "homes",
        "another's home": classroom.folder / "homes/grace",
        "another's inbound": classroom.exchange / "inbound/grace",
        "gradebook": classroom.folder / "course",
        "hub's database": classroom.folder / "hub/jupyterhub.sqlite",
        "solutions": classroom.root / "solutions",
        "rubrics": ROOT / "autograder/course",
        "solved notebooks": classroom.root / "notebooks",
        "passwords of the machine": Path("/etc/shadow"),
    }
    outside = {"files": {name: str(path) for name, path in files.items()}, "ports": {"hub's port": port}}
    said = ada.run(PROBE.replace("{outside}", repr(outside)))
    return dict(line.split(" => ", 1) for line in said.splitlines() if " => " in line)


def test_a_learner_s_code_reaches_what_is_its_own_and_nothing_else(ada: Person, classroom: Classroom, hub: Hub) -> None:
    (classroom.folder / "homes/grace/secret.txt").write_text("grace's")
    found = outcomes(ada, classroom)
    assert found["own home"] == "4" and found["own submission"] == "4" and found["own account"] == "200"
    nothing = {"FileNotFoundError", "PermissionError", "[]"}
    for name in ("homes", "another's home", "another's inbound", "gradebook", "hub's database", "solutions"):
        assert found[name] in nothing, (name, found[name])
    for name in ("rubrics", "solved notebooks", "passwords of the machine"):
        assert found[name] in nothing, (name, found[name])
    for name in ("release", "feedback", "packages"):
        assert found[name] in {"OSError", "PermissionError"}, (name, found[name])
    assert found["hub's port"] == "ConnectionRefusedError" and found["network"] == "OSError"
    assert found["other processes"] == "[]"
    # bubblewrap's own process, the zygote, server and kernel: the same system calls are denied to each
    assert found["filters"] == "['2']" and found["started with"] == "[]"
    # there is no root to become where an ordinary user has started the hub
    assert found["become root"] in {"PermissionError", "OSError"} and found["new namespace"] == "CalledProcessError"
    for path in ("/users", "/users/grace", "/services", "/proxy", "/groups"):
        assert found[f"hub {path}"] in {"403", "404"}, (path, found[f"hub {path}"])


def test_a_learner_who_fills_memory_or_disk_loses_the_program_that_does_and_reads_why(
    ada: Person, classroom: Classroom
) -> None:
    grace = Person(classroom.address, "grace")
    grace.start_server()
    # a loop in a program that the kernel waits for, so that the kernel can report its end
    fills = "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', {program!r}]).returncode)"
    memory = "held = []\nwhile True: held.append(b'x' * (50 << 20))"
    assert ada.run(fills.format(program=memory)) == "-9\n"
    notices = "from labkit.hub import notices\nprint(*notices.since(0))"
    # the kernel of the machine may have ended it before the hub has looked
    said = wait_until(lambda: "memory" in (said := ada.run(notices)) and said, pause_seconds=0.5)
    assert "Your server may use 1.5 GiB of memory" in said and "largest process" in said
    assert "Your server may use 1.5 GiB of memory" in ada.get("/services/classroom/").text
    assert "of memory" not in grace.get("/services/classroom/").text

    disk = (
        "for number in range(200):\n open(f'fill{number}', 'wb').write(bytes(50 << 20)); import time; time.sleep(0.2)"
    )
    ada.run(fills.format(program=disk).replace("subprocess.run", "subprocess.Popen").replace(".returncode", ".pid"))
    shown = wait_until(
        lambda: "since more was written" in (page := ada.get("/services/classroom/").text) and page, pause_seconds=0.5
    )
    assert "Kernels, ranks and terminals were ended" in shown and "Delete what you do not need" in shown
    home = classroom.folder / "homes/ada"
    assert len(list(home.glob("fill*"))) < 200
    for file in home.glob("fill*"):
        assert ada.send("DELETE", "/user/ada", f"/api/contents/{file.name}").status_code == 204
    assert ada.run("print('goes on')") == grace.run("print('goes on')") == "goes on\n"
    too_large = ada.run("open('one', 'wb').write(bytes(300 << 20))")
    assert "File too large" in too_large
    (home / "one").unlink()


def test_a_learner_finds_the_guides(ada: Person) -> None:
    asked = "from labkit.search import search\nprint({str(hit.passage.path) for hit in search('barrier')})"
    assert ada.run(asked) == "{'/home/learner/docs/glossary.md'}\n"
    assert ada.get("/user/ada/api/contents/docs/guide.md").status_code == 200


def test_a_learner_s_browser_enters_neither_the_formgrader_nor_another_s_server(ada: Person, hub: Hub) -> None:
    assert ada.get("/services/small-course/formgrader").status_code == 403
    assert ada.get("/services/small-course/api/contents").status_code == 403
    assert ada.get("/hub/admin").status_code == 403
    page = ada.get("/user/grace/lab")
    assert page.status_code in (403, 404), page.url


def test_an_instructor_sees_who_is_there_but_enters_no_learner_s_server(
    ada: Person, classroom: Classroom, hub: Hub
) -> None:
    instructor = Person(classroom.address, "instructor", hub.password)
    assert instructor.get("/hub/admin").status_code == 200
    assert instructor.get("/services/small-course/formgrader/").status_code == 200
    assert instructor.get("/user/ada/api/contents").status_code == 403
    page = instructor.get("/services/classroom/").text
    row = re.search(
        r'<th scope="row">ada</th><td>[^<]+</td>\s*<td class="number">(\d+)</td><td class="number">(\d+)<', page
    )
    assert row and int(row[1]) >= 2 and int(row[2]) > 0, page
    assert 'href="/hub/admin"' in page
    assert "Servers" not in ada.get("/services/classroom/").text
    assert "No assignment is released yet" in instructor.get("/services/classroom/class").text
    for path in ("class", "class/grades-canvas.csv", f"class/ada/{PHASE}/{NOTEBOOK}.html"):
        assert ada.get(f"/services/classroom/{path}").status_code == 403, path


def test_only_people_of_the_course_log_in_and_the_first_password_counts(ada: Person, classroom: Classroom) -> None:
    assert ada.logged_in
    assert not Person(classroom.address, "ada", "another password").logged_in
    assert not Person(classroom.address, "mallory").logged_in
    assert not Person(classroom.address, "instructor").logged_in, "instructors do not choose theirs"
    assert not Person(classroom.address, "grace", "short").logged_in


def test_a_submission_under_another_s_name_is_refused(ada: Person, classroom: Classroom) -> None:
    ada.run(
        "from pathlib import Path\n"
        "for name in ('ada', 'grace'):\n"
        "    Path(f'/exchange/small-course/inbound/{name}+phase2_advanced+2030-01-01 00:00:00.0 UTC').mkdir()"
    )
    collecting = [sys.executable, "-m", "nbgrader", "collect", "phase2_advanced", "--course=small-course"]
    collecting += [f"--Exchange.root={classroom.exchange.parent}", "--ExchangeCollect.own_inbound=True"]
    collecting += [f"--CourseDirectory.root={classroom.root / 'collected'}"]
    here = ROOT / "autograder"
    done = subprocess.run(collecting, env=classroom.environment, cwd=here, capture_output=True, text=True)
    assert "it says that it is 'grace''s, but is in the folder of 'ada'" in done.stderr, done.stderr
    assert os.listdir(classroom.root / "collected/submitted") == ["ada"], done.stderr


def test_an_entry_goes_from_a_learner_s_server_to_the_standings(ada: Person, classroom: Classroom) -> None:
    lines = (
        "class Policy:",
        "    def decide(self, state):",
        "        raise RuntimeError('<img src=x onerror=alert(1)>')",
    )
    ada.run(f"from pathlib import Path\nPath('mine.py').write_text({chr(10).join(lines)!r})")
    said = ada.run("!labkit challenge goodput mine.py --send 'Achilles'")
    assert "sent: mine.py to goodput, as 'Achilles'" in said and "/services/classroom/ on the hub" in said
    page = "/services/classroom/challenges/goodput"
    seen: list[str] = []

    def is_judged() -> bool:
        seen.append(ada.get(page).text)
        return "does not count" in seen[-1]

    wait_until(is_judged, lambda: seen[-1], pause_seconds=0.5)
    shown = seen[-1]
    assert all("It is being judged now." in one for one in seen[:-1]), "the only one in the queue"
    assert "storm 1: RuntimeError on rank 1 at challenges/entry.py, line 3" in shown
    assert "&lt;img src=x onerror=alert(1)&gt;" in shown and "<img" not in shown


def test_the_course_s_page_needs_a_login_and_takes_nothing(ada: Person, classroom: Classroom) -> None:
    page = f"{classroom.address}/services/classroom/"
    assert requests.get(page, timeout=BROKEN_SECONDS).url.startswith(f"{classroom.address}/hub/login")
    assert ada.session.post(page, timeout=BROKEN_SECONDS).status_code == 403, "XSRF"
    policy = ada.get("/services/classroom/").headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "script-src" not in policy and "form-action 'none'" in policy


def look_at_the_class(page: Page, classroom: Classroom) -> None:
    page.goto(f"{classroom.address}/services/classroom/")
    page.get_by_role("link", name="The class at a glance").click()
    table = page.get_by_role("table").first
    expect(table.get_by_role("row", name="ada")).to_contain_text("✓all marks3 of 3 points")
    expect(table.get_by_role("row", name="grace")).to_contain_text("not handed in")
    expect(page.get_by_role("row", name=PHASE).last).to_contain_text(re.compile(r"2031-05-01 12:00\s*1 of \d"))
    assert barriers(page, "html") == []
    for kind, header in (("table", "assignment,duedate"), ("for Canvas", "Student,ID"), ("for Moodle", "Username,")):
        with page.expect_download() as download:
            page.get_by_role("link", name=kind).press("Enter")
        text = download.value.path().read_text()
        assert text.startswith(header) and "ada" in text, text
    shown = page.goto(f"{classroom.address}/services/classroom/class/ada/{PHASE}/{NOTEBOOK}.html")
    assert shown is not None and shown.headers["content-security-policy"].startswith("sandbox;")
    expect(page.locator("body")).to_contain_text("3 of 3 points")


def test_from_release_to_feedback_read_by_the_learner(browser: Browser, classroom: Classroom, hub: Hub) -> None:
    instructor = logged_in(browser, classroom.address, "instructor", hub.password)
    formgrader = Formgrader(instructor)
    formgrader.press(PHASE, "education")
    formgrader.press(PHASE, "cloud-upload")
    with Gradebook(f"sqlite:///{classroom.folder}/course/gradebook.db") as gradebook:
        gradebook.update_or_create_assignment(PHASE, duedate=datetime(2031, 5, 1, 12))

    ada = logged_in(browser, classroom.address, "ada", "correct horse")
    expect(ada.get_by_role("heading", name="Course home")).to_be_visible()
    link = ada.get_by_role("link", name="What you have submitted, your place in the queue")
    expect(link).to_have_attribute("href", "/services/classroom/")
    course, card, following = (ada.locator(f".labkit-{part}") for part in ("course", "card", "continue"))
    home = ada.locator(".lm-TabBar-tab", has_text="HOME.md")
    expect(course).to_contain_text(re.compile(r"^Released, not fetched, due 1 May 2031, .*Not handed in\. Fetch"))
    expect(card).to_contain_text("not fetched · next")
    expect(ada.locator(".labkit-home").get_by_role("link", name="pass_it_on")).to_have_count(0)
    assert barriers(ada, ".labkit-home") == []
    (in_its_place := classroom.folder / "homes/ada" / PHASE).touch()
    fetch = ada.get_by_role("button", name=f"Fetch {PHASE}").first
    fetch.press("Enter")
    expect(
        ada.get_by_role("alert").filter(has_text=f"It could not be fetched. Is there a file {PHASE}")
    ).to_be_visible()
    expect(fetch).to_be_focused()
    in_its_place.unlink()
    with assignments(ada):
        ada.get_by_role("button", name="Fetch", exact=True).click()
        expect(ada.get_by_role("button", name=PHASE)).to_be_visible()
    file = classroom.folder / f"homes/ada/{PHASE}/{NOTEBOOK}.ipynb"
    home.click()
    expect(following).to_be_visible()
    file.rename(file.with_name("renamed.ipynb"))  # nbgrader's list offers no Fetch where there is a folder
    with assignments(ada):
        expect(ada.get_by_role("button", name="Submit")).to_be_visible()
    home.click()
    fetch.press("Enter")
    following.press("Enter")
    solve(ada, file)
    file.with_name("renamed.ipynb").unlink()
    place = classroom.folder / "homes/ada/.progress/place.json"
    wait_until(
        lambda: place.exists() and json.loads(place.read_text())["cell"] == "exercise",
        lambda: "the place was not saved",
        pause_seconds=0.2,
    )
    home.click()
    expect(ada.locator(".labkit-home")).to_contain_text("at “pass_it_on”, 5 minutes")
    with assignments(ada):
        ada.get_by_role("button", name=PHASE).first.click()
        ada.get_by_role("button", name="Validate").click()
        expect(ada.get_by_role("dialog")).to_contain_text("Success! Your notebook passes all the tests.")
        ada.get_by_role("dialog").get_by_role("button").last.click()
        ada.get_by_role("button", name="Submit").click()
        expect(ada.locator("#submitted_assignments_list")).to_contain_text("UTC")
    home.click()
    expect(course).to_contain_text(re.compile(r"Handed in \d+ \w+ \d+, \d\d:\d\d\. It waits to be graded\.$"))
    ada.locator(".lm-TabBar-tab", has_text=NOTEBOOK).click()

    formgrader.press(PHASE, "cloud-download")
    formgrader.frame.locator("tr", has_text=PHASE).get_by_role("link", name="1", exact=True).click()
    formgrader.at("Manage Submissions")
    formgrader.press("ada", "flash")
    expect(formgrader.frame.locator("tr", has_text="ada")).to_contain_text("3 / 3")
    formgrader.press("ada", "comment")
    formgrader.press("ada", "envelope")
    look_at_the_class(instructor.context.new_page(), classroom)

    home.click()  # it asks at once when it is seen again
    expect(card).to_contain_text("Marks: 3 of 3 · feedback")
    expect(course).not_to_contain_text("It waits")
    assert barriers(ada, ".labkit-home") == []
    with ada.context.expect_page() as opened:
        ada.get_by_role("link", name="Feedback on 101 · pass_it_on").press("Enter")
    expect(opened.value.locator("body")).to_contain_text("3 of 3 points")

    with assignments(ada):
        ada.get_by_role("button", name="Fetch Feedback").click()
        ada.get_by_text("(view feedback)").click()
        ada.locator(".jp-DirListing-item", has_text=f"{NOTEBOOK}.html").dblclick()
        page = ada.frame_locator(".jp-HTMLViewer iframe")
        expect(page.locator("body")).to_contain_text("3 of 3 points")


def test_standings_show_names_that_learners_chose_and_traces_once_they_are_open(
    browser: Browser, classroom: Classroom
) -> None:
    leaderboard = Leaderboard(classroom.folder / "challenges")
    bounds = {"slow node": 5e-4, "racks": 3e-4}
    trace = Trace(1, [Event(0, Kind.COMPUTE, "add", 0.0, 1e-3)], "modelled", ranks_per_machine=1)
    for name in ("goodput", "all_reduce"):
        board = leaderboard.final if name == "all_reduce" else leaderboard  # it is over
        board.keep_bounds(name, bounds)
        for author, chosen, factor in (("", "ring", 2.0), ("ada", "Achilles", 1.5), ("grace", "The Tortoise", 1.2)):
            outcomes = [Outcome(one, factor * value, trace=trace) for one, value in bounds.items()]
            board.keep(name, f"{author}{chosen}", author, chosen, "", Judgement(outcomes), "2026-12-01T10:00:00")

    page = logged_in(browser, classroom.address, "grace", "correct horse")
    page.goto(f"{classroom.address}/services/classroom/")
    page.get_by_role("link", name="all_reduce").click()
    rows = page.locator("main table").first.locator("tbody tr")
    expect(rows).to_have_count(4)
    shown = [row.split("\t") for row in rows.all_inner_texts()]
    assert [row[:3] for row in shown[1:]] == [
        ["1", "The Tortoise (you)", "a learner"],
        ["2", "Achilles", "a learner"],
        ["3", "ring", "the course"],
    ]
    # as a word: keys of random letters are on the page, too
    assert re.search(r"\bada\b", page.content()) is None, "nobody sees who has chosen a name"
    link = page.get_by_role("link", name="trace of Achilles, racks")
    link.focus()
    with page.expect_download() as download:
        page.keyboard.press("Enter")
    assert "traceEvents" in json.loads(download.value.path().read_text())
    assert barriers(page, "html") == []

    closed = page.goto(f"{classroom.address}{link.get_attribute('href')}".replace("all_reduce", "goodput"))
    assert closed is not None and closed.status == 403
    expect(page.locator("main")).to_contain_text("Your instructor has not opened the traces")
    assert page.goto(f"{classroom.address}/services/classroom/challenges/nothing").status == 404  # type: ignore[union-attr]
    page.goto(f"{classroom.address}/services/classroom/challenges/goodput")
    expect(page.get_by_role("link", name="trace of")).to_have_count(0)
    assert barriers(page, "html") == []


def test_a_killed_hub_leaves_nothing_behind(ada: Person, hub: Hub) -> None:
    started = psutil.Process(hub.process.pid).children(recursive=True)
    commands = {one.pid: " ".join(one.cmdline()) for one in started if one.status() != psutil.STATUS_ZOMBIE}
    for part in ("bwrap", "configurable-http-proxy", "instructors_lab", "classroom.culler", "pages.service"):
        assert any(part in command for command in commands.values()), (part, commands)
    (jupyterhub,) = (one for one in started if "jupyterhub_config.py" in commands.get(one.pid, ""))
    jupyterhub.kill()
    assert hub.process.wait(BROKEN_SECONDS) == 2
    wait_for_end(started)
