"""The Kubernetes cluster: every node is a pod of an indexed Job, every rank a process in one."""

from __future__ import annotations

import functools
import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from labkit.clusters.agent import LaunchPlan
from labkit.clusters.cluster import OnOutput, OnState
from labkit.clusters.job import GpusOrCores, InvalidJob, Job
from labkit.clusters.kubernetes import manifest, torchrun_job, trainjob
from labkit.clusters.kubernetes.api import Api
from labkit.clusters.kubernetes.errors import KubernetesError
from labkit.clusters.kubernetes.login import as_person
from labkit.clusters.kubernetes.manifest import Names, Object, Shape
from labkit.clusters.kubernetes.pod_template import read_template
from labkit.clusters.kubernetes.sessions import delete_orphans, session
from labkit.clusters.kubernetes.submission import Submission
from labkit.clusters.local import rank as local_rank
from labkit.clusters.run import Run
from labkit.clusters.run_store import new_secret
from labkit.transport import pickled

IMAGE_VARIABLE = "LABKIT_IMAGE"
"""Environment variable for the image if the learner names none: set by whoever runs the hub."""
_TIMEOUT_SECONDS = 3600.0
_SILENCE_SECONDS = 600.0
_PORTS = range(20_000, 30_000)
"""Ports below those that systems assign themselves. Pods that share a node's network must not use the same one."""
Objects = Literal["auto", "job", "trainjob"]


