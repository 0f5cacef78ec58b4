"""`labkit hub`: JupyterHub with the course, on this machine, until Ctrl-C."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console
from rich.markup import escape

from autograder.classroom import configured
from autograder.classroom import site as sites
from autograder.classroom.folders import Folders, add_learners, learners
from autograder.classroom.logins import first_use
from autograder.classroom.requirements import missing, missing_for_people
from autograder.classroom.site import Site
from autograder.classroom.starting import StartLog, wait_until_up
from labkit import catalogue
from labkit.command_line.commands import CommandError
from labkit.linux import prctl

CONFIGURATION = Path("cluster/jupyterhub/jupyterhub_config.py")


def main(path: Path, count: int, demo: bool) -> int:
    """Run the hub until it is stopped; return its exit status. Raises `CommandError`.

    path: the site's settings. count: number of learners `learner1`, `learner2`, ... who may log in, too.
    """
    site = sites.load(path)
    shared = site.servers.shared_exchange
    if demo and shared is not None:
        raise CommandError("--demo makes learners of its own, not users of a system: use servers of kind sandbox")
    console = Console(highlight=False)
    if problems := missing(site):
        raise CommandError("\n".join(["the hub cannot run here:", *(f"  {problem}" for problem in problems)]))
    for problem in missing_for_people(site):
        console.print(f"missing: {escape(problem)}", soft_wrap=True)
    with _only_hub(site.folder), _running_folder() as running:
        folders = Folders.of(site, running)
        if site.servers.kind == "users":  # their servers reach the hub's socket and notices in it
            running.chmod(0o711)
        if shared is not None:
            folders.share_exchange(shared)
        folders.prepare()
        known = learners(site, folders.root)
        new = [name for name in (f"learner{number}" for number in range(1, count + 1)) if name not in known]
        add_learners(folders.root, new)
        people = [*known, *new]
        if shared is None:  # else they have homes
            for name in people:
                folders.prepare_learner(name)
        configured.configure_instructors(folders, site)
        given = set()
        if site.login.kind == "first-use":

            def show(name: str, password: str) -> None:
                console.print(f"  instructor {name}: password {password} (shown once)", soft_wrap=True)
                sys.stdout.flush()

            given = first_use.give_passwords(folders.hub / "passwords", site.course.instructors, show)
        if demo:
            from autograder.classroom.demo import fill
            from autograder.gradebook_lock import GradebookLocked

            try:
                fill(console, folders, people)
            except GradebookLocked as problem:
                raise CommandError(str(problem)) from None
        with _hub(path, folders, site) as hub:
            _announce(console, site, folders, people, given)
            return _wait(hub)


def forget_password(path: Path, name: str) -> int:
    """Let a learner choose a new password, or give an instructor one; return the exit status. Raises `CommandError`."""
    site = sites.load(path)
    if site.login.kind != "first-use":
        raise CommandError(f"the hub keeps no passwords: people log in by {site.login.kind}")
    passwords = site.folder / "hub" / "passwords"
    if name not in (*site.course.instructors, *learners(site, site.folder)) or not passwords.parent.is_dir():
        raise CommandError(f"nobody of the course {site.course.name} is called {name!r}")
    if name in site.course.instructors:
        first_use.renew_password(passwords, name, _show_new_password)
    else:
        first_use.forget(passwords, name)
        print(f"the next password that {name} enters is theirs")
    return 0


def _show_new_password(name: str, password: str) -> None:
    print(f"the new password of {name}: {password}", flush=True)


@contextlib.contextmanager
def _only_hub(folder: Path) -> Iterator[None]:
    """Hold the classroom's lock, which ends with this process. Raises `CommandError` if another hub has it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "hub.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise CommandError(f"the hub of {folder} is running already, process {lock.read().strip()}") from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


@contextlib.contextmanager
def _running_folder() -> Iterator[Path]:
    """A folder for sockets, closed to other users, deleted at the end.

    Its path is short and has no capitals, as JupyterHub's addresses.
    """
    running = Path(tempfile.mkdtemp(prefix="labkit-hub-", dir="/tmp"))
    try:
        yield running
    finally:
        shutil.rmtree(running, ignore_errors=True)


