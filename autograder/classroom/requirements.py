"""What a site's settings need of this machine, and what of it is missing."""

from __future__ import annotations

import importlib.util
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from autograder.classroom import proxy, spawners
from autograder.classroom.site import Login, Site
from labkit.commands import CommandError

_MODULES = {
    "jupyterhub": "jupyterhub",
    "firstuseauthenticator": "jupyterhub-firstuseauthenticator",
    "jupyterhub_idle_culler": "jupyterhub-idle-culler",
    "oauthenticator": "oauthenticator",
    "ltiauthenticator": "jupyterhub-ltiauthenticator",
}


def missing(site: Site) -> list[str]:
    """Return one sentence for each thing that is missing, with what to do. Installs the proxy if it is not there."""
    return [
        *_packages(),
        *spawners.of(site).missing(site),
        *_login(site.login),
        *_folder(site),
        *_address(site),
        *_certificate(site),
    ]


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


def _folder(site: Site) -> Iterator[str]:
    another = "[hub] folder names another one"
    # the folder itself, or the one in which it will be made; what may not be looked at is not there
    existing = next(folder for folder in (site.folder, *site.folder.parents) if os.path.exists(folder))
    if not existing.is_dir():
        yield f"the classroom cannot be in {site.folder}, since {existing} is not a folder; {another}"
    elif not os.access(existing, os.W_OK | os.X_OK):
        yield f"the classroom is kept in {site.folder}, but {existing} cannot be written to; {another}"


def _address(site: Site) -> Iterator[str]:
    parts = urlsplit(site.hub.address)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    with socket.socket(socket.AF_INET6 if ":" in str(parts.hostname) else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((parts.hostname, port))
        except OSError as problem:
            yield f"the hub cannot listen at {site.hub.address}: {problem.strerror}; [hub] address names another one"


def _certificate(site: Site) -> Iterator[str]:
    for what, name in (("certificate", site.hub.certificate), ("key", site.hub.key)):
        if name and not os.access(Path(name), os.R_OK):
            yield f"the {what} cannot be read: {name}"
        elif what == "certificate" and name and site.hub.subdomain_host:
            yield from _wildcard(Path(name), str(urlsplit(site.hub.subdomain_host).hostname))


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