@dataclass(frozen=True)
class KubernetesCluster:
    """Pods of a Kubernetes cluster; created by `kubernetes`."""

    shape: Shape
    namespace: str | None
    context: str | None
    objects: Objects
    timeout: float
    silence: float
    backend: str | None
    _swept: set[str] = field(default_factory=set, compare=False, repr=False)

    @property
    def kind(self) -> str:
        return "kubernetes"

    @property
    def nnodes(self) -> int:
        return self.shape.nnodes

    @property
    def nproc_per_node(self) -> int:
        return self.shape.nproc_per_node

    def describe(self) -> str:
        """`kubernetes: 2 pods of 8 ranks, 8 GPUs each, image lab:1, namespace default of https://...`.

        Raises `KubernetesError` if the cluster is out of reach.
        """
        shape = self.shape
        gpus = f", {shape.gpus_per_node} GPU{'s' * (shape.gpus_per_node > 1)}" if shape.gpus_per_node else ""
        each = " each" * (shape.nnodes > 1)
        return (
            f"kubernetes: {_count(shape.nnodes, 'pod')} of {_count(shape.nproc_per_node, 'rank')}{gpus}{each}, "
            f"image {shape.image}, {'a Job' if self._patching is None else 'a TrainJob'} in namespace "
            f"{self._api.namespace} of {self._api.address}; a run is stopped after {self.timeout:g} s"
        )

    def require(self) -> None:
        """Raise `KubernetesError` if the cluster is out of reach."""
        self.describe()  # contacts it

    def dry_run(self) -> str:
        """The objects of a run as YAML, for `kubectl create -f`; without the code to run."""
        import yaml

        shape = self.shape
        try:
            namespace, patching = self._api.namespace, self._patching
        except KubernetesError:  # a manifest needs no cluster
            namespace, patching = self.namespace or "default", None
        names = Names("labkit-dry-run", namespace, "dry-run")
        secret = manifest.secret(names, b"")
        del secret["data"]
        secret["stringData"] = {manifest.REQUEST: "the cell and what it needs: left out here", manifest.ALIVE: "0"}
        things = [secret, *self._things(names, shape, self.timeout, patching)]
        return str(yaml.safe_dump_all(things, sort_keys=False, default_flow_style=False))

    def torchrun_manifest(
        self, name: str, command: Callable[[str, str, str], Sequence[str]], files: Mapping[str, str]
    ) -> str:
        """The objects of a job that runs torchrun in each pod, for `kubectl apply`; see `ManifestCluster`.

        They have no namespace, unless one was chosen: kubectl's own is used.
        """
        names = Names(_dns_label(name), self.namespace or "", "")
        master = "127.0.0.1" if self.nnodes == 1 else names.master
        words = command(master, torchrun_job.NODE_NUMBER, torchrun_job.PROGRAM_FOLDER)
        return torchrun_job.as_yaml(torchrun_job.torchrun_job(names, self.shape, words, files))

    def run(self, job: Job, on_output: OnOutput | None = None, on_state: OnState | None = None) -> Run:
        """Run `job` in fresh pods; see `Cluster.run`. `on_state` may be called from another thread.

        Raises `KubernetesError` if the cluster rejects it, cannot start it, or is out of reach.
        """
        shape = self._shape_of(job)
        if job.min_nnodes is not None or job.max_restarts:
            raise InvalidJob("nodes that come and go, and restarts, are for local clusters; not on Kubernetes")
        world_size = shape.nnodes * shape.nproc_per_node
        if job.call is not None and len(job.arguments) != world_size:
            raise InvalidJob(f"arguments for {len(job.arguments)} ranks, but {world_size} are asked for")
        api, patching = self._api, self._patching
        self._sweep(api)
        timeout = job.timeout or self.timeout
        names = Names(f"labkit-{secrets.token_hex(5)}", api.namespace, session.name)
        plan = LaunchPlan(
            run=names.run,
            entry=local_rank.ENTRY,
            job=job,
            nnodes=shape.nnodes,
            nproc_per_node=shape.nproc_per_node,
            master_addr="127.0.0.1" if shape.nnodes == 1 else trainjob.master(names) if patching else names.master,
            master_port=secrets.choice(_PORTS) if shape.nnodes > 1 else 0,
            secret=new_secret(),
            backend=self.backend,
            timeout=timeout,
        )
        try:
            secret = manifest.secret(names, manifest.packed(plan))
        except InvalidJob as error:
            raise InvalidJob(f"{error}. {_largest(job)}") from None
        *others, main = self._things(names, shape, timeout, patching)
        with Submission(api, main, [secret, *others], plan) as submission:
            submission.keep_alive(self.silence / 10)
            return submission.follow(on_output, on_state)

    def _things(self, names: Names, shape: Shape, timeout: float, patching: trainjob.Patching | None) -> list[Object]:
        """The objects to create beside the Secret; the last one owns the others."""
        if patching is not None:
            return [trainjob.train_job(names, shape, timeout, self.silence, patching)]
        return [manifest.service(names), manifest.job(names, shape, timeout, self.silence)]

    def _shape_of(self, job: Job) -> Shape:
        asked = job.nproc_per_node or self.shape.nproc_per_node
        nproc = asked if isinstance(asked, int) else _ranks_per_node(asked, self.shape.gpus_per_node, self.shape.cpus)
        return replace(self.shape, nnodes=job.nnodes or self.shape.nnodes, nproc_per_node=nproc)

    @functools.cached_property
    def _api(self) -> Api:
        return Api(as_person(self.context), self.namespace)

    @functools.cached_property
    def _patching(self) -> trainjob.Patching | None:
        """The format of TrainJobs here; None for plain Jobs."""
        if self.objects == "job":
            return None
        patching, why_not = trainjob.available(self._api, self.shape.pod_template)
        if patching is None and self.objects == "trainjob":
            raise KubernetesError(f"a TrainJob cannot be used: {why_not}")
        return patching

    def _sweep(self, api: Api) -> None:
        """Once: delete objects of kernels that were killed."""
        if api.address not in self._swept:
            delete_orphans(api)
            self._swept.add(api.address)


