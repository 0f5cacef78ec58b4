"""The training of cluster/kubernetes on the stand-in cluster: its pods really run, and one of them is deleted."""

from __future__ import annotations

import functools
import os
import re
import subprocess
from pathlib import Path

import yaml
from site_manifests import ROOT, needs_kubectl
from standin_cluster import StandInCluster
from waiting import wait_until

from labkit.linux.free_port import free_port

IMAGE = "registry.example/lab-ranks:1"
SAVE_EVERY = 15


def test_a_deleted_pod_comes_back_with_its_volume_and_training_resumes(standin: StandInCluster, tmp_path: Path) -> None:
    needs_kubectl()
    standin.kubelet.images[IMAGE] = 1000
    output = functools.partial(_output, standin)
    _kubectl(standin, "apply", "--validate=false", "-k", str(_overlay(tmp_path / "overlay")))

    wait_until(lambda: _steps(standin) and _steps(standin)[-1][0] >= SAVE_EVERY + 5, output)
    first, before = standin.kubelet.running(1), len(_starts(standin))
    _kubectl(standin, "delete", "pod", "training-1", "--wait=false")

    def is_replaced() -> bool:
        pod = standin.store.get("pods", "lab", "training-1")
        return pod is not None and pod["metadata"]["uid"] != first.pod["metadata"]["uid"]

    wait_until(is_replaced, output)
    wait_until(lambda: len(_starts(standin)) > before and _steps(standin)[-1][0] > _starts(standin)[-1] + 5, output)

    claims = sorted(claim["metadata"]["name"] for claim in standin.store.list("persistentvolumeclaims"))
    assert claims == ["checkpoints-training-0", "checkpoints-training-1"]
    first_start, *later = _starts(standin)
    assert first_start == 0 and all(step > 0 and step % SAVE_EVERY == 0 for step in later)
    losses: dict[int, str] = {}
    for step, loss in _steps(standin):
        # steps after the checkpoint are taken twice, with the same losses
        assert losses.setdefault(step, loss) == loss
    assert sorted(losses) == list(range(1, max(losses) + 1))


def _overlay(folder: Path) -> Path:
    """The course on CPUs, in which both pods have this machine's ports, and a step takes its time."""
    folder.mkdir()
    arguments = {
        3: f"--rdzv-endpoint=training-0.training:{free_port()}",
    }
    more = ["--metrics-port=0", "--steps=100000", f"--save-every={SAVE_EVERY}", "--seconds-per-step=0.05"]
    path = "/spec/template/spec/containers/0/args"
    patch = [{"op": "replace", "path": f"{path}/{i}", "value": value} for i, value in arguments.items()]
    # torchrun may join a round with a pod that is gone, and waits for it in vain: by default for a minute
    patch += [{"op": "add", "path": f"{path}/3", "value": "--rdzv-conf=read_timeout=15"}]
    patch += [{"op": "add", "path": f"{path}/-", "value": value} for value in more]
    content = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(ROOT / "overlays" / "small", folder)],
        "patches": [{"target": {"kind": "StatefulSet"}, "patch": yaml.safe_dump(patch)}],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(content))
    return folder


def _kubectl(standin: StandInCluster, *words: str) -> None:
    done = subprocess.run(["kubectl", "--kubeconfig", str(standin.kubeconfig), *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def _output(standin: StandInCluster) -> str:
    """What all containers have printed so far: rank 0 prints, in one pod or another."""
    return b"".join(line for pod in list(standin.kubelet.pods.values()) for _, line in list(pod.printed)).decode()


def _starts(standin: StandInCluster) -> list[int]:
    return [int(step) for step in re.findall(r"training from step (\d+) on 2 ranks", _output(standin))]


def _steps(standin: StandInCluster) -> list[tuple[int, str]]:
    return [(int(step), loss) for step, loss in re.findall(r"step (\d+) loss (\S+)", _output(standin))]
