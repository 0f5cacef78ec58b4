"""JupyterHub's authenticator, for the kind of login in the site's settings."""

from __future__ import annotations

from typing import Any

from autograder.classroom.configured import Classroom


def configure(c: Any, classroom: Classroom) -> None:
    """Configure JupyterHub `c`. Raises `CommandError` where an identity provider does not answer."""
    login, folders = classroom.site.login, classroom.folders
    # each imports its own packages
    match login.kind:
        case "first-use":
            from autograder.classroom.logins.first_use import FirstUse

            c.JupyterHub.authenticator_class = FirstUse
            c.FirstUse.dbm_path = str(folders.hub / "passwords")
            c.FirstUse.min_password_length = login.shortest_password
        case "pam":
            c.JupyterHub.authenticator_class = "pam"
            c.PAMAuthenticator.service = login.pam_service
        case "openid":
            from autograder.classroom.logins import openid

            assert login.openid is not None  # `sites.load` has refused that
            openid.configure(c, login.openid, classroom.site.hub.public)
        case "lti":
            from autograder.classroom.logins import lti

            assert login.lti is not None
            lti.configure(c, classroom, login.lti)
