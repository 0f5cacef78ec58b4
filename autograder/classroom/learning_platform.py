"""The course on a learning platform: its members, and the columns for their marks.

LTI 1.3's services: Names and Role Provisioning Services 2.0, Assignment and Grade Services 2.0. A platform gives a
token for an assertion that is signed with this hub's key (1EdTech Security Framework 1.0, section 4.1), whose public
half it reads at `ADDRESS/hub/lti13/keys`. Addresses of a course's services come with the launches of its links.
"""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import jwt
import requests
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from tornado.web import HTTPError

from autograder.classroom.logins.claims import user_name
from autograder.classroom.site import LTI
from labkit.command_line.commands import CommandError
from labkit.linux.files import replace_text

_LTI = "https://purl.imsglobal.org/spec/lti/claim/"
_NAMES = "https://purl.imsglobal.org/spec/lti-nrps/claim/namesroleservice"
_GRADES = "https://purl.imsglobal.org/spec/lti-ags/claim/endpoint"
_SCOPES = {
    "roster": "https://purl.imsglobal.org/spec/lti-nrps/scope/contextmembership.readonly",
    "columns": "https://purl.imsglobal.org/spec/lti-ags/scope/lineitem",
    "scores": "https://purl.imsglobal.org/spec/lti-ags/scope/score",
}
_KINDS = {
    "roster": "application/vnd.ims.lti-nrps.v2.membershipcontainer+json",
    "column": "application/vnd.ims.lis.v2.lineitem+json",
    "columns": "application/vnd.ims.lis.v2.lineitemcontainer+json",
    "score": "application/vnd.ims.lis.v1.score+json",
}
_SECONDS = 60


@contextmanager
def _answering(subject: str) -> Iterator[None]:
    """Raises `CommandError` if the platform does not answer within the context, or not as it should."""
    try:
        yield
    except requests.HTTPError as problem:
        detail = "" if problem.response is None else problem.response.text.strip()[:200]
        raise CommandError(f"the learning platform refuses, for the {subject}: {problem} {detail}") from None
    except (requests.RequestException, ValueError, KeyError, TypeError) as problem:
        raise CommandError(
            f"the learning platform does not answer as it should, for the {subject}: {problem!r}"
        ) from None


def signing_key(folder: Path) -> rsa.RSAPrivateKey:
    """Return this hub's key, made at the first call and kept in `folder`."""
    path = folder / "lti-key.pem"
    if not path.exists():
        key = rsa.generate_private_key(65537, 2048)
        form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(key.private_bytes(*form))
        return key
    loaded = serialization.load_pem_private_key(path.read_bytes(), None)
    assert isinstance(loaded, rsa.RSAPrivateKey), path
    return loaded


def public_keys(folder: Path) -> dict[str, Any]:
    """Return the public half of the key as a JSON Web Key Set."""
    public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(signing_key(folder).public_key()))
    return {"keys": [{**public, "kid": _key_name(folder), "alg": "RS256", "use": "sig"}]}


def _key_name(folder: Path) -> str:
    return f"{signing_key(folder).public_key().public_numbers().n % 2**64:016x}"


def remember(folder: Path, launch: Mapping[str, Any]) -> None:
    """Keep the addresses of the course's services, from a launch that has been verified."""
    services = {
        "roster": launch.get(_NAMES, {}).get("context_memberships_url"),
        "columns": launch.get(_GRADES, {}).get("lineitems"),
        "course": launch.get(f"{_LTI}context", {}).get("title", ""),
    }
    replace_text(folder / "learning_platform.json", json.dumps(services, indent=1) + "\n")


@dataclass(frozen=True)
class Member:
    """A member of the course on the platform."""

    name: str
    """User name in the classroom."""
    platform_id: str
    is_learner: bool


