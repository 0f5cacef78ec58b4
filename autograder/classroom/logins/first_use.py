"""Passwords of the classroom: learners choose theirs at the first login, instructors are given one."""

from __future__ import annotations

import dbm
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import bcrypt
from firstuseauthenticator import FirstUseAuthenticator

_SYLLABLES = [first + vowel for first in "bdfgklmnprstvz" for vowel in "aeiou"]


class FirstUse(FirstUseAuthenticator):  # type: ignore[misc]  # it has no types
    """Takes the first password of each user on the list as theirs. Nobody else can log in."""

    async def authenticate(self, handler: Any, data: dict[str, str]) -> str | None:
        """Return the user's name, None where the password is wrong.

        Names that are not on the list are refused first: the base class would keep their passwords, and whoever had
        entered one would be that learner if the name were added later.
        """
        if self.normalize_username(data["username"]) not in self.allowed_users:
            return None
        name: str | None = await super().authenticate(handler, data)
        return name


Show = Callable[[str, str], None]
"""Shows somebody's new password: name, password."""


def give_passwords(path: Path, names: Iterable[str], show: Show) -> set[str]:
    """Give each of `names` that has no password yet a new one; return those names.

    Otherwise the first person to find the login page could become the instructor. Each password is shown before it is
    kept: whatever ends the process, nobody has one that was never shown.
    """
    given = {name for name in names if name not in have_passwords(path, [name])}
    for name in sorted(given):
        renew_password(path, name, show)
    return given


def renew_password(path: Path, name: str, show: Show) -> None:
    """Show `name` a new password, then keep it in place of the earlier one."""
    password = _new_password()
    show(name, password)
    with dbm.open(str(path), "c", 0o600) as passwords:
        passwords[name] = bcrypt.hashpw(password.encode(), bcrypt.gensalt())


def forget(path: Path, name: str) -> bool:
    """Forget the password of `name`: the next one that they enter is theirs. Returns whether there was one."""
    with dbm.open(str(path), "c", 0o600) as passwords:
        if name.encode() not in passwords:
            return False
        del passwords[name.encode()]
    return True


def have_passwords(path: Path, names: Iterable[str]) -> set[str]:
    """Return which of `names` have a password."""
    with dbm.open(str(path), "c", 0o600) as passwords:
        return {name for name in names if name.encode() in passwords}


def _new_password() -> str:
    """Return a password of 49 random bits that is easy to type."""
    return "-".join("".join(secrets.choice(_SYLLABLES) for _ in range(2)) for _ in range(4))
