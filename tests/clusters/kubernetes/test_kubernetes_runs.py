"""Cells on a stand-in Kubernetes (see standin_cluster.py: not a real one), whose pods are real processes."""

from __future__ import annotations

import os
import signal
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
from standin_cluster import StandInCluster
from waiting import wait_until

from labkit.clusters import Job, State
from labkit.clusters.kubernetes import KubernetesError, kubernetes, manifest

_ALL_REDUCE = """\
import torch, torch.distributed as dist
dist.init_process_group()
rank = dist.get_rank()
tensor = torch.full((3,), float(rank))
dist.all_reduce(tensor)
for i in range(200):
    print(f"line {i} of rank {rank}", flush=True)
tensor
"""
_WAITING = """\
import time, torch.distributed as dist
dist.init_process_group()
print("here", flush=True)
time.sleep(600)
"""
_LATE_SILENCE = """\
import os, sys
from pathlib import Path
from labkit.clusters.kubernetes import pod
folder, silence, mark = sys.argv[1:]
pod.main(Path(folder), float(silence), clock=lambda: 3600.0 * os.path.exists(mark))
"""
"""A pod's program, for which an hour passes once there is a file."""


def _when(seen: Callable[[], bool], act: Callable[[], object]) -> threading.Thread:
    """Do something in another thread as soon as a condition holds."""

    def watch() -> None:
        wait_until(seen)
        act()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def test_a_cell_runs_on_two_pods_and_nothing_is_lost_when_log_streams_break(standin: StandInCluster) -> None:
    """Pods return everything that local ranks do, over log streams that break in the middle of a line, twice."""
    standin.api.cut_logs_after = [900, 700, 5000]
    output, states = defaultdict(str), list[State]()

    def on_output(rank: int, stream: str, text: str) -> None:
        output[rank] += text

    cluster = kubernetes(nnodes=2, nproc_per_node=2, image="lab:1")
    run = cluster.run(Job(source=_ALL_REDUCE, filename="Cell In[1]"), on_output, states.append)

    assert run.ok, run.diagnosis()
    assert [value.tolist() for value in run.values] == [[6.0, 6.0, 6.0]] * 4
    expected = [f"line {i} of rank " for i in range(200)]
    for rank, result in enumerate(run.ranks):
        assert output[rank].splitlines() == [f"{line}{rank}" for line in expected]
        assert result.output == output[rank]
    # the cuts did happen, and reading resumed from near the place
    assert not standin.api.cut_logs_after
    assert [request for request in standin.api.log_requests if "sinceSeconds" in request]
    assert {event.operation for event in run.trace.events} >= {"all_reduce"}
    assert "queued" in {state.phase for state in states}
    assert states[-1].phase == "running"
    standin.wait_until_empty()


def test_a_failed_rank_is_told_with_its_line_and_the_other_pod_is_not_waited_for(standin: StandInCluster) -> None:
    source = (
        "import torch.distributed as dist\ndist.init_process_group()\nwidth = 7\n"
        "assert dist.get_rank() != 1, 'wrong width'\ndist.barrier()"
    )
    run = kubernetes(nnodes=2, image="lab:1").run(Job(source=source, filename="Cell In[4]", first_line=2))

    assert run.first_failure is not None and run.first_failure.rank == 1
    assert run.first_failure.error is not None
    assert run.first_failure.error.where == "Cell In[4], line 5"
    assert "wrong width" in run.diagnosis()
    assert ("width", "7") in run.first_failure.error.locals
    standin.wait_until_empty()


def test_an_interrupt_deletes_job_service_and_secret(standin: StandInCluster) -> None:
    heard = list[str]()
    seen_then = list[str]()

    def interrupt() -> None:
        seen_then.extend(standin.names())
        os.kill(os.getpid(), signal.SIGINT)

    _when(lambda: "here" in "".join(heard), interrupt)
    with pytest.raises(KeyboardInterrupt):
        kubernetes(nnodes=1, image="lab:1").run(Job(source=_WAITING), lambda rank, stream, text: heard.append(text))

    assert sorted({name.split("/")[0] for name in seen_then}) == ["jobs", "pods", "secrets", "services"]
    standin.wait_until_empty()


def test_a_pod_without_memory_is_told_with_its_ranks(standin: StandInCluster) -> None:
    heard = list[str]()
    _when(lambda: "".join(heard).count("here") == 2, lambda: standin.kubelet.running(1).kill("OOMKilled"))
    run = kubernetes(nnodes=2, image="lab:1").run(Job(source=_WAITING), lambda rank, stream, text: heard.append(text))

    assert not run.ok
    assert "pod 1 with rank 1 was lost" in run.stopped
    assert "OOMKilled" in run.stopped and "--memory" in run.stopped
    assert run.ranks[1].exit != 0
    standin.wait_until_empty()


def test_a_run_whose_job_is_deleted_is_told_so(standin: StandInCluster) -> None:
    heard = list[str]()

    def delete() -> None:
        (job,) = standin.store.list("jobs")
        standin.store.delete("jobs", "lab", job["metadata"]["name"])

    _when(lambda: "here" in "".join(heard), delete)
    run = kubernetes(nnodes=1, image="lab:1").run(Job(source=_WAITING), lambda rank, stream, text: heard.append(text))
    # deleted, or killed after the grace period if this machine is slow
    assert "pod labkit-" in run.stopped


def test_a_cell_runs_as_a_train_job_where_the_cluster_has_kubeflow_trainer(standin: StandInCluster) -> None:
    standin.api.trainer = "runtimePatches"
    created = list[str]()
    cluster = kubernetes(nnodes=2, image="lab:1")
    assert "a TrainJob in namespace lab" in cluster.describe()
    run = cluster.run(
        Job(source="import torch.distributed as dist\ndist.init_process_group()\ndist.get_world_size()"),
        on_state=lambda state: created.extend(standin.names()),
    )

    assert run.ok, run.diagnosis()
    assert run.values == [2, 2]
    assert any(name.startswith("trainjobs/") for name in created)
    standin.wait_until_empty()


def test_pods_end_by_themselves_when_the_notebook_is_silent(
    standin: StandInCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As after SIGKILL of the kernel: nothing deletes the pods, and the client's heartbeats stop."""
    monkeypatch.setattr("labkit.clusters.kubernetes.submission.Submission.keep_alive", lambda self, seconds: None)
    mark = tmp_path / "ranks run"
    tmp_path.chmod(0o777)  # the pods' user is another one
    command = ["python", "-P", "-c", _LATE_SILENCE, manifest.FOLDER, "10", str(mark)]
    template = {"spec": {"containers": [{"name": "ranks", "command": command}]}}
    cluster = kubernetes(nnodes=1, image="lab:1", silence=10, pod_template=template)
    run = cluster.run(Job(source=f"open({str(mark)!r}, 'w').close()\n{_WAITING}"))

    assert "has not been heard of for 10 s" in run.stopped


def test_an_image_without_labkit_is_told_with_the_pods_last_words(standin: StandInCluster) -> None:
    standin.kubelet.environment["PYTHONPATH"] = ""
    standin.kubelet.environment["PATH"] = "/usr/bin:/bin"
    template = {
        "spec": {"containers": [{"name": "ranks", "command": ["sh", "-c", "echo No module named labkit; exit 1"]}]}
    }
    with pytest.raises(KubernetesError, match=r"(?s)node 0 ended before its ranks began.*exit code 1.*No module named"):
        kubernetes(nnodes=1, image="lab:1", pod_template=template).run(Job(source="1"))
    standin.wait_until_empty()
