"""Addresses of a classroom for browsers: on one host, or, with `subdomain_host`, a host name for each server."""

from __future__ import annotations

from urllib.parse import urlsplit

from autograder.classroom.site import PAGE_SERVICE, Site


def hub(site: Site) -> str:
    """Return the prefix of links from our pages to the hub; empty where all pages have the hub's address."""
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
    from jupyterhub.utils import subdomain_hook_idna  # `labkit hub --check` reports a missing JupyterHub

    parts = urlsplit(site.hub.subdomain_host)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{subdomain_hook_idna(name, parts.hostname, 'service')}{port}"
