"""Who may talk to whom under cluster/kubernetes' NetworkPolicies, by the rules of the published specification.

https://kubernetes.io/docs/concepts/services-networking/network-policies/. No network plugin enforces them here.
"""

from __future__ import annotations

from typing import Any

import pytest
from site_manifests import NAMESPACE, needs_kubectl, things

Labels = dict[str, str]

RANK = (NAMESPACE, {"labkit/run": "training"})
CELL = (NAMESPACE, {"labkit/run": "labkit-7", "app.kubernetes.io/managed-by": "labkit"})
OTHER_CELL = (NAMESPACE, {"labkit/run": "labkit-8", "app.kubernetes.io/managed-by": "labkit"})
NOTEBOOK = (NAMESPACE, {"component": "singleuser-server"})
ELSEWHERE = ("somebody", {"labkit/run": "training"})
DNS = ("kube-system", {"k8s-app": "kube-dns"})
PROMETHEUS = ("monitoring", {"app.kubernetes.io/name": "prometheus"})
GRAFANA = ("monitoring", {"app.kubernetes.io/name": "grafana"})
OUTSIDE = ("", {})


def _selects(selector: dict[str, Any], labels: Labels) -> bool:
    assert selector.keys() <= {"matchLabels"}, "this test knows no expressions"
    return all(labels.get(name) == value for name, value in selector.get("matchLabels", {}).items())


def _is_peer(peer: dict[str, Any], pod: tuple[str, Labels]) -> bool:
    space, labels = pod
    if not space:
        return "ipBlock" in peer
    in_space = (
        _selects(peer["namespaceSelector"], {"kubernetes.io/metadata.name": space})
        if "namespaceSelector" in peer
        else space == NAMESPACE
    )
    return in_space and _selects(peer.get("podSelector", {}), labels)


def _has_port(rule: dict[str, Any], port: int) -> bool:
    return "ports" not in rule or any(
        each["port"] <= port <= each.get("endPort", each["port"]) for each in rule["ports"]
    )


def _allowed(build: str, direction: str, pod: tuple[str, Labels], peer: tuple[str, Labels], port: int) -> bool:
    policies = [
        thing["spec"]
        for thing in things(build)
        if thing["kind"] == "NetworkPolicy"
        and direction in thing["spec"]["policyTypes"]
        and pod[0] == NAMESPACE
        and _selects(thing["spec"]["podSelector"], pod[1])
    ]
    side = {"Ingress": ("ingress", "from"), "Egress": ("egress", "to")}[direction]
    return not policies or any(
        _has_port(rule, port) and any(_is_peer(each, peer) for each in rule[side[1]])
        for policy in policies
        for rule in policy.get(side[0], ())
    )


@pytest.mark.parametrize(
    ("source", "target", "port", "expected"),
    [
        (RANK, RANK, 29400, True),
        (RANK, RANK, 51234, True),  # NCCL and gloo choose any port
        (CELL, CELL, 20001, True),
        (RANK, CELL, 20001, False),
        (CELL, RANK, 29400, False),
        (NOTEBOOK, RANK, 29400, False),
        (ELSEWHERE, RANK, 29400, False),
        (GRAFANA, RANK, 9400, False),
        (PROMETHEUS, RANK, 9400, True),
        (PROMETHEUS, RANK, 29400, False),
        (RANK, DNS, 53, True),
        (RANK, DNS, 443, False),
        (RANK, OUTSIDE, 443, False),
        (CELL, OUTSIDE, 443, False),
        (OUTSIDE, RANK, 29400, False),
        (RANK, PROMETHEUS, 9090, False),
        # no policy tells two runs of one namespace apart: base/network-policy.yaml says so
        (CELL, OTHER_CELL, 20001, True),
    ],
)
def test_ranks_talk_to_ranks_only(
    source: tuple[str, Labels], target: tuple[str, Labels], port: int, expected: bool
) -> None:
    needs_kubectl()
    leaves = _allowed("overlays/gpu", "Egress", source, target, port)
    arrives = _allowed("overlays/gpu", "Ingress", target, source, port)
    assert (leaves and arrives) == expected
