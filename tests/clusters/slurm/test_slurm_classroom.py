"""A classroom whose servers are jobs of a real Slurm. The one user who can submit here is the learner."""

from __future__ import annotations

import asyncio
import datetime
import os
import pwd
import re
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
import requests
from classroom_person import Person, xsrf
from identity_provider import CLIENT, SECRET, Provider, identity_provider
from slurm_rig import SlurmRig  # beside this file
from small_classroom import Classroom, small_classroom
from waiting import BROKEN_SECONDS, wait_until

from autograder.classroom import requirements
from autograder.classroom import site as sites
from autograder.classroom.gpus import slurm_jobs
from autograder.classroom.gpus.ledger import Ledger, day_of
from autograder.classroom.gpus.watch import Watch
from autograder.classroom.site import Gpus
from autograder.classroom.spawners import slurm as kind
from autograder.sandbox import Sandbox
from labkit.clusters.cluster import State
from labkit.clusters.job import InvalidJob
from labkit.clusters.slurm.allocation import Allocation
from labkit.clusters.slurm.script import ResourceRequest
from labkit.linux.free_port import free_port

USER = pwd.getpwuid(os.geteuid()).pw_name

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the hub submits jobs as the learners")


class ClusterUser(Person):
    """Logs in with the account of an identity provider, without a form."""

    provider: ClassVar[Provider]

    def __init__(self, address: str, name: str) -> None:
        self.address, self.name, self.certificate = address, name, ""
        self.session = requests.Session()
        self.provider.person = {"preferred_username": name}
        self.session.get(f"{address}/hub/oauth_login", timeout=BROKEN_SECONDS)


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
        ClusterUser.provider = provider
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
        with made.site.open("a") as file:
            file.write('[gpus]\npartition = "lab"\nlongest_minutes = 10\n[challenges]\nopen = ["goodput"]\n')
        log = Path.home() / ".labkit-server.log"  # sbatch writes it to the home that the system knows
        existed = log.exists()
        yield made
        if not existed:
            log.unlink(missing_ok=True)


@as_root
@pytest.mark.slow
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
        assert learner.get(f"/user/{USER}/labkit/course").json()["course"]["course"] == "small-course"
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
        assert learner.run("\n".join(line[12:] for line in tried.splitlines())).strip() == "refused 403"
        _challenge(learner, classroom)
        _borrow(learner, classroom, rig)
        assert learner.stop_server().status_code in (202, 204)
        wait_until(lambda: not rig.jobs())
        assert not mark.exists()


def _challenge(learner: ClusterUser, classroom: Classroom) -> None:
    """Send an entry; the classroom judges it, and shows the author why it does not count."""
    lines = ["class Policy:", "    def decide(self, state):", "        raise RuntimeError('mine')"]
    learner.run(f"from pathlib import Path\nPath('mine.py').write_text({chr(10).join(lines)!r})")
    said = learner.run("!labkit challenge goodput mine.py --send Achilles")
    assert "sent: mine.py to goodput, as 'Achilles'" in said, said
    page = f"{classroom.address}/services/classroom/challenges/goodput"
    wait_until(lambda: "RuntimeError on rank 1" in learner.session.get(page, timeout=BROKEN_SECONDS).text)


