"""Logins of a site's own: an OpenID Connect provider, a learning platform (LTI 1.3), the machine's users (PAM)."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
import requests
from browsers import chromium, new_context
from cryptography.hazmat.primitives.asymmetric import rsa
from identity_provider import CLIENT, SECRET, Provider, identity_provider
from nbgrader.api import Gradebook
from playwright.sync_api import Browser, Page
from small_classroom import Classroom, small_classroom
from tornado.web import HTTPError
from unix_users import etc_of_its_own
from waiting import BROKEN_SECONDS

from autograder.classroom import site as sites
from autograder.classroom.learning_platform import Platform
from autograder.classroom.logins.claims import user_name
from autograder.classroom.logins.openid import endpoints
from autograder.classroom.requirements import missing
from autograder.marks import new_gradebook
from autograder.sandbox import Sandbox
from autograder.sandbox.bwrap import bwrap
from labkit.command_line.commands import CommandError


@pytest.mark.parametrize(
    ("claims", "claim", "domain", "name"),
    [
        ({"preferred_username": "Ada"}, "preferred_username", "", "ada"),
        ({"email": "ada@Example.edu", "email_verified": True}, "email", "example.edu", "ada"),
        ({"email": "ada@evil.example"}, "email", "example.edu", "'ada@evil.example' is not an address @example.edu"),
        ({"email": "ada"}, "email", "example.edu", "'ada' is not an address @example.edu"),
        ({"email": "ada@example.edu"}, "email", "", "'ada@example.edu' is not a name without '@'"),
        ({"email": "ada@example.edu", "email_verified": False}, "email", "example.edu", "has not been verified"),
        ({"sub": "42"}, "email", "example.edu", "sent no 'email'"),
        ({"name": "../ada"}, "name", "", "'../ada' cannot be a name of the classroom"),
        ({"name": ["ada"]}, "name", "", "sent no 'name'"),
    ],
)
def test_one_claim_is_the_name_or_the_reason_is_given(
    claims: dict[str, object], claim: str, domain: str, name: str
) -> None:
    if " " not in name:
        assert user_name(claims, claim, domain) == name
        return
    with pytest.raises(HTTPError) as caught:
        user_name(claims, claim, domain)
    assert caught.value.status_code == 403 and name in str(caught.value.log_message)


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with identity_provider() as provider:
        yield provider


@pytest.fixture(scope="module")
def classroom(tmp_path_factory: pytest.TempPathFactory) -> Classroom:
    return small_classroom(tmp_path_factory.mktemp("lab"))


def test_a_provider_that_does_not_answer_or_is_another_is_named(provider: Provider, tmp_path: Path) -> None:
    known = {"client_id": CLIENT, "secret_file": str(tmp_path / "secret")}
    with pytest.raises(CommandError, match="is of another issuer"):
        endpoints(sites.OpenID(issuer=provider.platform, **known))
    nobody = sites.OpenID(issuer="http://127.0.0.1:9", **known)
    found = missing(sites.Site(login=sites.Login(kind="openid", openid=nobody)))
    assert any("the identity provider of [login.openid] does not answer: http://127.0.0.1:9/" in line for line in found)
    assert any(f"the secret of [login.openid] cannot be read: {tmp_path / 'secret'}" in line for line in found)


def with_login(classroom: Classroom, learners: str, table: str) -> None:
    hub = classroom.site.read_text().partition("[login]")[0].partition("[course]")[0]
    course = f'[course]\nname = "small-course"\nlearners = [{learners}]\n'
    classroom.site.write_text(f"{hub}{course}[servers]\nstart_seconds = 600\n[login]\n{table}")


@pytest.mark.slow
def test_people_of_the_course_log_in_with_the_university_s_account(classroom: Classroom, provider: Provider) -> None:
    secret = classroom.root / "secret"
    secret.write_text(f"{SECRET}\n")
    with_login(
        classroom,
        '"ada", "grace"',
        f'kind = "openid"\n[login.openid]\nissuer = "{provider.address}"\nclient_id = "{CLIENT}"\n'
        f'secret_file = "{secret}"\nclaim = "email"\ndomain = "example.edu"\n',
    )

    def visit(email: str, **claims: object) -> tuple[requests.Session, requests.Response]:
        provider.person = {"email": email, **claims}
        session = requests.Session()
        return session, session.get(f"{classroom.address}/hub/oauth_login?next=%2Fhub%2Fhome", timeout=BROKEN_SECONDS)

    with classroom.running() as hub:
        assert "instructors: instructor" in hub.output and "password" not in hub.output, hub.output
        for name in ("ada", "grace"):
            session, page = visit(f"{name}@example.edu")
            assert page.status_code == 200 and page.url == f"{classroom.address}/hub/home", page.text
            assert f">{name}<" in re.sub(r"\s+", "", page.text), "the page is somebody else's"
        for email, claims, reason in (
            ("mallory@example.edu", {}, "you are not currently authorized to use this hub"),
            ("ada@evil.example", {}, "is not an address @example.edu"),
            ("ada@example.edu", {"email_verified": False}, "has not been verified by the identity provider"),
        ):
            session, page = visit(email, **claims)
            assert page.status_code == 403 and reason in page.text, (page.status_code, page.text)
            assert (
                session.get(f"{classroom.address}/hub/home", timeout=BROKEN_SECONDS).url
                != f"{classroom.address}/hub/home"
            )
    said = classroom.labkit("hub", "--site", str(classroom.site), "--new-password", "ada")
    assert said.returncode != 0 and "the hub keeps no passwords: people log in by openid" in said.stderr


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.mark.slow
def test_a_link_of_the_learning_platform_opens_the_hub(
    browser: Browser, classroom: Classroom, provider: Provider
) -> None:
    with_login(
        classroom,
        '"ada"',  # grace, who was on the list before, has left the course
        f'kind = "lti"\n[login.lti]\nissuer = "{provider.platform}"\nclient_id = "{CLIENT}"\n'
        f'authorize_url = "{provider.platform}/launch"\nkeys_url = "{provider.platform}/keys"\n'
        f'token_url = "{provider.platform}/service-token"\ndomain = "example.edu"\n',
    )
    provider.tool_keys = f"{classroom.address}/hub/lti13/keys"
    provider.members = [
        {"user_id": "1", "email": "ada@example.edu", "roles": ["Learner"], "status": "Active"},
        {"user_id": "2", "email": "instructor@example.edu", "roles": ["Instructor"]},
        {"user_id": "3", "email": "lin@example.edu", "roles": ["membership#Learner"]},
        {"user_id": "4", "email": "eve@evil.example", "roles": ["Learner"]},
        {"user_id": "5", "email": "grace@example.edu", "roles": ["Learner"], "status": "Inactive"},
    ]

    def follow_link(name: str, **claims: object) -> Page:
        """Open the link of the course, as the platform's page does: from another site."""
        provider.person = {"email": f"{name}@example.edu", **claims}
        page = new_context(browser).new_page()
        page.goto(f"{provider.platform}/keys")  # a page of the platform
        asked = {
            "iss": provider.platform, "login_hint": "42", "client_id": CLIENT,
            "target_link_uri": f"{classroom.address}/hub/home",
        }  # fmt: skip
        with page.expect_navigation(url=lambda url: url.startswith(classroom.address) and "oauth_login" not in url):
            page.evaluate(
                "address => { location = address }", f"{classroom.address}/hub/lti13/oauth_login?{urlencode(asked)}"
            )
        return page

    with classroom.running():
        page = follow_link("ada")
        page.wait_for_url(f"{classroom.address}/hub/home")
        assert "ada" in page.inner_text(".navbar")
        said = classroom.labkit("hub", "--site", str(classroom.site), "--roster")
        assert "follow the link of the course on the learning platform once" in said.stderr
        follow_link("instructor", **provider.services())
        said = classroom.labkit("hub", "--site", str(classroom.site), "--roster")
        assert said.stdout.startswith("2 learners on the platform, 1 of them new: lin"), said.stdout + said.stderr
        assert said.returncode == 1 and "left out: 'eve@evil.example' is not an address @example.edu" in said.stderr
        assert (classroom.folder / "learners.txt").read_text() == "lin\n"
        platform = Platform(sites.load(classroom.site).login.lti, classroom.folder / "hub")
        assert platform.send("phase1", 25.0, {"ada": 21.5, "lin": 0.0, "mallory": 25.0}) == ["mallory"]
        platform.send("phase1", 25.0, {"ada": 23.0})
        assert [column["label"] for column in provider.columns] == ["phase1"]
        marks = {who: (score["scoreGiven"], score["scoreMaximum"]) for (_, who), score in provider.scores.items()}
        assert marks == {"1": (23.0, 25.0), "3": (0.0, 25.0)}
        release = classroom.folder / "course/release/small_phase/notebook.ipynb"
        release.parent.mkdir(parents=True)
        release.touch()
        database = f"sqlite:///{classroom.folder / 'course/gradebook.db'}"
        new_gradebook.begin(database)
        with Gradebook(database) as gradebook:
            gradebook.add_assignment("small_phase")
            gradebook.add_notebook("notebook", "small_phase")
            gradebook.add_grade_cell("cell", "notebook", "small_phase", max_score=3, cell_type="code")
            gradebook.add_student("ada")  # who has handed in nothing
        said = classroom.labkit("hub", "--site", str(classroom.site), "--send-marks", "small_phase")
        assert "small_phase: 1 marks are on the learning platform, of 3 points" in said.stdout, said.stderr
        assert provider.scores["1", "1"]["scoreGiven"] == 0 and provider.columns[1]["label"] == "small_phase"
        said = classroom.labkit("hub", "--site", str(classroom.site), "--send-marks", "phase7")
        assert said.returncode == 2 and "not released: phase7; there are: small_phase" in said.stderr
        assert "403" in follow_link("grace").inner_text("body")
        assert "403" in follow_link("mallory").inner_text("body")
        assert "401" in follow_link("ada", aud="another-tool").inner_text("body")
        # a launch that was seen on its way is of no use in another browser
        stolen = requests.post(
            f"{classroom.address}/hub/lti13/oauth_callback",
            {"id_token": provider.launches[0], "state": "x"},
            timeout=BROKEN_SECONDS,
        )
        assert stolen.status_code == 400
        provider.signs_with = rsa.generate_private_key(65537, 2048)
        assert "400" in follow_link("ada").inner_text("body")
        provider.signs_with = None


