"""What the hub reads of a course's pods, and how it ends them, by the stand-in's API."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from standin_cluster import StandInCluster

from autograder.classroom.gpus.jobs import Job, SchedulerFailed
from autograder.classroom.gpus.kubernetes import rights, shapes
from autograder.classroom.gpus.kubernetes.pod_jobs import PodJobs
from autograder.classroom.gpus.kubernetes.runs import Runs
from autograder.classroom.gpus.ledger import Ledger
from autograder.classroom.site import GpuPods
from labkit.clusters.kubernetes import manifest
from labkit.clusters.kubernetes.api import Api
from labkit.clusters.kubernetes.login import as_service
from labkit.clusters.kubernetes.manifest import Names, Object, Shape

PODS = GpuPods(image="lab:1", hub_address="http://hub:8082", namespace="lab")
FIRST, SECOND = "labkit-0000000001", "labkit-0000000002"
MADE = 1_795_737_600
PEOPLE = ("ada", "grace")


Asked = Callable[[Callable[[PodJobs], Any]], Any]
Jobs = Callable[[], list[Job]]


@pytest.fixture
def api(standin: StandInCluster) -> StandInCluster:
    """The API alone: the test is what makes pods and runs them."""
    standin.controllers.close()
    standin.kubelet.close()
    return standin


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    Ledger(tmp_path / "gpus.sqlite")
    return Runs(tmp_path / "gpus.sqlite")


@pytest.fixture
def asked(api: StandInCluster, runs: Runs) -> Asked:
    """Returns what a question about the pods returns."""
    return lambda question: question(PodJobs(Api(as_service(), "lab"), runs))


@pytest.fixture
def jobs(asked: Asked) -> Jobs:
    return lambda: list(asked(lambda pods: pods.jobs_of(PEOPLE)))


def iso(seconds: int) -> str:
    return datetime.datetime.fromtimestamp(MADE + seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def add_job(api: StandInCluster, name: str, user: str, at: int = 0, nnodes: int = 2) -> None:
    sent = manifest.job(Names(name, "lab", "0123456789abcdef"), Shape("lab:1", nnodes, 1, 1), 60, 600)
    thing = api.store.create("jobs", "lab", shapes.job(sent, user, PODS, 600, {}).job)
    api.store.change("jobs", thing, lambda stored: stored["metadata"].update(creationTimestamp=iso(at)))


def add_pod(api: StandInCluster, name: str, number: int, **status: object) -> None:
    job = api.store.get("jobs", "lab", name)
    assert job is not None
    template = job["spec"]["template"]
    labels = {**template["metadata"]["labels"], "job-name": name}
    metadata = {"name": f"{name}-{number}", "labels": labels}
    api.store.create("pods", "lab", {"metadata": metadata, "spec": template["spec"], "status": status})


def change(api: StandInCluster, plural: str, name: str, **status: object) -> None:
    thing = api.store.get(plural, "lab", name)
    assert thing is not None
    api.store.change(plural, thing, lambda stored: stored.setdefault("status", {}).update(status))


def ended(at: int) -> Object:
    return {"phase": "Succeeded", "containerStatuses": [{"state": {"terminated": {"finishedAt": iso(at)}}}]}


def test_a_run_waits_runs_and_ends_as_its_pods_do(api: StandInCluster, jobs: Jobs) -> None:
    add_job(api, FIRST, "ada")
    assert jobs() == [Job(FIRST, "ada", "PENDING", 0, 0, 600, 2, 2)]
    add_pod(api, FIRST, 0, phase="Pending", startTime=iso(20))
    add_pod(api, FIRST, 1, phase="Pending")
    running = Job(FIRST, "ada", "RUNNING", MADE + 20, 0, 600, 2, 2)
    assert jobs() == [running]
    change(api, "pods", f"{FIRST}-1", phase="Running", startTime=iso(30))
    change(api, "pods", f"{FIRST}-0", **ended(40))
    assert jobs() == [running]
    change(api, "pods", f"{FIRST}-1", **ended(45))
    assert jobs() == [running], "the Job may make another pod"
    change(api, "jobs", FIRST, conditions=[{"type": "Complete", "status": "True", "lastTransitionTime": iso(46)}])
    (job,) = jobs()
    assert (job.state, job.start, job.end) == ("COMPLETED", MADE + 20, MADE + 46)
    # without its Job the pods alone say it
    api.store.delete("jobs", "lab", FIRST)
    (job,) = jobs()
    assert (job.state, job.start, job.end, job.asked_gpus) == ("COMPLETED", MADE + 20, MADE + 45, 2)


def test_a_pod_that_is_ended_is_charged_until_its_containers_are(api: StandInCluster, jobs: Jobs) -> None:
    """They ignore SIGTERM: the pod is `Failed` from its time limit on, its Job as well, and its GPUs are not free."""
    add_job(api, FIRST, "ada", nnodes=1)
    add_pod(api, FIRST, 0, phase="Running", startTime=iso(20))
    (running,) = jobs()
    change(api, "jobs", FIRST, conditions=[{"type": "Failed", "status": "True", "lastTransitionTime": iso(40)}])
    at_limit = {"phase": "Failed", "reason": "DeadlineExceeded"}
    change(api, "pods", f"{FIRST}-0", **at_limit, containerStatuses=[{"state": {"running": {"startedAt": iso(21)}}}])
    assert jobs() == [running] and running.holds
    api.store.delete("jobs", "lab", FIRST)
    assert [job.state for job in jobs()] == ["RUNNING"], "its pods outlive a Job"
    change(api, "pods", f"{FIRST}-0", **{**ended(70), **at_limit})
    (job,) = jobs()
    assert (job.state, job.start, job.end, job.asked_gpus) == ("COMPLETED", MADE + 20, MADE + 70, 1)


@pytest.mark.parametrize(
    ("changed", "gpus"),
    [
        ({"containers": [{"resources": {"requests": {shapes.GPU: "2"}}}]}, 2),
        ({"containers": [{"resources": {}}, {"resources": {"limits": {shapes.GPU: "3"}}}, {}]}, 3),
        ({"initContainers": [{"resources": {"limits": {shapes.GPU: "4"}}}, {}]}, 4),
    ],
)
def test_gpus_count_without_limits_and_in_init_containers(
    api: StandInCluster, jobs: Jobs, changed: dict[str, object], gpus: int
) -> None:
    """A course's template of pods may add containers."""
    add_job(api, FIRST, "ada", nnodes=2)
    thing = api.store.get("jobs", "lab", FIRST)
    assert thing is not None
    api.store.change("jobs", thing, lambda stored: stored["spec"]["template"]["spec"].update(changed))
    assert [job.asked_gpus for job in jobs()] == [2 * gpus]


