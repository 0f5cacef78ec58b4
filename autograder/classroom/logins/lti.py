"""Login from a learning platform (Canvas, Moodle, ...) by LTI 1.3: a link of the course there opens the hub."""

from __future__ import annotations

from typing import Any

from ltiauthenticator.lti13.auth import LTI13Authenticator

from autograder.classroom.logins.claims import user_name
from autograder.classroom.site import LTI

_CUSTOM = "https://purl.imsglobal.org/spec/lti/claim/custom"


class LTILogin(LTI13Authenticator):  # type: ignore[misc]  # it has no types
    """Takes a launch that the platform has signed. The base class compares signature, issuer, audience and nonce."""

    settings: LTI

    def get_username(self, token: dict[str, Any]) -> str:
        """Return the classroom's name of the person who has followed the link. Raises `HTTPError` 403."""
        claims = {**token.get(_CUSTOM, {}), **token}
        return user_name(claims, self.settings.claim, self.settings.domain)


def configure(c: Any, settings: LTI) -> None:
    """Configure JupyterHub `c`."""
    LTILogin.settings = settings
    c.JupyterHub.authenticator_class = LTILogin
    c.LTILogin.issuer = settings.issuer
    c.LTILogin.client_id = {settings.client_id}
    c.LTILogin.authorize_url = settings.authorize_url
    c.LTILogin.jwks_endpoint = settings.keys_url
    # the platform's page posts the launch to the hub, and the cookies that it is compared with must come along
    c.JupyterHub.tornado_settings = {"cookie_options": {"SameSite": "None", "Secure": True}}