PAM = """
import asyncio
from types import SimpleNamespace
from jupyterhub.auth import PAMAuthenticator
from traitlets.config import Config
from autograder.classroom import site as sites
from autograder.classroom.logins.configure import configure

c, site = Config(), sites.Site(login=sites.Login(kind="pam", pam_service="lab"))
configure(c, SimpleNamespace(site=site, folders=None))
assert c.JupyterHub.authenticator_class == "pam"
pam = PAMAuthenticator(config=c)

async def main():
    for name, password in (("ada", "correct horse"), ("ada", "wrong"), ("mallory", "correct horse")):
        print(await pam.authenticate(None, {"username": name, "password": password}))

asyncio.run(main())
"""
# `openssl passwd -6 -salt labsalt "correct horse"`
HASHED = "$6$labsalt$G7iWEvzejTe/xBSwtH9gD9FfIsFWk4Xfy5GItCgWbAHbleGj502.Wo68eTVbRDczBzl0th4.4gbBOIeLoOcse1"


@pytest.mark.skipif(not Sandbox().available, reason="needs namespaces, for the sandbox")
def test_users_of_the_machine_log_in_with_their_passwords(tmp_path: Path) -> None:
    files = {
        "/etc/passwd": "root:x:0:0::/root:/bin/sh\nada:x:1000:1000::/home/ada:/bin/sh\n",
        "/etc/shadow": f"root:*:19000:0:99999:7:::\nada:{HASHED}:19000:0:99999:7:::\n",
        "/etc/pam.d/lab": "auth required pam_unix.so nodelay\naccount required pam_unix.so\n",
    }
    command = [bwrap(), "--unshare-user", "--uid", "0", "--gid", "0", "--ro-bind", "/", "/"]
    command += etc_of_its_own(["passwd", "shadow", "pam.d"])
    for number, (path, text) in enumerate(files.items()):
        (tmp_path / str(number)).write_text(text)
        if "pam.d" in path:
            command += ["--tmpfs", "/etc/pam.d"]
        command += ["--ro-bind", str(tmp_path / str(number)), path]
    run = subprocess.run([*command, "--dev", "/dev", sys.executable, "-P", "-c", PAM], capture_output=True, text=True)
    assert run.stdout.split() == ["ada", "None", "None"], run.stdout + run.stderr
