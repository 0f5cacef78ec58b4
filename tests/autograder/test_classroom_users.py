"""A classroom whose servers are those of users of this machine, on which root has started the hub."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from classroom_story import Place, running, three_people
from shared_exchange import what_others_reach
from small_classroom import Classroom, Hub, small_classroom
from unix_users import PASSWORD, Users, lines_that_open, unix_users

from autograder.classroom import site as sites
from autograder.classroom.spawners import users as kind
from autograder.sandbox import Sandbox

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Sandbox().available, reason="needs namespaces, for the sandbox"),
]


@pytest.fixture
def users() -> Iterator[Users]:
    with unix_users("ada", "grace", "teacher") as made:
        yield made


def with_users(classroom: Classroom, users: Users) -> Classroom:
    """Let the servers of a classroom be those of users, who reach Python wherever it is."""
    exchange, lab = users.folder / "exchange", classroom.learners_lab(users.folder / "lab")
    exchange.mkdir()
    ada, grace, teacher = users.names
    classroom.site.write_text(
        f'[hub]\naddress = "{classroom.address}"\n'
        f'[course]\nname = "small-course"\ninstructors = ["{teacher}"]\nlearners = ["{ada}", "{grace}"]\n'
        f'[login]\nkind = "pam"\n[servers]\nkind = "users"\nstart_seconds = 600\n'
        f'[servers.users]\nexchange = "{exchange}"\nlab = "{lab}"\n'
    )
    lines = f'set -e\n{lines_that_open(users.folder / "opened")}\nexec "$@"'
    classroom.prefix = ("unshare", "--mount", "bash", "-c", lines, "hub")
    return classroom


@pytest.mark.exhaustive
def test_three_people_at_once_as_users_of_this_machine(tmp_path: Path, users: Users) -> None:
    classroom = with_users(small_classroom(tmp_path), users)
    ada, grace, teacher = users.names

    def processes(hub: Hub, learner: str) -> list[psutil.Process]:
        (server,) = [one for one in running(hub, "labkit.hub_server") if one.username() == learner]
        return [server, *server.children(recursive=True)]

    passwords = dict.fromkeys(users.names, PASSWORD)
    three_people(Place(classroom, users.home, processes, False, (ada, grace), teacher, passwords))
    what_others_reach(classroom, users)


def test_what_servers_of_users_lack_is_named(tmp_path: Path) -> None:
    (tmp_path / "solutions").mkdir()
    table = sites.Users(exchange=str(tmp_path / "none"), lab=str(tmp_path))
    *_, exchange, templates, solutions = kind.missing(sites.Site(servers=sites.Servers(kind="users", users=table)))
    assert f"exchange cannot be in {tmp_path}/none" in exchange and f"no {tmp_path}/templates" in templates
    assert f"learners would see {tmp_path}/solutions" in solutions
