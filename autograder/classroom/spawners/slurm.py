"""Servers in jobs of a Slurm cluster, by batchspawner. Learners are users of the cluster, and own their jobs.

The homes are the cluster's. nbgrader's exchange is on a file system that all nodes share, with nbgrader's own
permissions for several users: `inbound` can be written to but not listed, and submissions belong to their authors.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import batchspawner
from batchspawner.api import BatchSpawnerAPIHandler
from jupyterhub.apihandlers import default_handlers
from tornado import web
from traitlets import default

from autograder.classroom import addresses
from autograder.classroom.folders import Folders
from autograder.classroom.site import Site, Slurm
from autograder.classroom.spawners import system_users
from labkit.challenges import sending
from labkit.clusters.job import InvalidJob
from labkit.clusters.slurm import clients
from labkit.hub import idle_minutes
from labkit.progress.home import CLASSROOM_PAGE

_SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=labkit-server
#SBATCH --output={{homedir}}/.labkit-server.log
#SBATCH --chdir={{homedir}}
#SBATCH --export={{keepvars}}
#SBATCH --no-requeue
#SBATCH --time={{runtime}}
#SBATCH --mem={{memory}}
#SBATCH --cpus-per-task={{nprocs}}
{% if partition %}#SBATCH --partition={{partition}}
{% endif %}{% if gres %}#SBATCH --gres={{gres}}
{% endif %}
{{prologue}}
export LABKIT_WORKSPACE="$HOME"
exec {{cmd}}
"""


_PASSED_ON = ("PATH", "LANG", "LC_ALL", "SLURM_CONF")
"""Variables of the hub that learners' servers and Slurm's commands have."""


class PortHandler(BatchSpawnerAPIHandler):  # type: ignore[misc]  # batchspawner has no types
    """Takes the port of a server that has started, and nothing else.

    batchspawner's own handler sets any attribute of the spawner: with the token of their server, a learner could
    replace the commands that the hub runs.
    """

    @web.authenticated
    def post(self) -> None:
        token, body = self.get_auth_token(), self.get_json_body()
        port = body.get("port") if isinstance(body, dict) else None
        spawner = next((each for each in self.current_user.spawners.values() if each.api_token == token), None)
        if not token or spawner is None or spawner.pending != "spawn":
            raise web.HTTPError(403, "only a server that is starting reports its port")
        if set(body or ()) != {"port"} or type(port) is not int or not 1024 <= port < 65536:
            raise web.HTTPError(400, "a server reports one port")
        spawner.port = port
        self.set_status(201)
        self.finish({})


class SlurmSpawner(batchspawner.SlurmSpawner):  # type: ignore[misc]
    """A job of the learner's for each server. Instructors stop it by the hub, the learner also by scancel."""

    @default("exec_prefix")
    def _become_learner(self) -> str:
        """Return the prefix of sbatch, squeue and scancel by which the hub becomes the learner."""
        return " ".join(_becoming(self.user.name))

    async def run_command(self, cmd: str, input: str | None = None, env: Mapping[str, str] | None = None) -> str:
        """Run one of Slurm's commands as the learner, who can read the environment of such a process."""
        output: str = await super().run_command(cmd, input, _not_secret() if env is None else env)
        return output

    async def start(self) -> tuple[str, int]:
        """Submit the job; return address and port of the server, as soon as it has reported them."""
        self.user_options: dict[str, Any] = {}  # batchspawner would let a request to the API override all settings
        node, port = await super().start()
        # the hub need not resolve the names that Slurm gives to nodes
        self.ip = await asyncio.to_thread(clients.node_address, node)
        return self.ip, port


def _becoming(learner: str) -> list[str]:
    """Return the prefix of a command that the hub runs as a learner."""
    if learner == pwd.getpwuid(os.geteuid()).pw_name:
        return []
    return ["runuser", "-u", learner, "--"] if os.geteuid() == 0 else ["sudo", "-n", "-E", "-u", learner]


def _not_secret() -> dict[str, str]:
    """Return the part of the hub's environment that a command needs which the hub runs as a learner."""
    return {name: os.environ[name] for name in _PASSED_ON if name in os.environ}


