"""A site's settings: `site.toml`, read and validated. Each wrong entry is reported with its file and line."""

from __future__ import annotations

import ipaddress
import re
import sys
import tomllib
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from autograder.classroom.wrong_entries import in_words, like, line_of
from labkit import catalogue
from labkit.challenges.challenge import CHALLENGES
from labkit.command_line.commands import CommandError
from labkit.text_files import UnreadableText, read_text

DEFAULT = Path("cluster/jupyterhub/site.toml")
"""The lab's own settings, below its root."""

PAGE_SERVICE = "classroom"
"""Name of the hub's service with the course's page, which all people of the course may enter."""
GPU_SERVICE = "gpus"
"""Name of the hub's service with the ledger of GPUs."""
SERVICES = (PAGE_SERVICE, "culler", GPU_SERVICE, "grading", "limits")
"""Names of the hub's services besides the formgrader's, which has the course's name."""

_USER = re.compile(r"[a-z][a-z0-9._-]{0,31}")
"""Names that are safe as a folder, as a line of /etc/passwd and in an address."""


_LEAST_MEMORY_GIB = 0.5
_WITHOUT_LEDGER = {
    "sandbox": "A sandbox has neither network nor devices: other kinds of servers can reach GPUs",
    "users": "Servers of this machine's users have its GPUs, which nothing here counts: leave [gpus] out",
    "docker": "A container is no user of a cluster, by whose name Slurm could count: leave [gpus] out",
}
"""Advice by kind of servers, where no ledger of GPUs can be kept."""


def is_user_name(name: str) -> bool:
    """Return whether `name` can be a user of the classroom."""
    return _USER.fullmatch(name) is not None


def why_no_user(name: str) -> str:
    """Return why `name` cannot be a user of the classroom, and which name to write instead."""
    # an address is no name: it is one of several of the same person, and '@' has a meaning in addresses of pages
    kind = "is an e-mail address, not a name" if "@" in name else "cannot be a user"
    plain = unicodedata.normalize("NFKD", name.partition("@")[0]).encode("ascii", "ignore").decode().lower()
    offer = re.sub(r"[^a-z0-9._-]+", ".", plain).strip(".")[:32]
    rules = "up to 32 lower-case letters, digits, '.', '_' and '-', beginning with a letter"
    return f"{name!r} {kind}: write {offer if is_user_name(offer) else 'a name such as ada'} ({rules})"


def _user_name(name: str) -> str:
    if not is_user_name(name):
        raise ValueError(why_no_user(name))
    return name


def _address(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"{text!r} is not an address such as http://127.0.0.1:8000")
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise ValueError(f"{text!r}: the port must be from 1 to 65535")
    return text.rstrip("/")


def _hub_address(text: str) -> str:
    if urlsplit(_address(text)).path.strip("/"):
        raise ValueError(f"{text!r}: the hub has a host name and a port of its own, without a path")
    return text.rstrip("/")


def _subdomain_host(text: str) -> str:
    if not text:
        return text
    parts = urlsplit(_address(text))
    try:
        ipaddress.ip_address(str(parts.hostname))
    except ValueError:
        if "." in str(parts.hostname) and not parts.path.strip("/"):
            return text.rstrip("/")
    raise ValueError(f"{text!r} has no names below it: write one such as https://hub.example.edu:8443")


def _memory_gib(gib: float) -> float:
    if gib != 0 and gib < _LEAST_MEMORY_GIB:
        raise ValueError(f"a server with one kernel needs {_LEAST_MEMORY_GIB:g} GiB; 0: no limit")
    return gib


UserName = Annotated[str, AfterValidator(_user_name)]
Address = Annotated[str, AfterValidator(_address)]
HubAddress = Annotated[str, AfterValidator(_hub_address)]
SubdomainHost = Annotated[str, AfterValidator(_subdomain_host)]


class _Table(BaseModel):
    """A table of the file. Unknown entries are errors: they are misspelt, and would otherwise be ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Hub(_Table):
    """The hub's address, certificate and folder of files."""

    address: HubAddress = "http://127.0.0.1:8000"
    subdomain_host: SubdomainHost = ""
    folder: str = "classroom"
    certificate: str = ""
    key: str = ""

    @property
    def public(self) -> str:
        """The address that people open."""
        return self.subdomain_host or self.address


class Course(_Table):
    """The course and its people. Learners are also read from `learners.txt` of the classroom's folder."""

    name: Annotated[str, like(r"[a-z0-9][a-z0-9_-]{0,63}", "a name: lower-case letters, digits, '_' and '-'")] = (
        "distributed-training"
    )
    instructors: Annotated[list[UserName], Field(min_length=1)] = ["instructor"]
    learners: list[UserName] = []