def _borrow(learner: ClusterUser, classroom: Classroom, rig: SlurmRig) -> None:
    """Borrow a GPU by the course's preset, until an instructor ends it; then try to change the ledger."""
    cell = """
        %load_ext labkit
        %cluster slurm
        get_ipython().run_cell_magic("torchrun", "", 'import time; print("rank is here", flush=True); time.sleep(600)')
    """
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(learner.run, "\n".join(line[8:] for line in cell.splitlines()))
        page = None
        try:
            wait_until(lambda: len(rig.jobs()) == 2 or running.done())
            assert not running.done(), running.result()
            instructor = ClusterUser(classroom.address, "instructor")
            gpus = f"{classroom.address}/services/gpus/"
            wait_until(lambda: ">Stop<" in instructor.session.get(gpus, timeout=BROKEN_SECONDS).text)
            page = instructor.session.get(gpus, timeout=BROKEN_SECONDS).text
            job = re.search(r'name="job" value="(\d+)"', page)
            assert job is not None
            assert 'name="job" value="' not in learner.session.get(gpus, timeout=BROKEN_SECONDS).text
            form = {"job": job[1]}
            forged = instructor.session.post(f"{gpus}stop", data=form, timeout=BROKEN_SECONDS)
            assert forged.status_code == 403, "without XSRF token"
            own = {**form, "_xsrf": next(c.value for c in learner.session.cookies if c.path == "/services/gpus/")}
            assert learner.session.post(f"{gpus}stop", data=own, timeout=BROKEN_SECONDS).status_code == 403
            assert job[1] in rig.jobs()
            # in whole seconds: a job that is stopped in its first one has used nothing
            ledger = Ledger(classroom.folder / "hub/gpus.sqlite")
            wait_until(lambda: ledger.used(datetime.datetime.now(datetime.UTC).timestamp()).get(USER))
            stopped = instructor.session.post(f"{gpus}stop", data={**form, "_xsrf": xsrf(page)}, timeout=BROKEN_SECONDS)
            assert stopped.ok, stopped.text
        finally:
            if page is None:
                rig.clear()
        output = running.result(240)
    assert "slurm: 1 node of 1 ranks each and 1 GPU, partition lab" in output, output
    assert f"job {job[1]} was cancelled by instructor, an instructor" in output, output
    asked = "from labkit.clusters import gpu_ledger\nprint(gpu_ledger.in_words())"
    wait_until(lambda: re.search(r"^[1-9]\d* GPU-seconds used today, \d+ left", learner.run(asked)))
    tried = """
        import os, urllib.request, urllib.error
        head = {"Authorization": "token " + os.environ["JUPYTERHUB_API_TOKEN"]}
        address = os.environ["LABKIT_GPU_LEDGER"]
        for method in ("POST", "PUT", "DELETE"):
            try:
                print(urllib.request.urlopen(urllib.request.Request(address, b"{}", head, method=method)).status)
            except urllib.error.HTTPError as refused:
                print(refused.code)
    """
    answers = learner.run("\n".join(line[8:] for line in tried.splitlines())).split()
    assert len(answers) == 3 and set(answers) <= {"403", "405"}, answers
    file = classroom.folder / "hub" / "gpus.sqlite"
    assert file.stat().st_mode & 0o777 == 0o600 and classroom.folder.stat().st_mode & 0o777 == 0o700


def test_a_command_that_the_hub_runs_as_a_learner_has_no_secret_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """The learner can read the environment of such a process, of which there is one every few seconds."""
    monkeypatch.setenv("SECRET_OF_THE_HUB", "x")
    printed = asyncio.run(kind.SlurmSpawner().run_command("env"))
    assert "PATH=" in printed and "SECRET_OF_THE_HUB" not in printed


@as_root
def test_what_slurm_would_refuse_is_named_before_a_learner_waits_for_it(rig: SlurmRig, tmp_path: Path) -> None:
    def problems(**table: object) -> str:
        slurm = sites.Slurm(exchange=str(tmp_path), **table)  # type: ignore[arg-type]
        servers = sites.Servers(kind="slurm", slurm=slurm)
        hub, course = sites.Hub(folder=str(tmp_path)), sites.Course(learners=["nobody-of-the-course", USER])
        site = sites.Site(hub=hub, course=course, servers=servers, gpus=Gpus(partition="lab"))
        return "\n".join([*kind.missing(site), *requirements.missing_for_people(site)])

    (unknown,) = problems(cpus=1, memory="1000M").splitlines()
    assert "no user of this system is called nobody-of-the-course (" in unknown
    assert "has no partition fast; [servers.slurm] partition can be lab" in problems(partition="fast")
    assert f"a server of {USER} cannot be submitted: sbatch failed: " in problems(gres="fpga:1")
    assert "cannot be submitted: sbatch failed: " in problems(cpus=1000)
    (tmp_path / "bin").mkdir()
    assert f"there is no {tmp_path}/bin/labkit-hub-server" in problems(python=f"{tmp_path}/bin/python", cpus=1)
    assert not rig.jobs()


def notices(watch: Watch, word: str = "") -> dict[str, str]:
    """The learner's notices with this word, by job."""
    now = datetime.datetime.now(datetime.UTC).timestamp()
    return {one.job: one.text for one in watch.ledger.notices(USER, now) if word in one.text}