def configure(c: Any, site: Site, folders: Folders) -> None:
    """Set JupyterHub's spawner. Servers reach the hub at the address for browsers, and by no other port."""
    slurm = _table(site)
    default_handlers[:] = [entry for entry in default_handlers if entry[1] is not BatchSpawnerAPIHandler]
    default_handlers.append((r"/api/batchspawner", PortHandler))
    c.JupyterHub.spawner_class = SlurmSpawner
    c.JupyterHub.cleanup_servers = False  # the next hub finds the jobs
    c.Spawner.hub_connect_url = slurm.hub_address or site.hub.public
    spawner = c.SlurmSpawner
    spawner.batchspawner_singleuser_cmd = f"{shlex.quote(slurm.python)} -P -m batchspawner.singleuser"
    spawner.cmd = [shlex.quote(str(_server_program(slurm)))]
    spawner.batch_script = _SCRIPT
    spawner.req_partition, spawner.req_runtime, spawner.req_memory = slurm.partition, slurm.time, slurm.memory
    spawner.req_nprocs, spawner.req_gres = str(slurm.cpus), slurm.gres
    spawner.req_prologue = slurm.prologue
    spawner.env_keep = list(_PASSED_ON)
    spawner.environment = {
        idle_minutes.VARIABLE: str(site.servers.idle_ranks_minutes),
        sending.EXCHANGE: f"{slurm.exchange}/{site.course.name}",
        CLASSROOM_PAGE: addresses.page(site),
    }


def missing(site: Site) -> list[str]:
    """Return which of Slurm's commands, its cluster and the shared folder are missing."""
    return list(_missing(site, _table(site)))


def missing_for(site: Site, people: Sequence[str]) -> list[str]:
    """Return why Slurm would refuse a server."""
    return list(_of_submission(_table(site), people)) if people and shutil.which("sbatch") else []


def _missing(site: Site, slurm: Slurm) -> Iterator[str]:
    try:
        clients.require_slurm()
        known = clients.ask("sinfo", "--noheader", "--format=%R").split()
    except InvalidJob as problem:
        yield f"learners' servers are jobs of Slurm: {problem}"
    else:
        wanted = {"servers.slurm": slurm.partition, "gpus": site.gpus.partition if site.gpus else ""}
        for table, name in wanted.items():
            if name and name not in known:
                yield f"Slurm has no partition {name}; [{table}] partition can be {', '.join(dict.fromkeys(known))}"
    yield from system_users.missing(Path(slurm.exchange))
    change = "runuser" if os.geteuid() == 0 else "sudo"
    if shutil.which(change) is None:
        yield f"the hub submits learners' jobs with {change}, which is not installed"
    server = _server_program(slurm)
    if server.parent.is_dir() and not server.exists():  # otherwise only the nodes may have it
        yield f"there is no {server}: install labkit[lab], jupyterhub and batchspawner with {slurm.python}"


def _of_submission(slurm: Slurm, people: Sequence[str]) -> Iterator[str]:
    """Let Slurm examine the job of a learner's server, without submitting it."""
    options = [f"--time={slurm.time}", f"--mem={slurm.memory}", f"--cpus-per-task={slurm.cpus}"]
    options += [f"--partition={slurm.partition}"] * bool(slurm.partition) + [f"--gres={slurm.gres}"] * bool(slurm.gres)
    try:
        clients.ask(
            *_becoming(people[0]),
            "sbatch",
            "--test-only",
            "--chdir=/",
            *options,
            "--wrap=true",
            variables=_not_secret(),
        )
    except InvalidJob as problem:
        may = (
            ""
            if os.geteuid() == 0
            else ", and sudoers must allow the hub's user sbatch, squeue and scancel as learners"
        )
        yield (
            f"a server of {people[0]} cannot be submitted: {problem}. [servers.slurm] has partition, time, memory, "
            f"cpus and gres{may}"
        )


def _server_program(slurm: Slurm) -> Path:
    return Path(slurm.python).with_name("labkit-hub-server")


def _table(site: Site) -> Slurm:
    assert site.servers.slurm is not None, "site.load has checked it"
    return site.servers.slurm
