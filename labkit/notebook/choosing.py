"""`%cluster`: where cells run from now on."""

from __future__ import annotations

import argparse
import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from IPython.core.error import UsageError

from labkit.clusters import Cluster, InvalidJob
from labkit.clusters.kubernetes import KubernetesCluster, kubernetes
from labkit.clusters.local import local
from labkit.clusters.slurm import SlurmCluster, slurm
from labkit.clusters.virtual import virtual
from labkit.clusters.virtual.scheduler.faults import Fault, parse
from labkit.hardware import GPUS, LINKS, PRESETS, STORAGE
from labkit.hardware.settings import parse as parse_setting
from labkit.notebook.magics import Magic, at_least_one, duration, ranks_per_node, seconds

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

KINDS = ("virtual", "local", "slurm", "kubernetes")
_OPTIONS = {
    "virtual": (
        *("nnodes", "nproc_per_node", "gpu", "intra_node", "inter_node", "nics_per_node"),
        *("switch_gb_per_s", "nodes_per_rack", "oversubscription", "host_link", "storage", "settings"),
        *("faults", "fake"),
    ),
    "local": ("nnodes", "nproc_per_node", "backend", "lose_node", "join_node"),
    "slurm": (
        *("nnodes", "nproc_per_node", "backend", "partition", "account", "time", "gpus_per_node", "cpus_per_task"),
        *("qos", "constraint", "sbatch_options", "keep", "python"),
    ),
    "kubernetes": (
        *("nnodes", "nproc_per_node", "backend", "gpus_per_node", "image", "namespace", "context", "cpus", "memory"),
        *("service_account", "pod_template", "objects", "timeout"),
    ),
}
_DRY_RUN = ("slurm", "kubernetes")


@dataclass
class Choice:
    """The cluster on which cells run: the learner's choice; by default two processes on this machine."""

    chosen: Cluster | None = None

    @property
    def cluster(self) -> Cluster:
        return self.chosen or local(nproc_per_node=2)

    def release(self) -> bool:
        """Release the nodes that are kept between cells; return False when there are none."""
        return isinstance(self.chosen, SlurmCluster) and self.chosen.release()

    def describe(self) -> str:
        """One-line description; mentions if it is the default."""
        return self.cluster.describe() + ("" if self.chosen else " (the default; %cluster chooses another)")


def magics(choice: Choice) -> list[Magic]:
    """`%cluster`, which sets `choice`."""

    def run(shell: InteractiveShell, options: argparse.Namespace, cell: str) -> None:
        given = {name: value for name, value in vars(options).items() if value is not None}
        kind, dry_run = given.pop("kind", None), given.pop("dry_run", False)
        if kind == "release" and not given:
            print("the nodes are released" if choice.release() else "no nodes are kept")
            return
        if dry_run:
            print(_dry_run(kind, given), end="")
            return
        if kind is not None:
            chosen = make(kind, given)
            try:
                _require(chosen)
            except InvalidJob as error:
                raise InvalidJob(f"{error}; cells still run on {choice.cluster.describe()}") from None
            choice.release()
            choice.chosen = chosen
        elif given:
            raise InvalidJob(f"name the kind of cluster: %cluster {' or %cluster '.join(KINDS)}")
        print(choice.describe())

    magic = Magic(
        "cluster",
        run,
        """Choose where cells run from now on; without arguments, show the current cluster.

        %cluster virtual dgx-a100 --nnodes 4
        %cluster local --nproc-per-node 4
        %cluster slurm --partition gpu --nnodes 2 --gpus-per-node 4 --time 30 --keep 10m
        %cluster kubernetes --namespace course --nnodes 2 --gpus-per-node 8 --image registry/lab:1
        %cluster release
        """,
        words=lambda: [*KINDS, "release", *PRESETS],
    )
    magic.option("kind", nargs="?", help=f"{' or '.join(KINDS)}; or release: give up nodes that are kept")
    magic.option("preset", nargs="?", help=f"virtual only: name of a machine ({', '.join(PRESETS)}) or a file")
    magic.option("--nnodes", type=at_least_one, metavar="N", help="number of nodes")
    magic.option("-n", "--nproc-per-node", type=ranks_per_node, metavar="N", help="ranks on each node; gpu, cpu, auto")
    magic.option("--gpu", help=f"virtual only: {', '.join(GPUS)}")
    magic.option("--intra-node", metavar="LINK", help=f"virtual only: link inside a node ({', '.join(LINKS)})")
    magic.option("--inter-node", metavar="LINK", help="virtual only: link between nodes")
    magic.option("--nics-per-node", type=at_least_one, metavar="N", help="virtual only: network cards per node")
    magic.option("--switch-gb-per-s", type=float, metavar="X", help="virtual only: bandwidth between a node's GPUs")
    magic.option("--nodes-per-rack", type=at_least_one, metavar="N", help="virtual only: nodes per rack")
    magic.option(
        "--oversubscription", type=float, metavar="X", help="virtual only: a rack's card bandwidth over its uplink's"
    )
    magic.option("--host-link", metavar="LINK", help="virtual only: link of each GPU to host memory")
    magic.option("--storage", help=f"virtual only: a node's storage ({', '.join(STORAGE)})")
    magic.option(
        "--set", dest="settings", action="append", type=_setting, metavar="NAME=VALUE",
        help="virtual only, repeatable: gpu.memory_gb=40, inter_node.gb_per_s=20, and any other field",
    )  # fmt: skip
    magic.option(
        "--fault", dest="faults", action="append", type=_fault, metavar="FAULT",
        help='virtual only, repeatable: "kill(3, at=0.5)", "slow(2, factor=1.5)", "link(node=1)", "jitter(seed=0)"',
    )  # fmt: skip
    magic.option(
        "--fake", action="store_const", const=True,
        help="virtual only: tensors have shapes but no data, so that a model of any size runs",
    )  # fmt: skip
    magic.option("--backend", help="real ranks only: gloo or nccl")
    magic.option(
        "--lose-node", action="append", type=seconds, metavar="S",
        help="local only, repeatable: remove a node S seconds after the ranks have started",
    )  # fmt: skip
    magic.option(
        "--join-node", action="append", type=seconds, metavar="S",
        help="local only, repeatable: a node joins after S seconds and is missing until then",
    )  # fmt: skip
    magic.option("--gpus-per-node", type=at_least_one, metavar="N", help="slurm, kubernetes: GPUs per node")
    magic.option("--partition", metavar="NAME", help="slurm only: as for sbatch, like the next six")
    magic.option("--account", metavar="NAME", help="slurm only: account to charge")
    magic.option("--time", metavar="LIMIT", help="slurm only: time limit for holding the nodes, minutes or HH:MM:SS")
    magic.option("--cpus-per-task", type=at_least_one, metavar="N", help="slurm only: cores per rank")
    magic.option("--qos", metavar="NAME", help="slurm only: quality of service")
    magic.option("--constraint", metavar="FEATURES", help="slurm only: features that nodes must have")
    magic.option(
        "--sbatch", dest="sbatch_options", action="append", metavar="OPTION",
        help='slurm only, repeatable: any other sbatch option, "--sbatch=--reservation=course"',
    )  # fmt: skip
    magic.option(
        "--keep", type=duration, metavar="TIME", help="slurm only: keep the nodes this long for the next cell, 10m"
    )
    magic.option("--python", metavar="PATH", help="slurm only: the interpreter on the nodes, if its path differs")
    magic.option("--image", help="kubernetes only: the container image that ranks run in, with labkit and torch")
    magic.option("--namespace", metavar="NAME", help="kubernetes only: namespace for pods, if not the kubeconfig's")
    magic.option("--context", metavar="NAME", help="kubernetes only: kubeconfig context, if not the current one")
    magic.option("--cpus", metavar="N", help="kubernetes only: cores per pod: 8, 500m")
    magic.option("--memory", metavar="SIZE", help="kubernetes only: memory per pod: 64Gi")
    magic.option("--service-account", metavar="NAME", help="kubernetes only: account that pods run as")
    magic.option(
        "--pod-template", metavar="FILE",
        help="kubernetes only: YAML merged into each pod: nodeSelector, tolerations, volumes, imagePullSecrets",
    )  # fmt: skip
    magic.option("--objects", metavar="KIND", help="kubernetes only: job, trainjob (Kubeflow Trainer), or auto")
    magic.option(
        "--timeout", type=duration, metavar="TIME", help="kubernetes only: stop a run's ranks after this long, 30m"
    )
    magic.option(
        "--dry-run",
        action="store_const",
        const=True,
        help="slurm, kubernetes: show what would be submitted, without choosing the cluster",
    )
    return [magic]


