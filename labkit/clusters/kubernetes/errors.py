"""What the cluster's API refuses or fails to answer, for people."""

from __future__ import annotations

import json

from labkit.clusters.job import InvalidJob


class KubernetesError(InvalidJob):
    """The cluster cannot be used as requested; the message has its answer, and what to try."""


class ApiRefused(KubernetesError):
    """The API has answered with an error. `status` is HTTP's: 403, 404, 409, 422, ...; `reason`: its own words."""

    def __init__(self, message: str, status: int, reason: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


class ApiUnreachable(KubernetesError):
    """The API does not answer, or not now; `reason`: why, without the address and advice."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


def refusal(status: int, body: bytes, namespace: str) -> ApiRefused:
    """An error answer, with advice for a person who works in `namespace`."""
    reason = message(body) or f"HTTP {status}"
    if status == 404:
        text = f"the cluster knows no such thing: {reason}"
    elif status == 401:
        text = f"the cluster does not know you: {reason}. Log in again, or ask for a new kubeconfig"
    elif status == 403 and "exceeded quota" in reason:
        text = f"{reason}. Ask for fewer nodes or GPUs, or wait until other runs have ended"
    elif status == 403 and "cannot" in reason:
        text = (
            f"you may not do that in namespace {namespace!r}: {reason}. Another --namespace? Else show this to whoever "
            "runs the cluster: docs/kubernetes.md has the role that is needed"
        )
    else:
        text = f"the cluster refuses: {reason}"
    return ApiRefused(text, status, reason)


def message(body: bytes) -> str:
    """The message of an error answer; the beginning of one that is no Status object."""
    try:
        answer = json.loads(body)
        return str(answer.get("message") or answer)
    except (ValueError, AttributeError):
        return body.decode(errors="replace")[:300].strip()
