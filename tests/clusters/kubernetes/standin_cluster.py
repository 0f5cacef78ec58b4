"""A stand-in Kubernetes cluster, for machines without a real one.

Neither Debian, PyPI nor npm has kube-apiserver, k3s or kwok. This is not Kubernetes: its API, controllers and kubelet
are the few hundred lines of standin_*.py. Real parts: the validation of objects (the published schemas), the clients
(Kubernetes' Python client, kubectl), and what runs in its pods (the lab's agent and ranks, as pid 1 of containers).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import yaml
from standin_api import StandInApi
from standin_controllers import Controllers
from standin_kubelet import Kubelet
from standin_store import Store
from waiting import wait_until

import labkit

NAMESPACE = "lab"


class StandInCluster:
    """Nodes `node-a`, `node-b`; an image `lab:1`, and `rooted:1`, which runs as root."""

    def __init__(self, folder: Path, gpus: dict[str, int] | None = None, images: tuple[str, ...] = ()) -> None:
        """gpus: of each node; images: further ones, which run as an ordinary user."""
        self.store = Store()
        self.kubeconfig = folder / "kubeconfig"
        self.certificate = folder / "certificate.pem"
        make_certificate(self.certificate)
        self.api = StandInApi(self.store, "a-token", self.certificate)
        environment = {
            # the image contains torch's commands and labkit: these
            "PATH": os.pathsep.join([f"{sys.prefix}/bin", os.environ["PATH"]]),
            "PYTHONPATH": str(Path(labkit.__file__).parents[1]),
        }
        users = {"lab:1": 1000, "rooted:1": 0} | dict.fromkeys(images, 1000)
        self.kubelet = Kubelet(self.store, folder / "kubelet", users, environment)
        self.api.read_log = self.kubelet.read_log
        self.controllers = Controllers(self.store, gpus or {"node-a": 8, "node-b": 8})
        self.write_kubeconfig(self.api.url)

    def write_kubeconfig(self, server: str, token: str = "a-token", **user: object) -> None:
        """user: other ways to log in than by the token."""
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "standin", "cluster": {"server": server, "certificate-authority": str(self.certificate)}},
                {"name": "gone", "cluster": {"server": "https://127.0.0.1:1"}},
            ],
            "users": [{"name": "learner", "user": user or {"token": token}}],
            "contexts": [
                {"name": "lab", "context": {"cluster": "standin", "user": "learner", "namespace": NAMESPACE}},
                {"name": "gone", "context": {"cluster": "gone", "user": "learner"}},
            ],
            "current-context": "lab",
        }
        self.kubeconfig.write_text(yaml.safe_dump(content))

    def close(self) -> None:
        self.controllers.close()
        self.kubelet.close()
        self.api.close()

    def names(self) -> list[str]:
        """Return the names of all objects: `jobs/labkit-...`."""
        with self.store.changed:
            return [f"{plural}/{name}" for plural, _, name in self.store.objects if plural != "events"]

    def wait_until_empty(self) -> None:
        """Return when there are no objects any more: the cluster deletes in its own time."""
        wait_until(lambda: not self.names(), self.names)


def make_certificate(file: Path) -> None:
    """Make a certificate as clusters do: from an authority that only the kubeconfig knows."""
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", str(file)]
    names = ["-subj", "/CN=stand-in", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        ["openssl", "req", "-x509", "-days", "2", *key, *names, "-out", str(file)], check=True, capture_output=True
    )
