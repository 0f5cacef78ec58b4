"""Find out which kernel counters are right on this machine, by a trial in a sandbox before any submission runs.

So the unmeasurable figures are the same for all submissions, and no submission can influence them. Checks that need
them are left out, and the score is scaled up from the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from autograder.sandbox import Sandbox, SandboxUnavailable, Usage
from labkit.checks import CannotJudge, Rubric
from labkit.clusters import Job
from labkit.clusters.forkserver.client import ForkServerDied
from labkit.clusters.local import local

Reasons = Mapping[str, str]
"""Reasons why something cannot be measured, by name of a figure (`labkit.checks.rubric.FIGURES`) or of a check."""

_REASONS = {
    "network": "bytes on the network cannot be counted on this machine: ranks have no network of their own",
    "memory": "the peak memory of ranks cannot be measured on this machine: no control group counts it",
}
_SENT_BYTES = 4 << 20
_HELD_BYTES = 64 << 20
_NOISE_BYTES = 16 << 20
_TRIAL = f"""
import socket

with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
    receiver, _ = server.accept()
    with receiver:
        for _ in range({_SENT_BYTES >> 16}):
            sender.sendall(bytes(1 << 16))
            receiver.recv(1 << 16, socket.MSG_WAITALL)
held = b"x" * {_HELD_BYTES}
del held
"""
_TIMEOUT = 120.0

_known: dict[str, Reasons] = {}


def unmeasurable(sandbox: Sandbox) -> Reasons:
    """Return the figures that are wrong in such a sandbox; the trial runs once per process.

    Empty if no sandbox can be made: judging will then fail and report why. Raises `CannotJudge`.
    """
    kind = _kind(sandbox)
    if kind not in _known:
        try:
            _known[kind] = MappingProxyType(_tried(sandbox))
        except SandboxUnavailable:
            return {}
    return _known[kind]


def remember(sandbox: Sandbox, reasons: Reasons) -> None:
    """Store the result of another process on this machine."""
    _known[_kind(sandbox)] = reasons


def left_out(rubric: Rubric, sandbox: Sandbox) -> Reasons:
    """Return the checks of `rubric` that cannot be judged here, with the reasons. Raises `CannotJudge`."""
    needing = [check for check in rubric.checks if check.needs]
    reasons = unmeasurable(sandbox) if needing else {}
    reasons_of = {
        check.name: "; ".join(reasons[name] for name in sorted(check.needs & reasons.keys())) for check in needing
    }
    return {name: reason for name, reason in reasons_of.items() if reason}


def _kind(sandbox: Sandbox) -> str:
    return repr([(name, getattr(sandbox, name)) for name in sorted(sandbox.trait_names(config=True))])


def _tried(sandbox: Sandbox) -> dict[str, str]:
    with sandbox.open() as instance:

        def used(source: str) -> Usage:
            try:
                run = local(1, forkserver=instance.forkserver).run(Job(source=source, timeout=_TIMEOUT))
            except ForkServerDied as death:
                raise CannotJudge(f"the trial of what this machine can measure failed: {death}") from None
            if not run.ok:
                raise CannotJudge(f"the trial of what this machine can measure failed: {run.diagnosis()}")
            return instance.usage()

        idle, busy = used(""), used(_TRIAL)
    sent = busy.network_bytes - idle.network_bytes
    held = busy.memory_peak_bytes - idle.memory_peak_bytes
    right = {
        "network": _SENT_BYTES <= sent <= 1.1 * _SENT_BYTES,
        # a sampled peak could by chance include the trial's memory and miss a submission's
        "memory": busy.peak_is_exact and abs(held - _HELD_BYTES) <= _NOISE_BYTES,
    }
    return {name: reason for name, reason in _REASONS.items() if not right[name]}
