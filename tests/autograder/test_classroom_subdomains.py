"""A classroom whose servers have host names of their own: what a page of a learner's server can reach in a browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from browsers import chromium
from classroom_in_browser import Formgrader, logged_in
from playwright.sync_api import Page, expect
from small_classroom import small_classroom
from system_packages import needs_packages

from autograder.classroom import site as sites
from autograder.classroom.requirements import missing

pytestmark = pytest.mark.slow

READ = """async url => {
    try { const answer = await fetch(url, {credentials: "include"}); return await answer.text() }
    catch (problem) { return String(problem) }
}"""


@pytest.mark.exhaustive
def test_a_page_of_a_learner_s_server_cannot_use_the_instructor_s_login(tmp_path: Path) -> None:
    needs_packages("chromium")
    classroom = small_classroom(tmp_path)
    classroom.use_tls("DNS:hub.localhost", "DNS:*.hub.localhost")
    port = classroom.address.rpartition(":")[2]
    hub, own = f"https://hub.localhost:{port}", f".hub.localhost:{port}"
    course, course_page = f"https://small-course--service{own}", f"https://classroom--service{own}/services/classroom/"
    text = classroom.site.read_text().replace("[course]", f'subdomain_host = "{hub}"\n[course]')
    classroom.site.write_text(text)
    with classroom.running() as running, chromium("--ignore-certificate-errors") as browser:
        assert f"JupyterHub is at {hub}" in running.output
        ada = logged_in(browser, hub, "ada", "correct horse")
        link = ada.get_by_role("link", name="What you have submitted, your place in the queue")
        expect(link).to_have_attribute("href", course_page)
        assert ada.url.startswith(f"https://ada{own}/user/ada/lab")
        ada.goto(course_page)
        ada.get_by_role("link", name="Your server").click()
        ada.wait_for_url(f"https://ada{own}/user/ada/lab**")

        instructor = logged_in(browser, hub, "instructor", running.password)
        Formgrader(instructor)
        assert instructor.url.startswith(f"{course}/services/small-course/lab")
        instructor.goto(course_page)
        instructor.get_by_role("link", name="The hub's admin page").click()
        instructor.wait_for_url(f"{hub}/hub/admin")
        attack(
            instructor,
            hub,
            f"https://ada{own}",
            (f"{hub}/hub/token", f"{course}/services/small-course/tree", course_page),
        )


def attack(page: Page, hub: str, learner: str, targets: tuple[str, ...]) -> None:
    """Follow a link to a server that serves whatever the learner likes, and read the hub's pages from there."""
    page.route("**/evil", lambda route: route.fulfill(body="look", content_type="text/html"))
    page.goto(f"{hub}/hub/evil")
    assert "instructor" in page.evaluate(READ, targets[0]), "a page of the hub's own origin could"
    page.goto(f"{learner}/user/ada/evil")
    for target in targets:
        assert page.evaluate(READ, target) == "TypeError: Failed to fetch", target
    login = "__Host-jupyterhub-hub-login"
    page.evaluate("name => { document.cookie = `${name}=forged; domain=hub.localhost; path=/; secure` }", login)
    held = {one["name"]: one["domain"] for one in page.context.cookies(f"{hub}/hub/")}
    assert held[login] == "hub.localhost", "no other host has it"
    seen = {one["name"] for one in page.context.cookies(page.url)}
    assert seen <= {"jupyterhub-session-id"}, "which gives no access"
    page.goto(f"{hub}/hub/home")
    assert page.url == f"{hub}/hub/home", "still logged in"


def test_a_certificate_without_the_names_below_is_reported(tmp_path: Path) -> None:
    classroom = small_classroom(tmp_path)
    classroom.use_tls("DNS:hub.localhost")
    text = classroom.site.read_text().replace("[course]", 'subdomain_host = "https://hub.localhost"\n[course]')
    classroom.site.write_text(text)
    (problem,) = (one for one in missing(sites.load(classroom.site)) if "subdomain_host" in one)
    assert problem.endswith("hub.pem needs the names *.hub.localhost, too")
