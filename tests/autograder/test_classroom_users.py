"""A classroom whose servers are those of users of this machine, on which root has started the hub."""

from __future__ import annotations

import os
import pwd
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from classroom_story import Place, running, three_people
from shared_exchange import what_others_reach
from small_classroom import ROOT, Classroom, Hub, small_classroom
from unix_users import PASSWORD, Users, lines_that_open, unix_users
from waiting import wait_until

from autograder.classroom import site as sites
from autograder.classroom.folders import Folders
from autograder.classroom.limits import notices
from autograder.classroom.limits.memory import MemoryLimit
from autograder.classroom.limits.running import own_folders, servers
from autograder.classroom.limits.service import Looks
from autograder.classroom.pages.servers import running as shown
from autograder.classroom.spawners import system_users, user_access
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
    hidden, own = shlex.quote(str(ROOT / "autograder")), users.folder / "autograder"
    close = f"cp -r {hidden} {own}\nchmod 700 {own}\nmount --bind {own} {hidden}"
    lines = f'set -e\n{lines_that_open(users.folder / "opened")}\n{close}\nexec "$@"'
    classroom.prefix = ("unshare", "--mount", "bash", "-c", lines, "hub")
    return classroom


@pytest.mark.exhaustive
def test_three_people_at_once_as_users_of_this_machine(tmp_path: Path, users: Users) -> None:
    classroom = with_users(small_classroom(tmp_path), users)
    ada, grace, teacher = users.names

    def processes(hub: Hub, learner: str) -> list[psutil.Process]:
        (server,) = [one for one in running(hub, "labkit.hub.server") if one.username() == learner]
        return [server, *server.children(recursive=True)]

    passwords = dict.fromkeys(users.names, PASSWORD)
    three_people(Place(classroom, users.home, processes, False, (ada, grace), teacher, passwords))
    what_others_reach(classroom, users)


def test_what_servers_of_users_lack_is_named(tmp_path: Path) -> None:
    (tmp_path / "solutions").mkdir()
    table = sites.Users(exchange=str(tmp_path / "none"), lab=str(tmp_path), python=str(tmp_path / "python"))
    site = sites.Site(servers=sites.Servers(kind="users", users=table), hub=sites.Hub(folder=str(tmp_path)))
    found = "\n".join(kind.missing(site))
    assert f"exchange cannot be in {tmp_path}/none" in found and f"no {tmp_path}/templates" in found
    assert f"learners would see {tmp_path}/solutions" in found
    assert ("only root can start servers" in found) == (os.geteuid() != 0)
    assert f"{tmp_path}/python is not there" in found


def test_what_a_user_cannot_reach_is_named_with_the_folder_that_is_closed(users: Users) -> None:
    ada, grace, teacher = users.names
    opened, closed = users.folder / "python", users.folder / "closed/lab"
    opened.write_text("#!/bin/sh\necho No module named jupyterhub >&2; exit 1\n")
    opened.chmod(0o755)
    closed.mkdir(parents=True)
    assert [*user_access.missing([ada], opened, [])] == [
        f"{opened} cannot run a server as {ada}: No module named jupyterhub; install labkit[lab] and jupyterhub with it"
    ]
    opened.write_text(f"#!/bin/sh\necho {users.folder}/autograder\n")
    (problem,) = user_access.exposed([ada], opened)
    assert f"{ada} can read the hidden checks of exercises, in {users.folder}/autograder: chmod go-rwx" in problem
    opened.write_text("#!/bin/sh\n")
    closed.parent.chmod(0o700)
    shutil.rmtree(users.home(grace))
    both, homeless = user_access.missing([ada, grace], opened, [closed])
    link = users.folder / "link"
    link.symlink_to(closed)
    (linked,) = user_access.missing([ada], opened, [link])
    assert f"cannot read {link}, since {closed.parent} is closed" in linked
    assert both.startswith(f"{ada}, {grace}: cannot read {closed}, since {closed.parent} is closed to them: chmod o+rx")
    assert homeless == f"{grace}: cannot write to their homes, in {users.folder}/homes: make them, owned by their users"
    (unknown,) = system_users.unknown(["nobody-of-the-course", teacher])
    assert "no user of this system is called nobody-of-the-course (" in unknown


MIB = 1 << 20
WORK = """
    head -c 20M /dev/zero >too_large
    (setsid sh -c 'held=$(head -c 100M /dev/zero | tr "\\0" x); echo $$ >large; while sleep 1; do :; done' &)
    until [ -s large ]; do sleep 0.01; done
    head -c 5M /dev/zero >data
    (setsid sh -c 'until [ -e more ]; do sleep 0.01; done; head -c 5M /dev/zero >rest; echo >wrote; sleep 600' &)
    echo >ready
    exec sleep 600
"""
"""A server that has started programs of its own, which have left it."""


def test_memory_and_disk_of_a_user_are_limited_wherever_a_program_was_started(tmp_path: Path) -> None:
    folders = Folders(tmp_path / "classroom", tmp_path / "running", "course", shares_exchange=True)
    folders.running.mkdir()
    folders.prepare()
    with unix_users("ada", "grace") as users:
        ada, grace = users.names
        home = users.home(ada)
        for folder, owner in (("one", ada), ("anothers", grace)):
            (folders.in_exchange("inbound") / f"{ada}+{folder}").mkdir()
            os.chown(folders.in_exchange("inbound") / f"{ada}+{folder}", pwd.getpwnam(owner).pw_uid, -1)
        spawner = kind.UserSpawner()
        spawner.processes, spawner.file_bytes = 300, 10 * MIB
        process = subprocess.Popen(["sh", "-c", WORK], preexec_fn=spawner.make_preexec_fn(ada), start_new_session=True)
        try:
            wait_until((home / "ready").exists)
            (server,) = servers(folders, os.getpid())
            assert (server.learner, server.first) == (ada, process.pid)
            assert re.search(r"Max processes +300 +300 ", Path(f"/proc/{process.pid}/limits").read_text())
            assert (home / "too_large").stat().st_size == 10 * MIB
            assert {path.name for path in own_folders(folders, server)} == {home.name, f"{ada}+one"}

            large, said = int((home / "large").read_text()), list[str]()
            assert large in server.started_by_learner() and psutil.Process(large).username() == ada
            (row,) = shown(folders, os.getpid())
            assert row.learner == ada and row.megabytes > 100
            MemoryLimit(1000 * MIB, None).look(server, said.append)
            assert said == []
            MemoryLimit(90 * MIB, None).look(server, said.append)
            wait_until(lambda: large not in server.started_by_learner())
            assert len(said) == 1 and "The largest process was ended" in said[0] and process.poll() is None

            looks = Looks(folders, os.getpid(), 0, 13 * MIB)
            looks.at_disk()
            told = notices.read(folders.notices(ada))
            assert len(told.notices) == 1 and told.disk_bytes is not None and told.disk_bytes > 15 * MIB
            (home / "more").touch()
            wait_until((home / "wrote").exists)
            looks.at_disk()
            wait_until(lambda: server.started_by_learner() == [] and process.poll() is None)
            assert "Kernels, ranks and terminals were ended" in notices.read(folders.notices(ada)).notices[-1].text
            assert (folders.notices(ada) / notices.FILE).stat().st_mode & 0o777 == 0o644, "the user reads it"
        finally:
            process.kill()
            process.wait()
