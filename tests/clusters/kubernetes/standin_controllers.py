"""Controllers of the stand-in cluster: Jobs and StatefulSets make pods, pods get nodes, TrainJobs become Jobs."""

from __future__ import annotations

import copy
import secrets
import threading
from typing import Any

from standin_stateful_sets import keep_stateful_set
from standin_store import Object, Store, now

_GPU = "nvidia.com/gpu"
_INDEX = "batch.kubernetes.io/job-completion-index"
RUNTIME = {"name": "node", "image": "runtime:1", "command": ["true"]}
"""The container of Kubeflow's torch-distributed runtime."""


class Controllers:
    """Examines everything after every change, and brings it one step further."""

    def __init__(self, store: Store, gpus: dict[str, int]) -> None:
        """gpus: of each node, by its name."""
        self.store = store
        self.gpus = gpus
        self.refuse_pods = ""
        """Reason for refusing pods, in the words of an admission controller."""
        self._over = False
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over = True
        self._thread.join(5)

    def _loop(self) -> None:
        while not self._over:
            with self.store.changed:
                version = self.store.version
                for train_job in self.store.list("trainjobs"):
                    self._make_job(train_job)
                for job in self.store.list("jobs"):
                    self._keep_job(job)
                for stateful_set in self.store.list("statefulsets"):
                    keep_stateful_set(self.store, stateful_set)
                for pod in self.store.list("pods", chosen=lambda pod: not pod["spec"].get("nodeName")):
                    self._schedule(pod)
                if version == self.store.version:
                    self.store.changed.wait(0.2)

    def _make_job(self, train_job: Object) -> None:
        """As Trainer's torch plugin and JobSet do together: names, labels, PET_ variables, patches for pods."""
        metadata, spec = train_job["metadata"], train_job["spec"]
        name, space = f"{metadata['name']}-node-0", metadata["namespace"]
        if self.store.get("jobs", space, name):
            return
        trainer = spec["trainer"]
        container = copy.deepcopy(RUNTIME)
        container |= {key: trainer[key] for key in ("image", "command", "env") if key in trainer}
        container["resources"] = trainer.get("resourcesPerNode", {})
        container["env"] = [*container["env"], {"name": "PET_NNODES", "value": str(trainer["numNodes"])}]
        pod_metadata: Object = {}
        pod_spec: Object = {"restartPolicy": "Never", "subdomain": metadata["name"], "containers": [container]}
        for override in spec.get("podTemplateOverrides", ()):
            _lay_over(pod_metadata, pod_spec, override)
        for patch in spec.get("runtimePatches", ()):
            for job in patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]:
                _lay_over(pod_metadata, pod_spec, job["template"]["spec"]["template"])
        set_label = {"jobset.sigs.k8s.io/jobset-name": metadata["name"]}
        of_job = {"jobset.sigs.k8s.io/replicatedjob-name": "node"}
        pod_metadata["labels"] = {**pod_metadata.get("labels", {}), **set_label, **of_job}
        owners = {"ownerReferences": [{"kind": "TrainJob", "name": metadata["name"], "uid": metadata["uid"]}]}
        self.store.create(
            "services", space, {"metadata": {"name": metadata["name"], **owners}, "spec": {"selector": set_label}}
        )
        count = trainer["numNodes"]
        self.store.create(
            "jobs",
            space,
            {
                "metadata": {"name": name, "labels": set_label, **owners},
                "spec": {
                    "completions": count,
                    "parallelism": count,
                    "completionMode": "Indexed",
                    "backoffLimit": 0,
                    "template": {"metadata": pod_metadata, "spec": pod_spec},
                },
            },
        )

    def _keep_job(self, job: Object) -> None:
        metadata, spec, space = job["metadata"], job["spec"], job["metadata"]["namespace"]
        uid = metadata["uid"]
        mine = self.store.list("pods", space, lambda pod: pod["metadata"]["labels"].get("controller-uid") == uid)
        conditions = job.get("status", {}).get("conditions")
        if conditions:
            return
        if not job.get("status"):
            if self.refuse_pods:
                return self._event(job, "FailedCreate", f"Error creating: {self.refuse_pods}")
            for index in range(spec["completions"]):
                self._make_pod(job, index)
            self.store.change("jobs", job, lambda stored: stored.update(status={"active": spec["completions"]}))
            return
        phases = [pod.get("status", {}).get("phase") for pod in mine]
        lost = len(mine) < spec["completions"] or any(pod["metadata"].get("deletionTimestamp") for pod in mine)
        if "Failed" in phases or lost:
            failed = [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}]
            self.store.change("jobs", job, lambda stored: stored["status"].update(conditions=failed, active=0))
            for pod in mine:
                if pod.get("status", {}).get("phase") not in ("Failed", "Succeeded"):
                    self.store.delete("pods", space, pod["metadata"]["name"])
        elif phases.count("Succeeded") == spec["completions"]:
            complete = [{"type": "Complete", "status": "True"}]
            self.store.change("jobs", job, lambda stored: stored["status"].update(conditions=complete, active=0))

    def _make_pod(self, job: Object, index: int) -> None:
        metadata = job["metadata"]
        template = copy.deepcopy(job["spec"]["template"])
        labels = {"controller-uid": metadata["uid"], "job-name": metadata["name"], _INDEX: str(index)}
        spec = template["spec"]
        spec["hostname"] = f"{metadata['name']}-{index}"
        for container in spec["containers"]:
            field = {"fieldRef": {"fieldPath": f"metadata.labels['{_INDEX}']"}}
            container["env"] = [*container.get("env", ()), {"name": "JOB_COMPLETION_INDEX", "valueFrom": field}]
        own = template.get("metadata", {})
        pod_metadata = {
            "name": f"{metadata['name']}-{index}-{secrets.token_hex(3)[:5]}",
            "labels": {**own.get("labels", {}), **labels},
            "annotations": {_INDEX: str(index)},
            "ownerReferences": [{"kind": "Job", "name": metadata["name"], "uid": metadata["uid"]}],
        }
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": pod_metadata,
            "spec": spec,
            "status": {"phase": "Pending"},
        }
        self.store.create("pods", metadata["namespace"], pod)

    def _schedule(self, pod: Object) -> None:
        if pod["metadata"].get("deletionTimestamp"):
            self.store.delete("pods", pod["metadata"]["namespace"], pod["metadata"]["name"], now_at_once=True)
            return
        need, free = _gpus(pod), dict(self.gpus)
        for other in self.store.list("pods"):
            if other["spec"].get("nodeName") and other["status"]["phase"] in ("Pending", "Running"):
                free[other["spec"]["nodeName"]] -= _gpus(other)
        node = next((name for name in sorted(free, key=lambda name: -free[name]) if free[name] >= need), None)
        condition: Object = {"type": "PodScheduled", "status": "True"}
        if node is None:
            every = f"{len(self.gpus)} Insufficient {_GPU}"
            message = (
                f"0/{len(self.gpus)} nodes are available: {every}. preemption: 0/{len(self.gpus)} nodes are available: "
                f"{len(self.gpus)} No preemption victims found for incoming pod."
            )
            condition = {**condition, "status": "False", "reason": "Unschedulable", "message": message}

        def settle(stored: Object) -> None:
            stored["status"]["conditions"] = [condition]
            if node is not None:
                stored["spec"]["nodeName"] = node

        self.store.change("pods", pod, settle)

    def _event(self, job: Object, reason: str, message: str) -> None:
        name, space = f"{job['metadata']['name']}.{reason.lower()}", job["metadata"]["namespace"]
        if self.store.get("events", space, name) is None:
            about = {"kind": "Job", "name": job["metadata"]["name"], "uid": job["metadata"]["uid"]}
            event = {"metadata": {"name": name}, "involvedObject": about, "type": "Warning", "reason": reason}
            self.store.create("events", space, {**event, "message": message, "lastTimestamp": now()})


def _gpus(pod: Object) -> int:
    return sum(int(c.get("resources", {}).get("limits", {}).get(_GPU, 0)) for c in pod["spec"]["containers"])


def _lay_over(metadata: Object, spec: Object, patch: Object) -> None:
    metadata.update(patch.get("metadata", {}))
    changes: dict[str, Any] = dict(patch.get("spec", {}))
    for change in changes.pop("containers", ()):
        container = next(c for c in spec["containers"] if c["name"] == change["name"])
        container.update({key: value for key, value in change.items() if key != "name"})
    spec.update(changes)
