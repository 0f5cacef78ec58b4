"""A classroom whose servers are jobs of a real Slurm. The one user who can submit here is the learner."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from classroom_person import Person
from identity_provider import CLIENT, SECRET, identity_provider
from slurm_rig import SlurmRig  # beside this file
from small_classroom import Classroom, small_classroom
from waiting import wait_until

from autograder.sandbox import Sandbox
from labkit.linux.free_port import free_port

USER = pwd.getpwuid(os.geteuid()).pw_name


class ClusterUser(Person):
    """Logs in with the account of an identity provider, without a form."""

    def __init__(self, address: str, name: str) -> None:
        self.address, self.name = address, name
        self.session = requests.Session()
        self.session.get(f"{address}/hub/oauth_login", timeout=60)


@pytest.fixture(scope="module")
def classroom(running_rig: SlurmRig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Classroom]:
    Sandbox().check()
    made = small_classroom(tmp_path_factory.mktemp("lab"))
    made.address = f"http://{running_rig.address}:{free_port()}"
    made.environment.update(running_rig.environment)
    shared, secret = made.root / "shared", made.root / "secret"
    shared.mkdir()
    secret.write_text(SECRET)
    with identity_provider() as provider:
        provider.person = {"preferred_username": USER}
        made.site.write_text(
            f'[hub]\naddress = "{made.address}"\n'
            f'[course]\nname = "small-course"\nlearners = ["{USER}", "grace"]\n'
            f'[login]\nkind = "openid"\n[login.openid]\nissuer = "{provider.address}"\n'
            f'client_id = "{CLIENT}"\nsecret_file = "{secret}"\n'
            f'[servers]\nkind = "slurm"\nstart_seconds = 600\n[servers.slurm]\nexchange = "{shared}"\n'
            f'partition = "lab"\ntime = "20"\nmemory = "1000M"\ncpus = 1\n'
            f"prologue = \"export LABKIT_ROOT='{made.root}' HOME='{made.root}/home' PYTHONPATH='{Path.cwd()}'\"\n"
        )
        (made.root / "home").mkdir()
        log = Path.home() / ".labkit-server.log"  # sbatch writes it to the home that the system knows
        existed = log.exists()
        yield made
        if not existed:
            log.unlink(missing_ok=True)


def test_a_learner_s_server_is_a_job_of_the_learner_s_on_slurm(classroom: Classroom, rig: SlurmRig) -> None:
    """With the lab and nbgrader's exchange in it. The hub's own address is all that it reaches the hub by."""
    with classroom.running():
        learner = ClusterUser(classroom.address, USER)
        learner.start_server()
        jobs = rig.ask("squeue", "--noheader", "--Format=UserName:|,Name:|,NumTasks:|,tres-per-node:")
        assert jobs.split("|")[:3] == [USER, "labkit-server", "1"] and "gpu" not in jobs
        code = "import os, labkit; print(os.environ['SLURM_JOB_ID'], os.getcwd())"
        job, folder = learner.run(code).split()
        assert [job] == rig.jobs() and folder == f"{classroom.root}/home"
        assert (classroom.root / "home" / "HOME.md").is_file()
        assert learner.get(f"/user/{USER}/assignments?course_id=small-course").json()["success"]
        course = classroom.root / "shared" / "small-course"
        modes = {part: (course / part).stat().st_mode & 0o777 for part in ("outbound", "inbound", "feedback")}
        assert modes == {"outbound": 0o755, "inbound": 0o733, "feedback": 0o711}
        # what a learner tries: batchspawner's own handler would let the hub run this
        mark = classroom.root / "mark"
        tried = f"""
            import json, os, urllib.request, urllib.error
            url = os.environ["JUPYTERHUB_API_URL"] + "/batchspawner"
            head = {{"Authorization": "token " + os.environ["JUPYTERHUB_API_TOKEN"]}}
            body = json.dumps({{"port": 8888, "batch_cancel_cmd": "touch {mark}; true"}}).encode()
            try:
                print(urllib.request.urlopen(urllib.request.Request(url, body, head)).status)
            except urllib.error.HTTPError as refused:
                print("refused", refused.code)
        """
        assert learner.run("\n".join(line[12:] for line in tried.splitlines())).strip() == "refused 400"
        page = learner.get("/hub/home")
        token = next(c.value for c in learner.session.cookies if c.name == "_xsrf" and c.path == "/hub/")
        url, headers = f"{classroom.address}/hub/api/users/{USER}/server", {"X-XSRFToken": str(token)}
        assert page.ok and learner.session.delete(url, headers=headers, timeout=120).status_code in (202, 204)
        wait_until(lambda: not rig.jobs(), seconds=120)
        assert not mark.exists()
