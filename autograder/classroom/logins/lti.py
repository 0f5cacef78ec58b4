"""Login from a learning platform (Canvas, Moodle, ...) by LTI 1.3: a link of the course there opens the hub."""

from __future__ import annotations

from typing import Any

from jupyterhub.handlers import BaseHandler
from ltiauthenticator.lti13.auth import LTI13Authenticator

from autograder.classroom import learning_platform
from autograder.classroom.configured import Classroom
from autograder.classroom.logins.claims import user_name
from autograder.classroom.site import LTI

_CUSTOM = "https://purl.imsglobal.org/spec/lti/claim/custom"


class KeysHandler(BaseHandler):  # type: ignore[misc]  # it has no types
    """Shows the public keys by which the platform knows this hub, to everybody."""

    async def get(self) -> None:
        self.finish(learning_platform.public_keys(self.authenticator.classroom.folders.hub))


class LTILogin(LTI13Authenticator):  # type: ignore[misc]  # it has no types
    """Takes a launch that the platform has signed. The base class compares signature, issuer, audience and nonce."""

    classroom: Classroom
    settings: LTI

    def get_username(self, token: dict[str, Any]) -> str:
        """Return the classroom's name of the person who has followed the link. Raises `HTTPError` 403."""
        claims = {**token.get(_CUSTOM, {}), **token}
        return user_name(claims, self.settings.claim, self.settings.domain)

    async def authenticate(self, handler: Any, data: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the user of the link. An instructor's launch has the addresses of the course's services."""
        user: dict[str, Any] = await super().authenticate(handler, data)
        if data and user["name"] in self.classroom.site.course.instructors:
            learning_platform.remember(self.classroom.folders.hub, data)
        return user

    def get_handlers(self, app: Any) -> list[Any]:
        """Return the pages of the login, and that of the keys."""
        return [*super().get_handlers(app), ("lti13/keys", KeysHandler)]


def configure(c: Any, classroom: Classroom, settings: LTI) -> None:
    """Configure JupyterHub `c`."""
    LTILogin.classroom, LTILogin.settings = classroom, settings
    c.JupyterHub.authenticator_class = LTILogin
    c.LTILogin.issuer = settings.issuer
    c.LTILogin.client_id = {settings.client_id}
    c.LTILogin.authorize_url = settings.authorize_url
    c.LTILogin.jwks_endpoint = settings.keys_url
    # the platform's page posts the launch to the hub, and the cookies that it is compared with must come along
    c.JupyterHub.tornado_settings = {"cookie_options": {"SameSite": "None", "Secure": True}}
