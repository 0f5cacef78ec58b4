"""JupyterHub's settings for GPUs that cells borrow."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from autograder.classroom import addresses, configured
from autograder.classroom.configured import Classroom
from autograder.classroom.site import GPU_SERVICE, Gpus, Slurm
from labkit.clusters.gpu_ledger import ADDRESS
from labkit.clusters.kinds import PRESETS


def configure(c: Any, classroom: Classroom, gpus: Gpus) -> None:
    """Add the ledger to JupyterHub `c`, and let servers ask it with their own tokens.

    Roles, scopes of tokens and spawner are set.
    """
    command = [sys.executable, "-P", "-m", "autograder.classroom.gpus.service"]
    passed_on = {name: os.environ[name] for name in ("SLURM_CONF",) if name in os.environ}
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
    slurm = classroom.site.servers.slurm
    assert slurm is not None, "site.load has checked it"
    c.SlurmSpawner.environment.update(environment(classroom, gpus, slurm))


def environment(classroom: Classroom, gpus: Gpus, slurm: Slurm) -> dict[str, str]:
    """Return the variables of learners' servers."""
    preset = {"nnodes": gpus.nnodes, "gpus_per_node": gpus.gpus_per_node, "time": str(gpus.longest_minutes)}
    if gpus.partition:
        preset["partition"] = gpus.partition
    site = classroom.site
    # with names of their own, services are reached by these alone
    hub = "" if site.hub.subdomain_host else slurm.hub_address or site.hub.address
    return {PRESETS: json.dumps({gpus.cluster: preset}), ADDRESS: f"{hub}{addresses.service(site, GPU_SERVICE)}/mine"}
