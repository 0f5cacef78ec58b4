"""JupyterHub's settings for GPUs that cells borrow."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from autograder.classroom import addresses, configured
from autograder.classroom.configured import Classroom
from autograder.classroom.site import GPU_SERVICE, Gpus, Site
from labkit.clusters.gpu_ledger import ADDRESS
from labkit.clusters.kinds import PRESETS
from labkit.clusters.kubernetes.login import HUB

_PASSED_ON = ("SLURM_CONF", "KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")
"""Variables by which the service finds the cluster."""


def configure(c: Any, classroom: Classroom, gpus: Gpus) -> None:
    """Add the ledger to JupyterHub `c`, and let servers ask it with their own tokens.

    Call it after the roles, the scopes of tokens and the spawner are set.
    """
    command = [sys.executable, "-P", "-m", "autograder.classroom.gpus.service"]
    passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    c.JupyterHub.services.append(
        {
            "name": GPU_SERVICE,
            "url": classroom.gpus_url,
            "command": configured.ending_with_hub(command),
            "environment": {**classroom.service_environment, **configured.passed_on(), **passed_on},
            "oauth_no_confirm": True,
        }
    )
    access = f"access:services!service={GPU_SERVICE}"
    next(role for role in c.JupyterHub.load_roles if role["name"] == "user")["scopes"].append(access)
    c.Spawner.server_token_scopes.append(access)
    variables = environment(classroom.site, gpus)
    if gpus.cluster == "slurm":
        c.SlurmSpawner.environment.update(variables)
    else:  # KubeSpawner takes values for templates
        escaped = {name: text.replace("{", "{{").replace("}", "}}") for name, text in variables.items()}
        c.Spawner.environment.update(escaped)


def environment(site: Site, gpus: Gpus) -> dict[str, str]:
    """Return the variables of learners' servers."""
    preset: dict[str, Any] = {"nnodes": gpus.nnodes, "gpus_per_node": gpus.gpus_per_node}
    if gpus.kubernetes is not None:
        pods = gpus.kubernetes
        preset |= {"timeout": 60 * gpus.longest_minutes, "objects": "job"}
        preset |= {"image": pods.image, "namespace": pods.namespace, "cpus": pods.cpus, "memory": pods.memory}
        variables = {ADDRESS: f"{pods.hub_address}/mine", HUB: f"{pods.hub_address}/kubernetes"}
    else:
        slurm = site.servers.slurm
        assert slurm is not None, "site.load has checked it"
        preset["time"] = str(gpus.longest_minutes)
        preset |= {"partition": gpus.partition} if gpus.partition else {}
        # services with host names of their own are reached by these alone
        hub = "" if site.hub.subdomain_host else slurm.hub_address or site.hub.address
        variables = {ADDRESS: f"{hub}{addresses.service(site, GPU_SERVICE)}/mine"}
    return {PRESETS: json.dumps({gpus.cluster: preset}), **variables}