def test_runs_wait_in_the_order_in_which_they_were_made(api: StandInCluster, jobs: Jobs) -> None:
    add_job(api, FIRST, "ada", at=10)
    add_job(api, SECOND, "grace", at=5)
    add_job(api, "labkit-0000000003", "heidi")
    assert [(job.id, job.user) for job in jobs()] == [(SECOND, "grace"), (FIRST, "ada")]


def remove_pod(api: StandInCluster, name: str, **status: object) -> None:
    """Delete a pod as the kubelet does, after its containers have ended."""
    change(api, "pods", name, **status)
    api.store.delete("pods", "lab", name, now_at_once=True)


Looks = Callable[[int], dict[str, int]]


@pytest.fixture
def looks(api: StandInCluster, tmp_path: Path) -> Callable[[], Looks]:
    """Returns a new hub, whose function looks at a time and returns the GPU-seconds used."""

    def hub() -> Looks:
        pods, ledger = (
            PodJobs(Api(as_service(), "lab"), Runs(tmp_path / "gpus.sqlite")),
            Ledger(tmp_path / "gpus.sqlite"),
        )

        def look(at: int) -> dict[str, int]:
            found = pods.jobs_of(PEOPLE)
            ledger.record(found, {(job.id, job.start): job.asked_gpus for job in found if job.has_run}, MADE + at)
            return ledger.used(MADE + at)

        return look

    return hub


def test_pods_that_vanish_one_by_one_are_counted_once(api: StandInCluster, looks: Callable[[], Looks]) -> None:
    add_job(api, FIRST, "ada")
    for number, start in enumerate((10, 15)):
        add_pod(api, FIRST, number, phase="Running", startTime=iso(start))
    look = looks()
    look(20)
    api.store.delete("jobs", "lab", FIRST)
    look(22)
    remove_pod(api, f"{FIRST}-0", **ended(23))
    look(24)
    # a hub that begins now sees only the second pod
    look = looks()
    look(25)
    remove_pod(api, f"{FIRST}-1", **ended(27))
    assert look(30) == look(35) == looks()(40) == {"ada": 2 * 17}


def test_pods_that_are_deleted_between_two_looks_are_charged_until_they_have_ended(
    api: StandInCluster, looks: Callable[[], Looks]
) -> None:
    look = looks()
    add_job(api, FIRST, "ada", nnodes=1)
    add_pod(api, FIRST, 0, phase="Running", startTime=iso(10))
    assert look(12) == {"ada": 2}
    api.store.delete("jobs", "lab", FIRST)
    remove_pod(api, f"{FIRST}-0", **ended(16))
    assert look(17) == look(22) == {"ada": 6}
    # the hub is away when a run ends, and when another one begins and ends
    add_job(api, SECOND, "ada", nnodes=1)
    add_pod(api, SECOND, 0, phase="Running", startTime=iso(30))
    look(32)
    remove_pod(api, f"{SECOND}-0", **ended(50))
    third = "labkit-0000000003"
    add_job(api, third, "grace", nnodes=1)
    add_pod(api, third, 0, phase="Running", startTime=iso(60))
    for name in (SECOND, third):
        api.store.delete("jobs", "lab", name)
    remove_pod(api, f"{third}-0", **ended(67))
    look = looks()
    assert look(90) == look(95) == {"ada": 6 + 20, "grace": 7}


