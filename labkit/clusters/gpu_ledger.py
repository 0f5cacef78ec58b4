"""The course's hub's account of borrowed GPUs: how much of today's time is used, and why the hub ended a job.

A hub that does not answer soon counts as no hub: no run needs its answers.
"""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.request
from typing import Any

ADDRESS = "LABKIT_GPU_LEDGER"
"""Environment variable: address of the learner's account in the ledger. Unset outside of a hub."""
_TOKEN = "JUPYTERHUB_API_TOKEN"
_LIMIT_SECONDS = 5.0
_PAUSE_SECONDS = 60.0
_not_before = 0.0


def _account() -> dict[str, Any]:
    """Return the learner's account: `used` and `left` in GPU-seconds, `notices` with `job` and `text`, `places` by job.

    Empty if there is no ledger, or if it does not answer.
    """
    global _not_before
    address = os.environ.get(ADDRESS, "")
    if not address:
        return {}
    request = urllib.request.Request(address, headers={"Authorization": f"token {os.environ.get(_TOKEN, '')}"})
    try:
        with urllib.request.urlopen(request, timeout=_LIMIT_SECONDS) as answer:
            account = json.load(answer)
            numbers = {name: int(account[name]) for name in ("used", "left")}
            places = {str(job): int(place) for job, place in dict(account.get("places", {})).items()}
            return {**numbers, "notices": list(account["notices"]), "places": places}
    except (OSError, ValueError, TypeError, LookupError, http.client.HTTPException):
        _not_before = time.monotonic() + _PAUSE_SECONDS
        return {}


def in_words(job_id: str = "") -> str:
    """Return `120 GPU-seconds used today, 3480 left`; empty if the ledger says nothing.

    job_id: a job that waits; the text then begins with its place, if known: `place 2 of those that wait; ...`.
    A ledger that does not answer is then not asked for a minute, since a cell that waits asks again and again.
    """
    if time.monotonic() < _not_before:
        return ""
    account = _account()
    if not account:
        return ""
    place = account["places"].get(job_id)
    waits = f"place {place} of those that wait; " if place else ""
    return f"{waits}{account['used']} GPU-seconds used today, {account['left']} left"


def why(job_id: str) -> str:
    """Return why the hub has ended or shortened a job; empty if it has not."""
    notices = _account().get("notices", [])
    texts = [str(notice.get("text")) for notice in notices if isinstance(notice, dict) and notice.get("job") == job_id]
    return texts[0] if texts else ""