def _require(cluster: Cluster) -> None:
    """Raise `InvalidJob` when the cluster cannot be reached."""
    if isinstance(cluster, SlurmCluster):
        cluster.require()
    # describing a Kubernetes cluster contacts it
    cluster.describe()


def _dry_run(kind: str | None, options: dict[str, object]) -> str:
    if kind not in _DRY_RUN:
        raise UsageError(f"%cluster: --dry-run is for {' and '.join(_DRY_RUN)}, where jobs are submitted")
    cluster = make(kind, options)
    assert isinstance(cluster, SlurmCluster | KubernetesCluster)
    return cluster.dry_run()


def _setting(text: str) -> tuple[str, object]:
    try:
        return parse_setting(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _fault(text: str) -> Fault:
    try:
        return parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def make(kind: str, options: dict[str, object]) -> Cluster:
    """A cluster of `kind` with the magic's options. Raises `InvalidJob` or `UsageError` for options that do not fit."""
    if kind not in KINDS:
        near = difflib.get_close_matches(kind, [*KINDS, *(f"virtual {name}" for name in PRESETS)], n=1, cutoff=0.5)
        offer = f"did you mean %cluster {near[0]}?" if near else f"available: {', '.join(KINDS)}"
        raise UsageError(f"%cluster: unknown kind of cluster {kind!r}; {offer}")
    preset = options.pop("preset", None)
    if kind != "virtual" and preset is not None:
        raise UsageError(f"%cluster: unexpected argument {preset!r}; presets are for virtual clusters")
    for name in options:
        if name not in _OPTIONS[kind]:
            raise UsageError(f"%cluster: --{name.replace('_', '-')} is not an option of {kind} clusters")
    if kind != "local" and isinstance(words := options.get("nproc_per_node"), str):
        raise UsageError(f"%cluster: --nproc-per-node {words} is for local clusters; on {kind}, give a number")
    if kind == "local":
        return local(**options)  # type: ignore[arg-type]  # checked by the parser, and by local()
    if kind == "slurm":
        return slurm(**options)  # type: ignore[arg-type]  # checked by the parser, and by slurm()
    if kind == "kubernetes":
        return kubernetes(**options)  # type: ignore[arg-type]  # checked by the parser, and by kubernetes()
    if "settings" in options:
        options["settings"] = dict(options["settings"])  # type: ignore[call-overload]  # pairs, as the parser made them
    return virtual(preset, **options)  # type: ignore[arg-type]  # checked by the parser, and by virtual()