@contextlib.contextmanager
def _hub(site_file: Path, folders: Folders, site: Site) -> Iterator[subprocess.Popen[bytes]]:
    """JupyterHub, once it answers; stopped at the end. Raises `CommandError` if it does not start."""
    environment = {**os.environ, configured.SITE: str(site_file), configured.RUNNING: str(folders.running)}
    command = [sys.executable, "-P", "-m", "jupyterhub", "--config", str(catalogue.root() / CONFIGURATION)]
    parent = os.getpid()
    start_log = StartLog(folders.hub / "hub.log")
    with start_log.path.open("ab") as log:
        hub = subprocess.Popen(
            command,
            env=environment,
            cwd=folders.hub,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            process_group=0,  # Ctrl-C is handled here
            preexec_fn=lambda: _as_a_child(parent),
        )
    try:
        wait_until_up(hub, lambda: _is_up(site, folders), start_log, site.servers.start_seconds)
        yield hub
    finally:
        with contextlib.suppress(ProcessLookupError):
            hub.terminate()
        try:
            hub.wait(60)
        except subprocess.TimeoutExpired:
            hub.kill()
            hub.wait()


def _as_a_child(parent: int) -> None:
    # a shell's background jobs ignore SIGINT, with which JupyterHub ends its services
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    prctl.die_with_parent(parent, signal.SIGTERM)


def _is_up(site: Site, folders: Folders) -> bool:
    # the socket is made after the proxy, which would log each earlier attempt as an error
    return (site.servers.kind != "sandbox" or folders.hub_socket.exists()) and _answers(site)


def _answers(site: Site) -> bool:
    """Return whether the hub answers behind its proxy, whatever name its certificate has."""
    address = urlsplit(site.hub.address)
    host = "127.0.0.1" if address.hostname == "0.0.0.0" else str(address.hostname)
    connection: http.client.HTTPConnection
    if address.scheme == "https":
        context = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection(host, address.port, timeout=5, context=context)
    else:
        connection = http.client.HTTPConnection(host, address.port, timeout=5)
    try:
        connection.request("GET", "/hub/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _announce(console: Console, site: Site, folders: Folders, people: Sequence[str], given: Set[str]) -> None:
    """Print the address and who can log in."""
    address = site.hub.public.replace("0.0.0.0", socket.gethostname())
    console.print(f"JupyterHub is at [bold]{escape(address)}[/bold], with the course {site.course.name}")
    if not people:
        console.print(f"  no learners yet: write their names to {folders.root / 'learners.txt'}, or use --learners 3")
    if site.login.kind == "first-use":
        _announce_passwords(console, site, folders, people, given)
    else:
        console.print(f"  instructors: {', '.join(site.course.instructors)}", soft_wrap=True)
        console.print(f"  learners: {', '.join(people)}", soft_wrap=True)
        console.print(f"  they log in by {site.login.kind}", soft_wrap=True)
    console.print(f"Everything is kept in {folders.root}. Ctrl-C stops the hub.", soft_wrap=True)
    sys.stdout.flush()


def _announce_passwords(console: Console, site: Site, folders: Folders, people: Sequence[str], given: Set[str]) -> None:
    chosen = first_use.have_passwords(folders.hub / "passwords", people)
    for name in site.course.instructors:
        password = "the password above" if name in given else "the password shown at an earlier start"
        console.print(f"  instructor {name}: logs in with {password}", soft_wrap=True)
    if waiting := [name for name in people if name not in chosen]:
        console.print(f"  choose a password at their first login: {', '.join(waiting)}", soft_wrap=True)
    if chosen:
        console.print(f"  have chosen theirs: {', '.join(name for name in people if name in chosen)}", soft_wrap=True)


def _wait(hub: subprocess.Popen[bytes]) -> int:
    """Wait for the hub's end, or for a signal that asks for it; return the exit status."""
    stopped = False

    def stop(*_: object) -> None:
        nonlocal stopped
        stopped = True
        hub.terminate()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    status = hub.wait()
    if stopped:
        print("the hub is stopped", flush=True)
        return 0
    raise CommandError(f"JupyterHub has ended with status {status}; its log is hub/hub.log of the classroom's folder")
