"""A learner whose server is a job of a real Slurm tries the hub, other learners' jobs, and everything on the node.

Two users of this machine are learners; the hub is root's. `pytest -s` shows what was tried and seen.
"""

from __future__ import annotations

import os
import pwd
import shlex
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from hub_api_attempts import ATTEMPTS, OPTIONS, api_answers, seen_in
from identity_provider import CLIENT, SECRET, identity_provider
from slurm_attempts import TRIES
from slurm_rig import SlurmRig
from small_classroom import ROOT, Classroom, small_classroom
from system_packages import needs_packages
from test_slurm_classroom import ClusterUser
from unix_users import Users, lines_that_open, unix_users
from waiting import BROKEN_SECONDS

from autograder.sandbox import Sandbox
from labkit.linux.free_port import free_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the hub submits jobs as the learners"),
]
EXPECTED = {
    **dict.fromkeys(("secrets in scontrol show job, squeue", "secrets in the folders of Slurm"), "[]"),
    **dict.fromkeys(("secrets in an open home", "secrets among arguments", "secrets in environments"), "[]"),
    "signals to others' processes": "[]",
    **dict.fromkeys(("another's script in the spool", "an open home", "the hub's folder", "root"), "PermissionError"),
    **dict.fromkeys(("others' submissions", "the exchange's outbound", "the exchange's feedback"), "PermissionError"),
    "secrets in the own environment": "['JPY_API_TOKEN', 'JUPYTERHUB_API_TOKEN']",
    "variables of the hub": "KeyError",
    "api/contents of another's server, without a token": "403",
    "api/kernels of another's server, without a token": "403",
    "lab/tree/ of another's server, without a token": "404",
    "api/contents of another's server, with the own token": "403",
    "api/kernels of another's server, with the own token": "403",
    "lab/tree/ of another's server, with the own token": "403",
    "another port for the own server": "403",
}
HUB_SECRET = "a-secret-of-the-hub-s-environment"
SMUGGLED = {
    **OPTIONS,
    "options": "--comment=smuggled\n#SBATCH --partition=closed",
    "account": "x\n#SBATCH --comment=smuggled",
    "keepvars": "ALL",
    "keepvars_extra": "SECRET_OF_THE_HUB",
    "homedir": "/left\n#SBATCH --comment=smuggled",
    "runtime": "25",
    "cmd": "touch /left; true",
    "username": "root",
    "exec_prefix": "touch /left;",
    "batch_script": "#!/bin/bash\n#SBATCH --comment=smuggled\ntouch /left",
}


ABOUT = """
import os
from jupyter_server.serverapp import list_running_servers
print(os.environ["JUPYTERHUB_API_TOKEN"], os.environ["SLURM_JOB_ID"], next(list_running_servers())["port"])
"""


@pytest.fixture
def users() -> Iterator[Users]:
    with unix_users("ada", "grace") as made:
        yield made


@pytest.fixture
def rig(users: Users) -> Iterator[SlurmRig]:
    """One node that all users can enter, with the lab but without the grader."""
    needs_packages("munge", "slurmctld", "slurmd", "slurm-client")
    hidden, own = shlex.quote(str(ROOT / "autograder")), users.folder / "autograder"
    close = f"mkdir {own}\nchmod 700 {own}\nmount --bind {own} {hidden}"
    lines = f"{lines_that_open(users.folder / 'opened')}\n{close}"
    with SlurmRig(users.folder / "slurm", nodes=1, mounts=lines) as rig:
        if not rig.namespaces:
            pytest.skip("needs a machine that allows root to make namespaces")
        yield rig


def classroom_on(rig: SlurmRig, users: Users, tmp_path: Path, provider: str) -> Classroom:
    made = small_classroom(tmp_path)
    made.address = f"http://{rig.address}:{free_port()}"
    made.environment.update(rig.environment, SECRET_OF_THE_HUB=HUB_SECRET)
    lab, exchange, secret = made.learners_lab(users.folder / "lab"), users.folder / "exchange", made.root / "secret"
    exchange.mkdir()
    secret.write_text(SECRET)
    names = ", ".join(f'"{name}"' for name in users.names)
    made.site.write_text(
        f'[hub]\naddress = "{made.address}"\n[course]\nname = "small-course"\nlearners = [{names}]\n'
        f'[login]\nkind = "openid"\n[login.openid]\nissuer = "{provider}"\n'
        f'client_id = "{CLIENT}"\nsecret_file = "{secret}"\n'
        f'[servers]\nkind = "slurm"\nstart_seconds = 600\n[servers.slurm]\nexchange = "{exchange}"\n'
        f'partition = "lab"\ntime = "20"\nmemory = "1000M"\ncpus = 1\n'
        f"prologue = \"export LABKIT_ROOT='{lab}' PYTHONPATH='{lab}'\"\n"
    )
    return made


