"""The folders of a classroom: permanent ones below its own folder, those that end with the hub below `running`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from autograder.classroom.site import Site, is_user_name, why_no_user
from autograder.sandbox import view
from labkit.command_line.commands import CommandError
from labkit.text_files import UnreadableText, read_text

FIRST_UIDS = (range(1_200_000, 1_300_000), range(60_000, 65_000))
"""User ids of learners where root starts the hub: the first range that exists here. The grader has others."""


@dataclass(frozen=True)
class Folders:
    """The folders of one classroom. `root` is kept; `running` is short, since paths of sockets are limited."""

    root: Path
    running: Path
    course_name: str
    shares_exchange: bool = False
    """Whether learners are system users, who share one exchange: see `share_exchange`."""

    @classmethod
    def of(cls, site: Site, running: Path) -> Folders:
        """Return the folders of a site's classroom."""
        return cls(site.folder, running, site.course.name, site.servers.shared_exchange is not None)

    @property
    def course(self) -> Path:
        """nbgrader's course: releases, submissions, gradebook."""
        return self.root / "course"

    @property
    def hub(self) -> Path:
        """Database, passwords and logs of the hub."""
        return self.root / "hub"

    @property
    def gpu_ledger(self) -> Path:
        """Record of GPU use, which only the hub may read."""
        return self.hub / "gpus.sqlite"

    @property
    def challenges(self) -> Path:
        """Judged entries of challenges, with their traces."""
        return self.root / "challenges"

    @property
    def graded(self) -> Path:
        """Records of the grading queue."""
        return self.root / "graded"

    @property
    def exchange(self) -> Path:
        """nbgrader's exchange. Learners see parts of it: `learner_exchange`."""
        return self.root / "exchange"

    @property
    def hub_socket(self) -> Path:
        """The hub's API. The folder of this file is visible in sandboxes, since the file is replaced at each start."""
        return self.running / "api" / "hub.sock"

    @property
    def homes(self) -> Path:
        return self.root / "homes"

    def home(self, learner: str) -> Path:
        return self.homes / learner

    def in_exchange(self, part: str, learner: str = "") -> Path:
        """A folder of the course in the exchange: `outbound` of all, `inbound` or `feedback` of one learner."""
        return self.exchange / self.course_name / part / learner

    def feedback(self, learner: str) -> Path:
        """Folder of a learner's feedback in the exchange. A shared exchange has all pages in one folder."""
        return self.in_exchange("feedback", "" if self.shares_exchange else learner)

    def socket(self, user: str) -> Path:
        """Socket of the server of `user`, for the proxy. The folder is the hub's: no learner can replace the socket."""
        return self.running / "servers" / f"{user}.sock"

    @property
    def zygote_socket(self) -> Path:
        """Socket at which the hub's zygote takes requests. No sandbox sees it."""
        return self.running / "zygote.sock"

    def notices(self, learner: str) -> Path:
        """Folder of the hub's messages to a learner. Visible in the learner's sandbox, read-only."""
        return self.running / "notices" / learner

    def prepare(self) -> None:
        """Make the folders that do not exist yet, closed to other users of this machine."""
        self.root.mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o700)
        for folder in (self.course, self.hub, self.homes, self.exchange, self.hub_socket.parent):
            folder.mkdir(parents=True, exist_ok=True)
        for folder in (self.running / "servers", self.notices("")):  # learners' names are nobody else's business
            folder.mkdir(exist_ok=True)
            folder.chmod(0o711)
        for part in ("outbound", "inbound", "feedback"):
            self.in_exchange(part).mkdir(parents=True, exist_ok=True)

    def share_exchange(self, shared: Path) -> None:
        """Link `exchange` to a folder that all learners share, with nbgrader's permissions for several users.

        Learners can list what is released, add submissions, and read feedback whose names they know. Raises
        `CommandError` if there is another exchange already.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        if not self.exchange.is_symlink():
            try:
                self.exchange.symlink_to(shared)
            except FileExistsError:
                raise CommandError(
                    f"{self.exchange} is the exchange of another kind of servers: move it away, or what is in it to "
                    f"{shared}"
                ) from None
        if self.exchange.resolve() != shared.resolve():
            raise CommandError(f"{self.exchange} leads to {self.exchange.resolve()}, not to {shared}: remove the link")
        shared.chmod(0o1777)  # nbgrader refuses a root that its user cannot write to
        for part, mode in (("", 0o755), ("outbound", 0o755), ("inbound", 0o733), ("feedback", 0o711)):
            folder = self.in_exchange(part)
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(mode)

    def prepare_learner(self, learner: str) -> int | None:
        """Make a learner's own folders. Returns the learner's user id where root starts the hub, else None."""
        own = [self.home(learner), self.in_exchange("inbound", learner)]
        users = own_uids()
        uid = None if users is None else self._uid(learner, users)
        for folder in own:
            folder.mkdir(exist_ok=True)
            folder.chmod(0o700)
            if uid is not None and folder.stat().st_uid != uid:
                give(folder, uid)
        self.in_exchange("feedback", learner).mkdir(exist_ok=True)
        self.notices(learner).mkdir(parents=True, exist_ok=True)
        return uid

    def _uid(self, learner: str, users: range) -> int:
        home = self.home(learner)
        if home.exists() and home.stat().st_uid in users:
            return home.stat().st_uid
        taken = {folder.stat().st_uid for folder in home.parent.iterdir()}
        return next(uid for uid in users if uid not in taken)


def own_uids() -> range | None:
    """Return user ids for learners, one each; None where this process cannot switch to other users."""
    if view.own_uids() is None:
        return None
    known = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    for users in FIRST_UIDS:
        if any(first <= users[0] and users[-1] < first + count for first, _, count in known):
            return users
    return None


def give(folder: Path, uid: int) -> None:
    """Give a folder and all in it to a user. Links are not followed."""
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            os.chown(os.path.join(parent, name), uid, uid, follow_symlinks=False)
    os.chown(folder, uid, uid)


def learners(site: Site, root: Path) -> list[str]:
    """Return the names of all learners: those of the settings, then those of `learners.txt`, each once.

    Raises `CommandError`, with each line that cannot be a name and what to write there.
    """
    path = root / "learners.txt"
    names, wrong = list(site.course.learners), []
    for number, line in enumerate(_list(path).split("\n"), start=1):
        name = line.split("#")[0].strip()
        if not name:
            continue
        if not is_user_name(name):
            wrong.append(f"  {path}:{number}: {why_no_user(name)}")
        elif name in site.course.instructors:
            wrong.append(f"  {path}:{number}: {name!r} is an instructor: take the name out of one of the lists")
        names.append(name)
    if wrong:
        raise CommandError("\n".join(["names of learners are wrong:", *wrong]))
    return list(dict.fromkeys(names))


def _list(path: Path) -> str:
    """Return the text of a list; empty if there is none. Raises `CommandError`."""
    try:
        return read_text(path) if path.is_file() else ""
    except (OSError, UnreadableText) as problem:
        raise CommandError(f"{path} cannot be read: {problem}") from None


def add_learners(root: Path, names: Iterable[str]) -> None:
    """Append names to `learners.txt`."""
    root.mkdir(parents=True, exist_ok=True)
    path = root / "learners.txt"
    text = _list(path)
    path.write_text(text + ("" if not text or text.endswith("\n") else "\n") + "".join(f"{name}\n" for name in names))
