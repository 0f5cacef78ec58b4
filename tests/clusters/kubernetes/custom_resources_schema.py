"""Schemas of the custom resources in cluster/kubernetes, for tests; TrainJob's is in trainjob_schema.py.

Written after the CustomResourceDefinitions of
- Kueue, `kueue.x-k8s.io/v1beta2`: config/components/crd/bases of kubernetes-sigs/kueue (Apache 2.0), from 0.15 on;
- the Prometheus operator, `monitoring.coreos.com/v1`: example/prometheus-operator-crd of
  prometheus-operator/prometheus-operator (Apache 2.0), as of version 0.91.
Fields for credentials and rarely used limits are left out, and so refused.
"""

from __future__ import annotations

from typing import Any

from schema_parts import NAME, QUANTITY, TEXT, TEXTS, array, closed_map, of, one_of, require, resource

_SELECTOR = of("LabelSelector", "apimachinery.pkg.apis.meta.v1")
_QUOTA = closed_map(
    ("name", "nominalQuota"), name=TEXT, nominalQuota=QUANTITY, borrowingLimit=QUANTITY, lendingLimit=QUANTITY
)
_FLAVOR = closed_map(("name", "resources"), name=NAME, resources=array(_QUOTA, 64, 1))
_RELABELING = closed_map(
    sourceLabels=array(TEXT), separator=TEXT, targetLabel=TEXT, regex=TEXT, modulus={"type": "integer"},
    replacement=TEXT, action=TEXT,
)  # fmt: skip
_DURATION = {
    "type": "string",
    "pattern": r"^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)$",
}

_SPECS = {
    ("kueue.x-k8s.io/v1beta2", "ResourceFlavor"): closed_map(
        nodeLabels={**TEXTS, "maxProperties": 8},
        nodeTaints=array(of("Taint"), 8),
        tolerations=array(of("Toleration"), 8),
        topologyName=NAME,
    ),
    ("kueue.x-k8s.io/v1beta2", "ClusterQueue"): closed_map(
        cohortName=NAME,
        namespaceSelector=_SELECTOR,
        queueingStrategy=one_of("StrictFIFO", "BestEffortFIFO"),
        resourceGroups=array(
            closed_map(
                ("coveredResources", "flavors"), coveredResources=array(TEXT, 64, 1), flavors=array(_FLAVOR, 64, 1)
            ),
            16,
        ),
        preemption=closed_map(
            reclaimWithinCohort=one_of("Never", "LowerPriority", "Any"),
            withinClusterQueue=one_of("Never", "LowerPriority", "LowerOrNewerEqualPriority"),
            borrowWithinCohort=closed_map(
                policy=one_of("Never", "LowerPriority"), maxPriorityThreshold={"type": "integer"}
            ),
        ),
        flavorFungibility=closed_map(
            whenCanBorrow=one_of("MayStopSearch", "TryNextFlavor"),
            whenCanPreempt=one_of("MayStopSearch", "TryNextFlavor"),
        ),
        fairSharing=closed_map(weight=QUANTITY),
        stopPolicy=one_of("None", "Hold", "HoldAndDrain"),
    ),
    ("kueue.x-k8s.io/v1beta2", "LocalQueue"): closed_map(
        clusterQueue=NAME, stopPolicy=one_of("None", "Hold", "HoldAndDrain"), fairSharing=closed_map(weight=QUANTITY)
    ),
    ("monitoring.coreos.com/v1", "PodMonitor"): closed_map(
        ("podMetricsEndpoints", "selector"),
        jobLabel=TEXT,
        podTargetLabels=array(TEXT),
        namespaceSelector=closed_map(any={"type": "boolean"}, matchNames=array(TEXT)),
        selector=_SELECTOR,
        sampleLimit={"type": "integer"},
        podMetricsEndpoints=array(
            closed_map(
                port=TEXT, portNumber={"type": "integer", "minimum": 1, "maximum": 65535}, path=TEXT,
                scheme=one_of("http", "https", "HTTP", "HTTPS"), interval=_DURATION, scrapeTimeout=_DURATION,
                honorLabels={"type": "boolean"}, filterRunning={"type": "boolean"}, relabelings=array(_RELABELING),
                metricRelabelings=array(_RELABELING),
            )
        ),
    ),
}  # fmt: skip
KINDS = tuple(_SPECS)
"""Pairs of apiVersion and kind."""


def require_custom_resource(thing: dict[str, Any]) -> None:
    """Raises `jsonschema.ValidationError`, and ValueError for what the CRDs require by rules."""
    api_version, kind = thing["apiVersion"], thing["kind"]
    require(resource(api_version, kind, _SPECS[api_version, kind]), thing)
    if kind == "ClusterQueue":
        _require_matching_quotas(thing["spec"])


def _require_matching_quotas(spec: dict[str, Any]) -> None:
    """Every flavor lists the covered resources, in their order; only a cohort has something to borrow."""
    for group in spec.get("resourceGroups", ()):
        for flavor in group["flavors"]:
            names = [quota["name"] for quota in flavor["resources"]]
            if names != group["coveredResources"]:
                raise ValueError(f"flavor {flavor['name']} lists {names}, not {group['coveredResources']}")
            if "cohortName" not in spec and any("borrowingLimit" in quota for quota in flavor["resources"]):
                raise ValueError(f"flavor {flavor['name']} has a borrowingLimit, but the queue is in no cohort")
