"""How pod statuses of the real API are interpreted: https://kubernetes.io/docs/concepts/workloads/pods/."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.clusters.kubernetes import pods

_GONE = {"deletionTimestamp": "2026-01-01T00:00:00Z"}


def _pod(status: dict[str, Any], index: int = 0, **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": f"labkit-0-{index}-x", "annotations": {pods.INDEX: str(index)}, **metadata},
        "spec": {"nodeName": "node-a", "containers": [{"name": "ranks", "image": "lab:1"}]},
        "status": status,
    }


def _container(**state: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "sidecar", "state": {}}, {"name": "ranks", "state": state}]}


@pytest.mark.parametrize(
    ("pod", "phase", "told"),
    [
        (
            _pod({"phase": "Failed", **_container(terminated={"exitCode": 137, "reason": "OOMKilled"})}),
            "failed",
            "had no memory left and was killed (OOMKilled): more with --memory?",
        ),
        (
            _pod({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}),
            "failed",
            "was evicted on node-a: The node was low on resource: memory.",
        ),
        (
            _pod({
                "phase": "Failed",
                "conditions": [
                    {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "p"}
                ],
                **_container(terminated={"exitCode": 143, "reason": "Error"}),
            }),
            "failed",
            "was taken away (PreemptionByScheduler): p",
        ),
        (_pod({"phase": "Failed", "reason": "DeadlineExceeded"}), "failed", "its time was over"),
        (
            _pod({"phase": "Failed", **_container(terminated={"exitCode": 139, "reason": "Error"})}),
            "failed",
            "ended with exit code 139, signal 11",
        ),
        (
            _pod({
                "phase": "Failed",
                **_container(terminated={
                    "exitCode": 128, "reason": "StartError", "message": 'exec: "python": executable file not found'
                }),
            }),
            "failed",
            'ended with exit code 128: exec: "python": executable file not found',
        ),
        (_pod({"phase": "Running", **_container(running={})}, **_GONE), "failed", "was deleted"),
        (_pod({"phase": "Unknown", "reason": "NodeLost"}), "failed", "failed NodeLost"),
        (_pod({"phase": "Succeeded", **_container(terminated={"exitCode": 0})}), "succeeded", "exit code 0"),
    ],
)  # fmt: skip
def test_how_a_pod_ended(pod: dict[str, Any], phase: str, told: str) -> None:
    assert pods.phase(pod) == phase
    assert told in pods.how_it_ended(pod)


def test_pods_that_wait_are_counted_with_their_reasons() -> None:
    unschedulable = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu. preemption: 0/3 nodes are available: 3 No "
        "preemption victims found for incoming pod.",
    }
    running = _pod({"phase": "Running", **_container(running={"startedAt": "now"})})
    waiting = _pod({"phase": "Pending", "conditions": [unschedulable]}, 1)
    pulling = _pod({"phase": "Pending", **_container(waiting={"reason": "ContainerCreating"})}, 2)
    assert pods.summary([running, waiting], 2) == (
        "2 pods: 1 running, 1 pending: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu"
    )
    assert pods.summary([pulling], 2) == (
        "2 pods: 1 pending, 1 not made yet: on node-a, its image is fetched or its container made"
    )


def test_the_first_failed_pull_is_not_the_end_yet() -> None:
    pod = _pod({"phase": "Pending", **_container(waiting={"reason": "ErrImagePull", "message": "registry is busy"})})
    assert pods.why_never(pod) == ""
    assert pods.why_pending(pod) == "ErrImagePull: registry is busy"


def test_a_job_whose_pods_are_only_delayed_is_waited_for() -> None:
    """The Job retries after errors of the API itself; what admission refuses stays refused."""
    passing = {"type": "Warning", "reason": "FailedCreate", "message": "Error creating: etcdserver: request timed out"}
    refused = {**passing, "message": 'Error creating: pods "x" is forbidden: failed quota: q: must specify cpu'}
    assert pods.refusal([passing]) == ""
    assert "--cpus 4" in pods.refusal([passing, refused])


def test_a_pod_knows_its_node() -> None:
    assert pods.node_of(_pod({}, 7)) == 7
    assert pods.node_of({"metadata": {"name": "x", "labels": {pods.INDEX: "3"}}}) == 3
    assert pods.node_of({"metadata": {"name": "x"}}) is None