Text = Annotated[str, Field(min_length=1)]
Folder = Annotated[str, like(r"/[^\s'\"]+", "an absolute path without spaces and quotes")]
File = Annotated[str, like(r"/[^\n]+", "an absolute path")]
Partition = Annotated[str, like(r"[\w.-]*", "a name of Slurm's: letters, digits, '.', '_' and '-'")]


class OpenID(_Table):
    """An OpenID Connect provider, and its claim with the user name."""

    issuer: Address
    client_id: Text
    secret_file: Text
    title: Text = "your account"
    scopes: list[Text] = ["profile", "email"]
    claim: Text = "preferred_username"
    domain: str = ""


class LTI(_Table):
    """A learning platform that speaks LTI 1.3, and the claim of its launches with the user name."""

    issuer: Address
    client_id: Text
    authorize_url: Address
    keys_url: Address
    token_url: Address | None = None
    claim: Text = "email"
    domain: str = ""


class Login(_Table):
    """The way in which people log in."""

    kind: Literal["first-use", "pam", "openid", "lti"] = "first-use"
    shortest_password: Annotated[int, Field(ge=4, le=100)] = 8
    pam_service: Annotated[str, like(r"[a-z][a-z0-9_-]*", "the name of a file in /etc/pam.d")] = "login"
    openid: OpenID | None = None
    lti: LTI | None = None


class Slurm(_Table):
    """Servers as jobs of a Slurm cluster, under the learners' own accounts."""

    exchange: Folder
    python: File = sys.executable
    prologue: str = ""
    partition: Partition = ""
    time: Annotated[str, like(r"(\d+-)?\d+(:\d\d){0,2}", "a time such as 08:00:00, 1-00:00:00, or 90 minutes")] = (
        "08:00:00"
    )
    memory: Annotated[str, like(r"\d+[KMGT]?", "an amount of memory such as 4G or 1500M")] = "4G"
    cpus: Annotated[int, Field(ge=1)] = 2
    gres: Annotated[str, like(r"[\w.:,-]*", "a list of Slurm's resources such as gpu:1")] = ""
    hub_address: Address | None = None


class Users(_Table):
    """Servers on this machine, under the learners' own accounts."""

    exchange: Folder
    lab: File
    python: File = sys.executable


class Docker(_Table):
    """Containers of this machine's Docker."""

    image: Text
    hub_address: Address
    network: Text = "lab"
    cpus: Annotated[float, Field(gt=0)] = 4.0


class Kubernetes(_Table):
    """Pods of a cluster, and the claim with the classroom's folder."""

    image: Text
    hub_address: Address
    classroom_claim: Text
    classroom_path: Annotated[str, like(r"([^/].*)?", "a path below the claim, without / in front")] = ""
    namespace: Text = "hub"
    service_account: str = ""
    storage_class: str = ""
    cpus: Annotated[float, Field(gt=0)] = 4.0


class Servers(_Table):
    """Kind of learners' servers, the limits of each, and when idle ones are stopped."""

    kind: Literal["sandbox", "docker", "kubernetes", "slurm", "users"] = "sandbox"
    idle_minutes: Annotated[int, Field(ge=0)] = 120
    idle_ranks_minutes: Annotated[int, Field(ge=0)] = 30
    start_seconds: Annotated[int, Field(ge=10, le=3600)] = 120
    processes: Annotated[int, Field(ge=64)] = 1024
    memory_gib: Annotated[float, AfterValidator(_memory_gib)] = 4.0
    disk_gib: Annotated[float, Field(ge=0)] = 10.0
    docker: Docker | None = None
    kubernetes: Kubernetes | None = None
    slurm: Slurm | None = None
    users: Users | None = None

    @property
    def are_local_processes(self) -> bool:
        """Whether servers are processes of this machine, whose memory and disk the hub looks at."""
        return self.kind in ("sandbox", "users")

    @property
    def shared_exchange(self) -> Path | None:
        """nbgrader's exchange where learners are users of a system, and share it by its permissions; else None."""
        table = {"slurm": self.slurm, "users": self.users}.get(self.kind)
        return None if table is None else Path(table.exchange)


class Grading(_Table):
    """Assignments that are graded as they are submitted, on how many cores, tries in a day (UTC), what counts and what
    is shown."""

    on_submit: list[str] = []
    workers: Annotated[int, Field(ge=1)] = 1
    tries_per_day: Annotated[int, Field(ge=1)] = 5
    counts: Literal["last", "best"] = "last"
    feedback: Literal["details", "titles", "marks"] = "details"


class Challenges(_Table):
    """Challenges that take entries, and challenges whose traces all learners may see."""

    open: list[str] = []
    traces: list[str] = []


