"""Requirements of a site's settings on this machine, and which of them are missing."""

from __future__ import annotations

import datetime
import errno
import importlib.util
import os
import socket
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from autograder.classroom import proxy, spawners
from autograder.classroom.folders import learners
from autograder.classroom.site import Login, Site, port_of
from autograder.classroom.spawners import system_users
from labkit.command_line.commands import CommandError

_MODULES = {
    "jupyterhub": "jupyterhub",
    "firstuseauthenticator": "jupyterhub-firstuseauthenticator",
    "jupyterhub_idle_culler": "jupyterhub-idle-culler",
    "oauthenticator": "oauthenticator",
    "ltiauthenticator": "jupyterhub-ltiauthenticator",
}


def missing(site: Site) -> list[str]:
    """Return one sentence for each thing that is missing, with what to do. Installs the proxy if it is not there."""
    problems = [
        *_packages(),
        *spawners.of(site).missing(site),
        *_gpus(site),
        *_login(site.login),
        *_folder(site),
        *_addresses(site),
        *_certificate(site),
    ]
    return list(dict.fromkeys(problems))  # a cluster is asked for servers and for GPUs, and may not answer at all


def missing_for_people(site: Site) -> list[str]:
    """Return what keeps some people of the course from their servers; the hub can run all the same."""
    people = learners(site, site.folder)
    kind = spawners.of_system_users(site)
    problems: list[str] = []
    if site.login.kind == "pam":
        problems += system_users.unknown([*site.course.instructors, *people])
    elif kind is not None:
        problems += system_users.unknown(people)
    if kind is not None:
        problems += kind.missing_for(site, system_users.known(people))
    return problems


def _packages() -> Iterator[str]:
    for module, package in _MODULES.items():
        if importlib.util.find_spec(module) is None:
            yield f"the package {package} is not installed: ./lab hub installs it"
    try:
        proxy.install()
    except CommandError as problem:
        yield str(problem)


def _login(login: Login) -> Iterator[str]:
    if login.kind == "pam" and os.geteuid() != 0:
        yield "only root can check the passwords of this machine's users: start the hub as root, or change [login]"
    if login.kind == "openid" and login.openid is not None:
        from autograder.classroom.logins.openid import endpoints, secret

        for read in (endpoints, secret):
            try:
                read(login.openid)
            except CommandError as problem:
                yield str(problem)


def _gpus(site: Site) -> Iterator[str]:
    has_package = importlib.util.find_spec("kubernetes") is not None  # else the kind of servers reports it
    if site.gpus is not None and site.gpus.kubernetes is not None and has_package:
        from autograder.classroom.gpus.kubernetes import rights  # imports torch: seconds in every `labkit hub`

        yield from rights.missing(site.gpus.kubernetes)


def _folder(site: Site) -> Iterator[str]:
    another = "[hub] folder names another one"
    # the folder itself, or the one in which it will be made; one that cannot be examined counts as missing
    existing = next(folder for folder in (site.folder, *site.folder.parents) if os.path.exists(folder))
    if not existing.is_dir():
        yield f"the classroom cannot be in {site.folder}, since {existing} is not a folder; {another}"
        return
    try:
        tempfile.TemporaryFile(dir=existing).close()
    except OSError as problem:
        why = f"{existing} cannot be written to: {problem.strerror}"
        yield f"the classroom is kept in {site.folder}, but {why}; {another}"


def _addresses(site: Site) -> Iterator[str]:
    yield from _listens(site.hub.address, "[hub] address")
    if site.servers.kind == "docker" and site.servers.docker is not None:
        yield from _listens(site.servers.docker.hub_address, "[servers.docker] hub_address")
    if site.servers.kind == "kubernetes" and site.servers.kubernetes is not None:
        port = port_of(site.servers.kubernetes.hub_address)
        yield from _listens(f"http://0.0.0.0:{port}", "[servers.kubernetes] hub_address")
    if site.gpus is not None and site.gpus.kubernetes is not None:
        port = port_of(site.gpus.kubernetes.hub_address)
        yield from _listens(f"http://0.0.0.0:{port}", "[gpus.kubernetes] hub_address")


def _listens(address: str, entry: str) -> Iterator[str]:
    """Yield why the hub cannot listen at an address, and what to change in which entry of the settings."""
    host, port = str(urlsplit(address).hostname), port_of(address)
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as problem:
            advice = {
                errno.EADDRINUSE: f"another program listens there: end it, or choose another port in {entry}",
                errno.EACCES: f"ports below 1024 are root's: choose another one in {entry}, such as 8000",
            }.get(problem.errno or 0, f"{entry} must be an address of this machine, or 0.0.0.0 for all that it has")
            yield f"the hub cannot listen at {address}: {problem.strerror}; {advice}"


def _certificate(site: Site) -> Iterator[str]:
    if not site.hub.certificate:
        return
    certificate, key = Path(site.hub.certificate), Path(site.hub.key)
    unreadable = [(role, path) for role, path in (("certificate", certificate), ("key", key)) if not _reads(path)]
    for role, path in unreadable:
        yield f"the {role} {path} of [hub] is not there, or the user who starts the hub cannot read it"
    if unreadable:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, ValueError) as problem:
        another = getattr(problem, "reason", None) == "KEY_VALUES_MISMATCH"
        why = (
            "the key is another one's" if another else "both are PEM files (-----BEGIN ...), the key without a password"
        )
        yield f"{certificate} and {key} of [hub] are no certificate with its key: {why}"
        return
    yield from _expired(certificate)
    if site.hub.subdomain_host:
        yield from _wildcard(certificate, str(urlsplit(site.hub.subdomain_host).hostname))


def _reads(path: Path) -> bool:
    return path.is_file() and os.access(path, os.R_OK)


def _expired(certificate: Path) -> Iterator[str]:
    from cryptography import x509  # JupyterHub brings it

    until = x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc
    if until < datetime.datetime.now(datetime.UTC):
        yield f"the certificate {certificate} of [hub] has expired at {until:%Y-%m-%d %H:%M} UTC: renew it"


def _wildcard(certificate: Path, host: str) -> Iterator[str]:
    from cryptography import x509  # JupyterHub brings it

    try:
        shown = x509.load_pem_x509_certificate(certificate.read_bytes())
        named = shown.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names = {name.lower() for name in named.get_values_for_type(x509.DNSName)}
    except (ValueError, x509.ExtensionNotFound):
        names = set()
    if missing := {host, f"*.{host}"} - names:
        yield f"with subdomain_host the certificate {certificate} needs the names {' and '.join(sorted(missing))}, too"