def test_jobs_are_charged_by_slurm_s_records_and_ended_by_the_limits(rig: SlurmRig, tmp_path: Path) -> None:
    def submit(*options: str) -> str:
        return rig.ask("sbatch", "--parsable", "--output=/dev/null", "--wrap", "sleep 600", *options)

    path, limits = tmp_path / "gpus.sqlite", Gpus(seconds_per_day=3600, longest_minutes=5, most_ranks=2)
    # of all that a learner chooses for it, nothing is believed
    forged = "x\n   JOB_GRES=gpu:0 UserId=grace(1)\n7|grace|RUNNING|1|2|1|1|1|gres:gpu:4|N/A|N/A|N/A"
    good = submit("--nodes=2", "--ntasks=2", "--gpus-per-node=1", f"--job-name={forged}", "--time=20")
    wide = submit("--ntasks=3", "--gpus-per-node=1", "--nodes=1")
    greedy = submit("--ntasks=2", "--gpus-per-node=2", "--nodes=2")
    cores = submit("--ntasks=3", "--time=20")
    watch = Watch(slurm_jobs, Ledger(path), limits, [USER, "grace"])

    def state(job: str) -> str:
        return rig.ask("squeue", "--noheader", "--states=all", "--format=%T %l", f"--jobs={job}")

    def looked(job: str, wanted: str) -> bool:
        watch.look()
        assert not watch.problem, watch.problem
        return state(job).startswith(wanted)

    for job in (wide, greedy):
        wait_until(lambda job=job: looked(job, "CANCELLED"))
    wait_until(lambda: looked(good, "RUNNING 5:00"))
    assert state(cores).split()[1] == "20:00", "a job without GPUs is nobody's business"
    assert [(job.id, gpus) for job, gpus in watch.jobs] == [(good, 2)]
    texts = notices(watch)
    assert "3 ranks" in texts[wide] and "4 ranks" in texts[greedy] and "lowered to 5 minutes" in texts[good]
    # a hub that was restarted, with less for everybody
    watch = Watch(slurm_jobs, Ledger(path), limits.model_copy(update={"seconds_per_day": 1}), [USER, "grace"])
    wait_until(lambda: looked(good, "CANCELLED"))
    watch.look()
    texts = notices(watch, "are used")
    assert "today's 1 GPU-seconds are used" in texts[good]
    ended = [job for job in slurm_jobs.jobs_of([USER]) if job.has_run]
    days = {day_of(moment) for job in ended for moment in (job.start, job.end)}
    used = sum(watch.ledger.used(day).get(USER, 0) for day in days)
    assert used == sum(job.asked_gpus * (job.end - job.start) for job in ended)
    rig.clear()


def test_gpus_are_charged_as_given_and_until_they_are_free(rig: SlurmRig, tmp_path: Path) -> None:
    """A job that ignores SIGTERM has its GPUs for `KillWait` longer; one with --exclusive has all of its node."""

    def submit(script: str, *options: str) -> str:
        return rig.ask("sbatch", "--parsable", "--output=/dev/null", "--wrap", script, *options)

    def state(job: str) -> str:
        watch.look()
        assert not watch.problem, watch.problem
        return next(each.state for each in slurm_jobs.jobs_of([USER]) if each.id == job)

    def used() -> int:
        with closing(sqlite3.connect(path)) as database:
            ((total,),) = database.execute("SELECT coalesce(sum(gpus * (until - start)), 0) FROM uses").fetchall()
        return int(total)

    path, began = tmp_path / "gpus.sqlite", tmp_path / "began"
    watch = Watch(slurm_jobs, Ledger(path), Gpus(seconds_per_day=3600, longest_minutes=30, most_ranks=8), [USER])
    stubborn = submit(f"trap '' TERM; touch {began}; while true; do sleep 1; done", "--gpus-per-node=2")
    wait_until(lambda: began.exists() and state(stubborn) == "RUNNING")
    rig.ask("scancel", stubborn)
    completing: list[int] = []

    def has_ended() -> bool:
        now, is_now = int(datetime.datetime.now(datetime.UTC).timestamp()), state(stubborn)
        if is_now == "COMPLETING":
            completing.append(now)
        return is_now == "CANCELLED"

    wait_until(has_ended)
    (job,) = [each for each in slurm_jobs.jobs_of([USER]) if each.id == stubborn]
    assert completing and used() >= 2 * (completing[-1] - job.start) > 2 * (job.end - job.start)
    before = used()
    alone = submit("sleep 2", "--exclusive")
    # it is over before the ledger first looks
    wait_until(lambda: not rig.jobs())
    watch.look()
    (job,) = [each for each in slurm_jobs.jobs_of([USER]) if each.id == alone]
    assert job.asked_gpus == 0 and job.end > job.start
    assert used() - before == 2 * (job.end - job.start)


def test_a_cell_that_waits_shows_its_place_and_what_the_ledger_says(
    rig: SlurmRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.headers["Authorization"] == "token of-this-learner"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"used": 12, "left": 48, "seconds_per_day": 60, "notices": []}')

        def log_message(self, *_: object) -> None:
            pass

    rig.ask("sbatch", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap", "sleep 600")
    wait_until(lambda: rig.ask("squeue", "--noheader", "--states=RUNNING", "--format=%i"))
    with HTTPServer(("127.0.0.1", 0), Hub) as hub:
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        monkeypatch.setenv("LABKIT_GPU_LEDGER", f"http://127.0.0.1:{hub.server_port}/mine")
        monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "of-this-learner")
        allocation = Allocation(ResourceRequest(1, 1, gpus_per_node=1))
        shown: list[str] = []

        def on_state(state: State) -> None:
            shown.append(state.text)
            if "in the queue" in state.text:
                rig.ask("scancel", allocation.job_id)

        with pytest.raises(InvalidJob, match="ended before it began"):
            allocation.wait(on_state)
        allocation.release()
        hub.shutdown()
    rig.clear()
    assert "about 1st in the queue" in shown[-1] and "12 GPU-seconds used today, 48 left" in shown[-1]
