"""Login with an OpenID Connect provider: a university's own, Keycloak, Microsoft, Google, GitLab, ..."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from oauthenticator.generic import GenericOAuthenticator

from autograder.classroom.logins.claims import user_name
from autograder.classroom.site import OpenID
from labkit.command_line.commands import CommandError
from labkit.text_files import UnreadableText, read_text

_ENDPOINTS = ("authorization_endpoint", "token_endpoint", "userinfo_endpoint")


class OpenIDLogin(GenericOAuthenticator):  # type: ignore[misc]  # it has no types
    """Identifies a person by the answer of the provider's userinfo endpoint."""


def endpoints(settings: OpenID) -> dict[str, str]:
    """Return the provider's endpoints by name, as it publishes them (OpenID Connect Discovery 1.0, section 4).

    Raises `CommandError` if they cannot be read.
    """
    address = f"{settings.issuer}/.well-known/openid-configuration"
    try:
        with urllib.request.urlopen(address, timeout=20) as answer:
            document = json.load(answer)
    except (OSError, ValueError) as problem:
        raise CommandError(f"the identity provider of [login.openid] does not answer: {address}: {problem}") from None
    if missing := [name for name in _ENDPOINTS if not isinstance(document.get(name), str)]:
        raise CommandError(f"the identity provider of [login.openid] names no {missing[0]}: {address}")
    if document.get("issuer") != settings.issuer:
        raise CommandError(f"{address} is of another issuer, {document.get('issuer')!r}: write that to [login.openid]")
    return {name: document[name] for name in _ENDPOINTS}


def secret(settings: OpenID) -> str:
    """Return the client's secret, read from its file. Raises `CommandError`."""
    try:
        return read_text(Path(settings.secret_file)).strip()
    except OSError as problem:
        raise CommandError(
            f"the secret of [login.openid] cannot be read: {problem.filename}: {problem.strerror}"
        ) from None
    except UnreadableText as problem:
        raise CommandError(f"the secret of [login.openid] cannot be read: {settings.secret_file}: {problem}") from None


def configure(c: Any, settings: OpenID, address: str) -> None:
    """Configure JupyterHub `c`, which browsers reach at `address`. Raises `CommandError`."""
    urls = endpoints(settings)
    c.JupyterHub.authenticator_class = OpenIDLogin
    c.OpenIDLogin.login_service = settings.title
    c.OpenIDLogin.client_id = settings.client_id
    c.OpenIDLogin.client_secret = secret(settings)
    c.OpenIDLogin.scope = ["openid", *settings.scopes]
    c.OpenIDLogin.authorize_url = urls["authorization_endpoint"]
    c.OpenIDLogin.token_url = urls["token_endpoint"]
    c.OpenIDLogin.userdata_url = urls["userinfo_endpoint"]
    c.OpenIDLogin.oauth_callback_url = f"{address}/hub/oauth_callback"
    c.OpenIDLogin.enable_pkce = True
    c.OpenIDLogin.username_claim = lambda claims: user_name(claims, settings.claim, settings.domain)