def kubernetes(
    nnodes: int = 2,
    *,
    image: str | None = None,
    gpus_per_node: int = 0,
    nproc_per_node: int | GpusOrCores | None = None,
    namespace: str | None = None,
    context: str | None = None,
    cpus: str | float | None = None,
    memory: str | None = None,
    service_account: str | None = None,
    pod_template: str | Path | Mapping[str, Any] | None = None,
    objects: Objects = "auto",
    backend: str | None = None,
    timeout: float = _TIMEOUT_SECONDS,
    silence: float = _SILENCE_SECONDS,
) -> KubernetesCluster:
    """A cluster of pods, one for each node.

    image: with labkit and torch (cluster/containers/ranks.Containerfile builds one); None: the value of LABKIT_IMAGE.
    nproc_per_node: ranks in each pod; None: one for each GPU, or one without GPUs.
    namespace, context: of the kubeconfig; None: its own values.
    cpus, memory: of each pod, in Kubernetes' format (`8`, `64Gi`); None: the namespace's defaults.
    pod_template: merged over the pods' template, or the YAML file that holds it: nodeSelector, tolerations, volumes,
        imagePullSecrets, ... The container is called `ranks`.
    objects: kind of object: a `trainjob` of Kubeflow Trainer, a `job`; `auto`: a TrainJob if the cluster has them.
    backend: for `init_process_group()` without one; None: nccl if there is a GPU for each rank.
    timeout: seconds that ranks may run, without the wait for nodes.
    silence: seconds for which pods go on after the notebook that waits for them has vanished.
    Raises `InvalidJob` for an invalid value, `KubernetesError` if no cluster is configured.
    """
    for name, number, least in (("nnodes", nnodes, 1), ("gpus_per_node", gpus_per_node, 0)):
        if type(number) is not int or number < least:
            raise InvalidJob(f"{name} must be a whole number of at least {least}, got {number!r}")
    for name, seconds in (("timeout", timeout), ("silence", silence)):
        if not seconds > 0:
            raise InvalidJob(f"{name} must be more than 0 seconds, got {seconds!r}")
    if objects not in ("auto", "job", "trainjob"):
        raise InvalidJob(f"objects must be auto, job or trainjob, got {objects!r}")
    if backend not in (None, "gloo", "nccl"):
        raise InvalidJob(f"backend must be gloo or nccl, got {backend!r}")
    image = image or os.environ.get(IMAGE_VARIABLE)
    if not image:
        raise InvalidJob(
            "say which container image the ranks run in: --image registry/name:tag. It needs labkit and torch; "
            "docs/kubernetes.md says how to make one"
        )
    if nproc_per_node is None:
        nproc_per_node = gpus_per_node or 1
    elif isinstance(nproc_per_node, str):
        nproc_per_node = _ranks_per_node(nproc_per_node, gpus_per_node, str(cpus or ""))
    if nproc_per_node < 1:
        raise InvalidJob(f"nproc_per_node must be a whole number of at least 1, got {nproc_per_node!r}")
    shape = Shape(
        image=image,
        nnodes=nnodes,
        nproc_per_node=nproc_per_node,
        gpus_per_node=gpus_per_node,
        cpus=str(cpus or ""),
        memory=memory or "",
        service_account=service_account or "",
        pod_template=read_template(pod_template),
    )
    return KubernetesCluster(shape, namespace, context, objects, float(timeout), float(silence), backend)


def _ranks_per_node(nproc_per_node: GpusOrCores, gpus: int, cpus: str) -> int:
    """torchrun's words as a number."""
    if nproc_per_node == "gpu" and not gpus:
        raise InvalidJob("nproc_per_node=gpu: say how many GPUs a pod has, with --gpus-per-node")
    if nproc_per_node != "cpu" and gpus:
        return gpus
    if not cpus:
        raise InvalidJob(f"nproc_per_node={nproc_per_node}: say how many cores a pod has, with --cpus")
    return max(1, int(float(cpus.removesuffix("m")) / (1000 if cpus.endswith("m") else 1)))


def _largest(job: Job) -> str:
    """The largest part of a job, and what to do about it."""
    sizes: Mapping[str, Callable[[], int]] = {
        "the cell": lambda: len(job.source or ""),
        "the function and what it closes over": lambda: len(job.function or b""),
        "the arguments": lambda: len(pickled.dumps(job.arguments)),
        "the exercise modules": lambda: sum(map(len, job.modules.values())),
    }
    name, size = max(((name, size()) for name, size in sizes.items()), key=lambda item: item[1])
    return f"Most of it is {name} ({size:,} bytes): have the ranks make or load data themselves"


def _dns_label(name: str) -> str:
    """`train-2` for `Train_2`: the names of Services and pods follow RFC 1035."""
    label = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:50].rstrip("-")
    return label if label[:1].isalpha() else f"job-{label}".rstrip("-")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number > 1)}"
