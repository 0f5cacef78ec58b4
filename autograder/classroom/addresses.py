"""Addresses of a classroom for browsers: all below one, or, with `subdomain_host`, each server at its own host name."""

from __future__ import annotations

from urllib.parse import urlsplit

from autograder.classroom.site import PAGE_SERVICE, Site


def hub(site: Site) -> str:
    """Return what precedes a path of the hub on a page of ours: nothing where all pages have the hub's address."""
    return site.hub.subdomain_host


def service(site: Site, name: str) -> str:
    """Return the address of a service of the hub, or its path where all pages have the hub's address."""
    return f"{_host(site, name)}/services/{name}"


def page(site: Site) -> str:
    """Return the address or path of the course's page."""
    return f"{service(site, PAGE_SERVICE)}/"


def _host(site: Site, name: str) -> str:
    if not site.hub.subdomain_host:
        return ""
    from jupyterhub.utils import subdomain_hook_idna  # `labkit hub --check` says it if JupyterHub is missing

    parts = urlsplit(site.hub.subdomain_host)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{subdomain_hook_idna(name, parts.hostname, 'service')}{port}"