class Observed(threading.Thread):
    """Looks, as root, for secrets in environments that a user could read: of each process that ever is that user's."""

    def __init__(self, user: str, secret: str) -> None:
        super().__init__(daemon=True)
        self.uid, self.secret = pwd.getpwnam(user).pw_uid, secret.encode()
        self.found: set[str] = set()
        self.seen: set[str] = set()
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.002):
            for name in filter(str.isdigit, os.listdir("/proc")):
                try:
                    if os.stat(f"/proc/{name}/environ").st_uid != self.uid:
                        continue
                    command = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")[0].decode()
                    self.seen.add(os.path.basename(command))
                    if self.secret in Path(f"/proc/{name}/environ").read_bytes():
                        self.found.add(command)
                except OSError:
                    continue


def test_a_hostile_learner_on_slurm_finds_nothing(rig: SlurmRig, users: Users, tmp_path: Path) -> None:
    Sandbox().check()
    ada, _ = users.names
    with identity_provider() as provider:
        ClusterUser.provider = provider
        classroom = classroom_on(rig, users, tmp_path, provider.address)
        observed = Observed(ada, HUB_SECRET)
        observed.start()
        try:
            with classroom.running() as hub:
                _play(rig, users, classroom, hub.process.pid)
        finally:
            observed.over.set()
            observed.join()
        assert observed.found == set() and {"squeue", "sbatch", "scancel"} <= observed.seen, observed.seen
    assert not Path("/left").exists()


def _play(rig: SlurmRig, users: Users, classroom: Classroom, hub: int) -> None:
    ada, grace = users.names
    for name in (f"{ada}\n#SBATCH --uid=0", f"{ada};touch /left", "$(touch /left)", f"../{grace}", "root"):
        stranger = ClusterUser(classroom.address, name)
        answer = stranger.session.get(f"{classroom.address}/hub/api/user", timeout=BROKEN_SECONDS)
        assert answer.status_code == 403, (name, answer.text)
    other = ClusterUser(classroom.address, grace)
    other.start_server()
    users.home(grace).chmod(0o755)  # as on many clusters
    token, job, port = other.run(ABOUT).split()

    learner = ClusterUser(classroom.address, ada)
    assert learner.get("/hub/home").ok
    asked = learner.send("POST", "/hub", f"/api/users/{ada}/server", **SMUGGLED)
    assert asked.status_code in (201, 202, 400), asked.text
    form = {name: str(value) for name, value in SMUGGLED.items()}
    learner.session.post(f"{classroom.address}/hub/spawn", data=form, timeout=BROKEN_SECONDS)
    learner.start_server()
    own = learner.run("import os; print(os.environ['SLURM_JOB_ID'])").strip()
    shown = rig.ask("scontrol", "show", "job", own)
    assert "smuggled" not in shown and f"UserId={ada}(" in shown and "Partition=lab" in shown, shown
    assert "TimeLimit=00:20:00" in shown and f"WorkDir={users.home(ada)}" in shown
    named = learner.send("POST", "/hub", f"/api/users/{ada}/servers/second", **SMUGGLED)
    assert named.status_code in (400, 403, 404), named.text

    statuses = api_answers(learner, grace)
    assert len(statuses) == len(ATTEMPTS) and set(statuses.values()) <= {"400", "403", "404", "405"}, statuses
    ports = _ports(hub)
    known = {
        **{"JOB": job, "OTHER": grace, "SECRETS": [token, HUB_SECRET], "SLURM": str(rig.folder)},
        **{
            "HOME": str(users.home(grace)),
            "HUB": str(classroom.folder),
            "EXCHANGE": f"{users.folder}/exchange/small-course",
        },
        **{"SERVER": int(port), "HOST": rig.address, "PORTS": sorted(ports), "LIMIT": BROKEN_SECONDS},
    }
    said = learner.run("\n".join([*(f"{name} = {value!r}" for name, value in known.items()), TRIES]))
    seen = seen_in(said)
    jobs = {
        what: answer
        for what, answer in seen.items()
        if what.startswith("s") and not what.startswith(("secrets", "signals"))
    }
    assert len(jobs) == 15 and set(jobs.values()) == {"refused"}, said
    assert {what: answer for what, answer in seen.items() if what not in jobs} == EXPECTED | {
        "ports of the hub's machine": f"[{urlsplit(classroom.address).port}]",  # not those of its API and services
    }, said
    assert rig.ask("squeue", "--noheader", "--format=%T", f"--jobs={job}") == "RUNNING"
    assert other.run("print(1 + 1)") == "2\n"


def _ports(hub: int) -> set[int]:
    """TCP ports at which the hub and what it has started listen."""
    processes = [psutil.Process(hub), *psutil.Process(hub).children(recursive=True)]
    found = [one for process in processes for one in process.net_connections(kind="tcp")]
    return {one.laddr.port for one in found if one.status == psutil.CONN_LISTEN}