@dataclass(frozen=True)
class Platform:
    """The platform of one classroom. All methods raise `CommandError`."""

    settings: LTI
    folder: Path
    """Folder of the hub."""

    @cached_property
    def _addresses(self) -> dict[str, str | None]:
        path = self.folder / "learning_platform.json"
        if not path.exists():
            raise CommandError("follow the link of the course on the learning platform once, as its instructor")
        addresses: dict[str, str | None] = json.loads(path.read_text())
        return addresses

    def _address(self, service: str) -> str:
        if not (address := self._addresses[service]):
            raise CommandError(
                f"the learning platform offers no {service} for this course: allow it for the tool there"
            )
        return address

    @cached_property
    def _token(self) -> str:
        if self.settings.token_url is None:
            raise CommandError("[login.lti] names no token_url, which roster and marks need")
        now, client = int(time.time()), self.settings.client_id
        claims = {"iss": client, "sub": client, "aud": self.settings.token_url, "iat": now, "exp": now + 300}
        signed = jwt.encode(
            {**claims, "jti": uuid.uuid4().hex},
            signing_key(self.folder),
            algorithm="RS256",
            headers={"kid": _key_name(self.folder)},
        )
        form = {
            "grant_type": "client_credentials",
            "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
            "client_assertion": signed,
            "scope": " ".join(_SCOPES.values()),
        }
        with _answering("token"):
            answer = requests.post(self.settings.token_url, form, timeout=_SECONDS)
            answer.raise_for_status()
            token: str = answer.json()["access_token"]
            return token

    def _ask(self, method: str, address: str, accept: str, body: Any = None, kind: str = "") -> requests.Response:
        headers = {"Authorization": f"Bearer {self._token}", "Accept": accept}
        if kind:
            headers["Content-Type"] = kind
        data = None if body is None else json.dumps(body)
        answer = requests.request(method, address, data=data, headers=headers, timeout=_SECONDS)
        answer.raise_for_status()
        return answer

    def roster(self) -> tuple[list[Member], list[str]]:
        """Return the members of the course, and a reason for each one who cannot have a name in the classroom."""
        members, refused = [], []
        for member in self._members():
            if member.get("status", "Active") != "Active":
                continue
            try:
                name = user_name(member, self.settings.claim, self.settings.domain)
            except HTTPError as problem:
                refused.append(str(problem.log_message))
                continue
            roles = [role.rpartition("#")[2] for role in member.get("roles", ())]
            members.append(Member(name, str(member["user_id"]), "Learner" in roles))
        return members, refused

    def _members(self) -> Iterator[dict[str, Any]]:
        address: str | None = self._address("roster")
        while address:
            with _answering("roster"):
                page = self._ask("GET", address, _KINDS["roster"])
                members = page.json()["members"]
            yield from members
            address = page.links.get("next", {}).get("url")

    def send(self, assignment: str, points: float, scores: Mapping[str, float]) -> list[str]:
        """Send scores by name to the assignment's column, which is made if there is none.

        Returns the names that the course on the platform does not have. A score that was sent before is replaced.
        """
        ids = {member.name: member.platform_id for member in self.roster()[0]}
        column = self._column(assignment, points)
        # an address may have a query, after which nothing can be appended
        address = re.sub(r"(\?|$)", r"/scores\1", column, count=1)
        for name, score in scores.items():
            if name not in ids:
                continue
            body = {
                "userId": ids[name], "scoreGiven": score, "scoreMaximum": points,
                "activityProgress": "Completed", "gradingProgress": "FullyGraded",
                "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds"),
            }  # fmt: skip
            with _answering(f"marks of {name}"):
                self._ask("POST", address, "*/*", body, _KINDS["score"])
        return sorted(set(scores) - set(ids))

    def _column(self, assignment: str, points: float) -> str:
        """Return the address of the assignment's line item."""
        address: str | None = self._address("columns")
        first = address
        while address:
            with _answering("columns of marks"):
                page = self._ask("GET", address, _KINDS["columns"])
                for item in page.json():
                    if item.get("resourceId") == assignment:
                        return str(item["id"])
            address = page.links.get("next", {}).get("url")
        body = {"label": assignment, "scoreMaximum": points, "resourceId": assignment}
        with _answering("new column of marks"):
            made = self._ask("POST", str(first), _KINDS["column"], body, _KINDS["column"])
            return str(made.json()["id"])
