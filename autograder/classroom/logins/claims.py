"""The classroom's name for a person, from the claims of an identity provider."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tornado.web import HTTPError

from autograder.classroom.site import is_user_name


def user_name(claims: Mapping[str, Any], claim: str, domain: str) -> str:
    """Return the value of one claim as a name: in lower case, and without `@domain`.

    domain: the one whose addresses are names; empty if the claim has none. Raises `HTTPError` 403, with the reason for
    the page, where the claim is missing or no name, has another domain, or is an address that was not verified.
    """
    value = claims.get(claim)
    if not isinstance(value, str) or not value:
        raise _refused(f"the identity provider has sent no {claim!r}, which this hub takes for the name")
    name, at, sent_domain = value.lower().partition("@")
    # the same name at another domain is somebody else
    if sent_domain != domain.lower() or bool(at) != bool(domain):
        # an address is a name only where all are of one domain, which the instructor has named
        wanted = (
            f"an address @{domain}" if domain else f"a name without '@' (with domain = {sent_domain!r} it can be one)"
        )
        raise _refused(f"{value!r} is not {wanted}")
    if claim == "email" and claims.get("email_verified") is False:
        raise _refused(f"{value!r} has not been verified by the identity provider")
    if not is_user_name(name):
        raise _refused(f"{name!r} cannot be a name of the classroom")
    return name


def _refused(why: str) -> HTTPError:
    error = HTTPError(403, why)
    error.jupyterhub_message = f"You cannot log in: {why}."  # type: ignore[attr-defined]  # what its error page shows
    return error
