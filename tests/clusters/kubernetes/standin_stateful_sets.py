"""The StatefulSet controller of the stand-in cluster: claims that stay, and pods that come back under the same name.

https://kubernetes.io/docs/concepts/workloads/controllers/statefulset/, with `podManagementPolicy: Parallel`.
"""

from __future__ import annotations

import copy

from standin_store import Object, Store

_POD_NAME, _POD_INDEX = "statefulset.kubernetes.io/pod-name", "apps.kubernetes.io/pod-index"


def keep_stateful_set(store: Store, stateful_set: Object) -> None:
    """Create what is missing of it, and delete the pods that are too many."""
    metadata, spec = stateful_set["metadata"], stateful_set["spec"]
    space, uid = metadata["namespace"], metadata["uid"]
    mine = {
        pod["metadata"]["name"]: pod
        for pod in store.list("pods", space)
        if any(owner["uid"] == uid for owner in pod["metadata"].get("ownerReferences", ()))
    }
    wanted = [f"{metadata['name']}-{ordinal}" for ordinal in range(spec.get("replicas", 1))]
    for ordinal, name in enumerate(wanted):
        # a pod that is being deleted keeps its name until its container has ended
        if store.get("pods", space, name) is None:
            _make_claims(store, stateful_set, name)
            _make_pod(store, stateful_set, name, ordinal)
    for name in mine.keys() - set(wanted):
        store.delete("pods", space, name)


def _make_claims(store: Store, stateful_set: Object, pod: str) -> None:
    space = stateful_set["metadata"]["namespace"]
    for template in stateful_set["spec"].get("volumeClaimTemplates", ()):
        name = f"{template['metadata']['name']}-{pod}"
        if store.get("persistentvolumeclaims", space, name) is None:
            store.create(
                "persistentvolumeclaims",
                space,
                {"metadata": {"name": name}, "spec": copy.deepcopy(template["spec"]), "status": {"phase": "Bound"}},
            )


def _make_pod(store: Store, stateful_set: Object, name: str, ordinal: int) -> None:
    metadata, spec = stateful_set["metadata"], stateful_set["spec"]
    template = copy.deepcopy(spec["template"])
    claims = [
        {"name": claim, "persistentVolumeClaim": {"claimName": f"{claim}-{name}"}}
        for claim in (template["metadata"]["name"] for template in spec.get("volumeClaimTemplates", ()))
    ]
    pod_spec = template["spec"]
    pod_spec |= {"hostname": name, "subdomain": spec["serviceName"]}
    pod_spec["volumes"] = [*pod_spec.get("volumes", ()), *claims]
    labels = {**template["metadata"]["labels"], _POD_NAME: name, _POD_INDEX: str(ordinal)}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": labels,
            "annotations": template["metadata"].get("annotations", {}),
            "ownerReferences": [{"kind": "StatefulSet", "name": metadata["name"], "uid": metadata["uid"]}],
        },
        "spec": {"restartPolicy": "Always", **pod_spec},
        "status": {"phase": "Pending"},
    }
    store.create("pods", metadata["namespace"], pod)
