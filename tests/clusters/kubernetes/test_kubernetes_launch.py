"""`labkit launch` on a stand-in Kubernetes (see standin_cluster.py: not a real one), and as a manifest for kubectl."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from standin_cluster import StandInCluster
from system_packages import needs_packages
from waiting import BROKEN_SECONDS, wait_until

from labkit.cli import main
from labkit.launch import job_commands
from labkit.launch.detached import all_jobs
from labkit.linux.free_port import free_port

PROGRAM = """\
import os, sys, time
import torch.distributed as dist
dist.init_process_group("gloo")
everyone = [None] * dist.get_world_size()
dist.all_gather_object(everyone, (dist.get_rank(), os.environ["GROUP_RANK"], sys.argv[1:]))
if dist.get_rank() == 0:
    print(*everyone, sep="\\n", flush=True)
if sys.argv[1] == "wait":
    time.sleep(600)
dist.destroy_process_group()
"""
OPTIONS = ["--cluster", "kubernetes", "--image", "lab:1", "--nnodes", "2"]


@pytest.fixture
def folder(tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(job_commands, "_STOP_LIMIT_SECONDS", BROKEN_SECONDS)
    return tmp_path


def test_a_program_runs_in_pods_and_a_detached_one_is_stopped_with_them(
    standin: StandInCluster, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["launch", "train.py", *OPTIONS, "--detach", "--", "wait"]) == 0
    (job,) = all_jobs()
    wait_until(lambda: "(1," in job.output.read_text())
    printed = [line for line in job.output.read_text().splitlines() if line.startswith("[")]
    assert printed == [f"[0:0] ({rank}, '{rank}', ['wait'])" for rank in (0, 1)]
    assert "2 pods: " in job.output.read_text() and any(name.startswith("pods/") for name in standin.names())
    assert main(["stop", "train-1"]) == 0
    assert job.exit_status == 143 and "terminated" in job.output.read_text()
    standin.wait_until_empty()


@pytest.mark.parametrize("port", [[], ["--master-port", "29417"]])
def test_a_saved_manifest_is_valid_against_the_published_schemas(folder: Path, port: list[str]) -> None:
    words = ["launch", "train.py", *OPTIONS, "-n", "8", "--gpus-per-node", "8", *port, "--save", "job.yaml"]
    assert main([*words, "--", "a b", "$(RANK)"]) == 0
    config_map, service, job = yaml.safe_load_all(Path("job.yaml").read_text())
    for version in ("1.28", "1.37"):
        for thing in (config_map, service, job):
            kubernetes_validate.validate(thing, version, strict=True)
    assert config_map["data"] == {"train.py": PROGRAM} and "train.py: |\n" in Path("job.yaml").read_text()
    assert {thing["metadata"]["name"] for thing in (config_map, service, job)} == {"train"}
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["command"][-4:] == ["--nproc-per-node=8", "/run/program/train.py", "a b", "$$(RANK)"]
    number = "--node-rank=$(JOB_COMPLETION_INDEX)"
    assert (number in container["command"]) == bool(port) and "--nnodes=2" in container["command"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "8"}


def test_kubectl_makes_a_saved_manifest_and_its_pods_train(standin: StandInCluster, folder: Path) -> None:
    """kubectl and torchrun are real; the API and the kubelet are the stand-in's."""
    needs_packages("kubernetes-client")
    standin.kubelet.environment["PATH"] = f"{Path(sys.executable).parent}:{standin.kubelet.environment['PATH']}"
    words = ["launch", "train.py", *OPTIONS, "--master-port", str(free_port()), "--save", "job.yaml"]
    assert main([*words, "--", "a b"]) == 0
    kubectl = ["kubectl", "--kubeconfig", str(standin.kubeconfig)]
    made = subprocess.run([*kubectl, "create", "--validate=false", "-f", "job.yaml"], capture_output=True, text=True)
    assert made.stdout.split() == [
        "configmap/train",
        "created",
        "service/train",
        "created",
        "job.batch/train",
        "created",
    ]

    def ended() -> list[object]:
        jobs = standin.store.list("jobs")
        return [condition for job in jobs for condition in job.get("status", {}).get("conditions", ())]

    wait_until(ended)
    logs = [*kubectl, "logs", "-l", "labkit/run=train", "--tail=-1"]
    printed = subprocess.run(logs, capture_output=True, text=True).stdout
    assert "(0, '0', ['a b'])\n(1, '1', ['a b'])\n" in printed, printed
    assert "Complete" in str(ended()), ended()


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["--nnodes", "1:2"], "--nnodes MIN:MAX: a Job of Kubernetes has a fixed number of pods"),
        (["--image", ""], "say which container image the ranks run in"),
    ],
)
def test_what_pods_cannot_run_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], answer: str
) -> None:
    assert main(["launch", "train.py", *OPTIONS, *words, "--save", "job.yaml"]) == 2
    assert answer in capsys.readouterr().err and not Path("job.yaml").exists()