class GpuPods(_Table):
    """Pods in which cells borrow GPUs, and the address of the hub for cells. Learners choose only how many GPUs."""

    image: Text
    hub_address: HubAddress
    namespace: Annotated[str, like(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", "the name of a namespace")] = "lab"
    cpus: Annotated[str, like(r"(\d+(\.\d+)?|\d+m)?", "a number of cores such as 8 or 500m")] = ""
    memory: Annotated[str, like(r"(\d+([KMGT]i?)?)?", "an amount of memory such as 64Gi")] = ""
    pod_template: Annotated[str, like(r"(/[^\n]+)?", "an absolute path")] = ""


class Gpus(_Table):
    """GPUs that cells borrow: the preset of `%cluster`, and how much each learner may use."""

    cluster: Literal["slurm", "kubernetes"] = "slurm"
    partition: Partition = ""
    nnodes: Annotated[int, Field(ge=1)] = 1
    gpus_per_node: Annotated[int, Field(ge=1)] = 1
    seconds_per_day: Annotated[int, Field(ge=1)] = 3600
    longest_minutes: Annotated[int, Field(ge=1)] = 30
    most_ranks: Annotated[int, Field(ge=1)] = 4
    kubernetes: GpuPods | None = None


class Site(_Table):
    """All settings of a site."""

    hub: Hub = Hub()
    course: Course = Course()
    login: Login = Login()
    servers: Servers = Servers()
    grading: Grading = Grading()
    challenges: Challenges = Challenges()
    gpus: Gpus | None = None

    @property
    def folder(self) -> Path:
        """Folder of the classroom; a relative one is below the lab's root."""
        return (catalogue.root() / self.hub.folder).resolve()


def port_of(address: str) -> int:
    """Return the port of an address, also of one that leaves it out."""
    parts = urlsplit(address)
    return parts.port or (443 if parts.scheme == "https" else 80)


def load(path: Path) -> Site:
    """Read `path`. Raises `CommandError`, with one line for each wrong entry."""
    try:
        text = read_text(path)
        data = tomllib.loads(text)
    except OSError as problem:
        raise CommandError(f"the site's settings cannot be read: {path}: {problem.strerror}") from None
    except (tomllib.TOMLDecodeError, UnreadableText) as problem:
        raise CommandError(f"{path} is not valid TOML: {problem}") from None
    try:
        site = Site.model_validate(data)
    except ValidationError as problem:
        wrong = [_explain(path, text, error) for error in problem.errors()]
        raise CommandError("\n".join(["the site's settings are wrong:", *wrong])) from None
    if problems := _contradictions(site):
        wrong = [f"  {path}:{line_of(text, place)}: {problem}" for place, problem in problems]
        raise CommandError("\n".join(["the site's settings are wrong:", *wrong]))
    return site


def _contradictions(site: Site) -> list[tuple[tuple[str, ...], str]]:
    """Return entries that are wrong only beside others: the entry, and why."""
    problems: list[tuple[tuple[str, ...], str]] = []
    if both := sorted(set(site.course.instructors) & set(site.course.learners)):
        problems.append((("course", "learners"), f"{', '.join(both)}: an instructor cannot be a learner, too"))
    phases = {exercise.phase for exercise in catalogue.all_exercises()}
    if unknown := sorted(set(site.grading.on_submit) - phases):
        known = ", ".join(sorted(phases))
        problems.append((("grading", "on_submit"), f"there is no assignment {', '.join(unknown)}; known: {known}"))
    problems += _about_challenges(site.challenges)
    problems += _about_servers(site)
    problems += _about_gpus(site)
    if site.course.name in SERVICES:
        problems.append(
            (("course", "name"), f"{site.course.name!r} is the name of a service of the hub: choose another one")
        )
    address, public = urlsplit(site.hub.address), urlsplit(site.hub.public)
    if site.login.kind in ("openid", "lti") and getattr(site.login, site.login.kind) is None:
        problems.append((("login", "kind"), f"the table [login.{site.login.kind}] is missing"))
    elif site.login.kind == "lti" and public.scheme != "https" and public.hostname not in ("127.0.0.1", "localhost"):
        problems.append((("hub", "address"), "a learning platform opens the hub only by https://"))
    if bool(site.hub.certificate) != bool(site.hub.key):
        problems.append((("hub", "certificate"), "certificate and key are given together, or not at all"))
    elif site.hub.certificate and address.scheme != "https":
        problems.append((("hub", "address"), "with a certificate the address begins with https://"))
    elif not site.hub.certificate and address.scheme == "https":
        problems.append((("hub", "address"), "https needs a certificate and a key"))
    elif site.hub.certificate and public.scheme != "https":
        problems.append((("hub", "subdomain_host"), "with a certificate it begins with https://"))
    return problems


def _about_servers(site: Site) -> Iterator[tuple[tuple[str, ...], str]]:
    servers = site.servers
    if servers.kind != "sandbox" and getattr(servers, servers.kind) is None:
        yield ("servers", "kind"), f"the table [servers.{servers.kind}] is missing"
    if servers.kind == "kubernetes" and not servers.disk_gib:
        yield ("servers", "disk_gib"), "a home on Kubernetes is a volume: it needs a size"
    for kind, table in (("docker", servers.docker), ("kubernetes", servers.kubernetes)):
        if table is not None and urlsplit(table.hub_address).scheme != "http":
            yield ("servers", kind, "hub_address"), "servers reach the hub's API by http://, inside of their network"
    table = servers.kubernetes
    if servers.kind == "kubernetes" and table is not None and port_of(table.hub_address) == port_of(site.hub.address):
        yield (
            ("servers", "kubernetes", "hub_address"),
            "it needs another port than [hub] address, where browsers come in",
        )
    if servers.kind == "slurm":
        yield from _about_slurm(site)
    if servers.kind in ("slurm", "users") and site.login.kind == "first-use":
        system = "the cluster" if servers.kind == "slurm" else "this machine"
        yield (
            ("login", "kind"),
            f"servers are those of users of {system}, so the login must prove who that is: pam, openid or lti",
        )


def _about_slurm(site: Site) -> Iterator[tuple[tuple[str, ...], str]]:
    slurm = site.servers.slurm
    if slurm is not None and slurm.hub_address is None and urlsplit(site.hub.public).hostname == "0.0.0.0":
        yield ("servers", "slurm"), "hub_address is missing: nodes cannot reach the hub at 0.0.0.0"


def _about_gpus(site: Site) -> Iterator[tuple[tuple[str, ...], str]]:
    if site.gpus is None:
        return
    kind, cluster = site.servers.kind, site.gpus.cluster
    if kind in _WITHOUT_LEDGER:
        yield ("gpus",), f"the ledger counts what servers of kind slurm or kubernetes use. {_WITHOUT_LEDGER[kind]}"
    elif kind != cluster:
        yield ("gpus",), f'cells of servers on {kind} borrow GPUs there: write cluster = "{kind}"'
    elif (cluster == "kubernetes") != (site.gpus.kubernetes is not None):
        have = "is missing" if cluster == "kubernetes" else 'is for cluster = "kubernetes"'
        yield ("gpus", "cluster"), f"the table [gpus.kubernetes] {have}"
    elif site.gpus.kubernetes is not None and site.servers.kubernetes is not None:
        yield from _about_gpu_pods(site, site.gpus.kubernetes, site.servers.kubernetes)
    if site.gpus.nnodes * site.gpus.gpus_per_node > site.gpus.most_ranks:
        yield ("gpus", "most_ranks"), f"`%cluster {cluster}` alone would ask for more ranks: nnodes times gpus_per_node"


def _about_gpu_pods(site: Site, pods: GpuPods, servers: Kubernetes) -> Iterator[tuple[tuple[str, ...], str]]:
    place = ("gpus", "kubernetes", "hub_address")
    if urlsplit(pods.hub_address).scheme != "http":
        yield place, "cells reach the hub by http://, inside of the cluster's network"
    if port_of(pods.hub_address) in (port_of(servers.hub_address), port_of(site.hub.address)):
        yield place, "it needs a port of its own, beside those of [hub] and [servers.kubernetes]"
    if servers.service_account:
        yield (
            ("servers", "kubernetes", "service_account"),
            "with [gpus] leave it out: who has an account on the cluster goes past the ledger",
        )


def _about_challenges(challenges: Challenges) -> Iterator[tuple[tuple[str, ...], str]]:
    known = [challenge.name for challenge in CHALLENGES]
    for entry, names in (("open", challenges.open), ("traces", challenges.traces)):
        if unknown := sorted(set(names) - set(known)):
            yield ("challenges", entry), f"there is no challenge {', '.join(unknown)}; known: {', '.join(known)}"
    if both := sorted(set(challenges.open) & set(challenges.traces)):
        yield (
            ("challenges", "traces"),
            f"{', '.join(both)}: traces show the instances on which entries are judged; take it out of `open` first",
        )


def _explain(path: Path, text: str, error: ErrorDetails) -> str:
    place = error["loc"]
    name = ".".join(str(part) for part in place)
    message = in_words(error)
    if error["type"] == "extra_forbidden":
        known = _known(place)
        message = f"there is no such entry; known here: {', '.join(known)}" if known else "there is no such entry"
    return f"  {path}:{line_of(text, place)}: {name}: {message}"


def _known(place: tuple[int | str, ...]) -> list[str]:
    """Return the entries of the table in which the unknown entry is."""
    table: type[BaseModel] = Site
    for part in place[:-1]:
        field = table.model_fields.get(str(part))
        if field is None or not isinstance(field.annotation, type) or not issubclass(field.annotation, BaseModel):
            return []
        table = field.annotation
    return sorted(table.model_fields)