def test_a_pod_that_nobody_has_seen_end_is_charged_until_it_was_deleted(
    api: StandInCluster, looks: Callable[[], Looks]
) -> None:
    """Its node is gone, for example; the API says until when it waited for it, in no case later than now."""
    look = looks()
    for name, user in ((FIRST, "ada"), (SECOND, "grace")):
        add_job(api, name, user, nnodes=1)
        add_pod(api, name, 0, phase="Running", startTime=iso(10))
    look(12)
    thing = api.store.get("pods", "lab", f"{FIRST}-0")
    assert thing is not None
    api.store.change("pods", thing, lambda stored: stored["metadata"].update(deletionTimestamp=iso(14)))
    for name in (FIRST, SECOND):
        api.store.delete("jobs", "lab", name)
        remove_pod(api, f"{name}-0")
    assert look(17) == look(22) == {"ada": 4, "grace": 7}


def test_without_a_history_a_run_ends_where_it_was_seen_last(api: StandInCluster, looks: Callable[[], Looks]) -> None:
    look = looks()
    add_job(api, FIRST, "ada", nnodes=1)
    add_pod(api, FIRST, 0, phase="Running", startTime=iso(10))
    look(12)
    api.store.delete("jobs", "lab", FIRST)
    remove_pod(api, f"{FIRST}-0", **ended(16))
    api.api.rejections["watch", "pods"] = [(410, {}, "too old resource version")]
    assert looks()(3000) == {"ada": 2}


def test_a_time_limit_that_is_lowered_counts_from_when_the_pods_began(api: StandInCluster, asked: Asked) -> None:
    add_job(api, FIRST, "ada")
    add_pod(api, FIRST, 0, phase="Running", startTime=iso(50))

    def shortened(pods: PodJobs) -> int:
        pods.jobs_of(PEOPLE)
        pods.shorten(FIRST, 3)
        (job,) = pods.jobs_of(PEOPLE)
        assert job.limit_seconds == 180
        thing = api.store.get("jobs", "lab", FIRST)
        assert thing is not None
        return int(thing["spec"]["activeDeadlineSeconds"])

    assert asked(shortened) == 230
    # a queue has held it back
    change(api, "jobs", FIRST, startTime=iso(40))
    assert asked(shortened) == 190


def test_a_run_is_ended_with_all_that_it_has(api: StandInCluster, asked: Asked, runs: Runs) -> None:
    add_job(api, FIRST, "ada")
    for plural in ("secrets", "services"):
        api.store.create(plural, "lab", {"metadata": {"name": FIRST}})
    api.store.create("secrets", "lab", {"metadata": {"name": SECOND}})
    assert runs.begin(FIRST, "ada", MADE)
    asked(lambda pods: pods.cancel(FIRST))
    assert api.names() == [f"secrets/{SECOND}"] and runs.left("ada") == {}
    asked(lambda pods: pods.cancel(FIRST))  # it may be gone
    # what could not be deleted is still there
    assert runs.begin(SECOND, "ada", MADE)
    api.api.forbidden.add(("delete", "secrets"))
    with pytest.raises(SchedulerFailed, match="cannot delete"):
        asked(lambda pods: pods.cancel(SECOND))
    assert runs.left("ada") == {SECOND: MADE}


def test_a_cluster_that_refuses_or_is_gone_is_a_scheduler_that_failed(api: StandInCluster, jobs: Jobs) -> None:
    api.api.forbidden.add(("list", "jobs"))
    with pytest.raises(SchedulerFailed, match="cannot list resource"):
        jobs()
    api.write_kubeconfig("https://127.0.0.1:1")
    with pytest.raises(SchedulerFailed, match=r"the API of Kubernetes: .*Connection refused"):
        jobs()


def test_a_template_that_cannot_be_used_is_named_before_the_hub_starts(api: StandInCluster, tmp_path: Path) -> None:
    template = tmp_path / "pods.yaml"
    assert list(rights.missing(PODS)) == []
    given = PODS.model_copy(update={"pod_template": str(template)})
    (problem,) = rights.missing(given)
    assert problem.startswith(f"[gpus.kubernetes] pod_template: the pod template {template} cannot be read")
    template.write_text("containers: []")
    (problem,) = rights.missing(given)
    assert "has `metadata` and `spec`" in problem
    template.write_text("spec: {nodeSelector: {gpu: h100}}")
    assert list(rights.missing(given)) == []


def test_a_name_stays_with_who_has_had_it(tmp_path: Path, runs: Runs) -> None:
    assert runs.begin(FIRST, "ada", MADE) and not runs.begin(FIRST, "grace", MADE)
    assert runs.is_of("ada", FIRST) and not runs.is_of("grace", FIRST) and not runs.is_of("ada", SECOND)
    assert runs.left("ada") == {FIRST: MADE} and runs.left("grace") == {}
    runs.end(FIRST)
    assert runs.left("ada") == {} and runs.is_of("ada", FIRST)
    assert not runs.begin(FIRST, "ada", MADE) and not runs.begin(FIRST, "grace", MADE)
    assert runs.begin(SECOND, "ada", MADE)
    runs.forget(SECOND)
    assert Runs(tmp_path / "gpus.sqlite").begin(SECOND, "grace", MADE)
