"""The image trainer on the stand-in cluster, by overlays/runs and a Job that `labkit launch --config --save` writes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
import pytest
import yaml
from PIL import Image
from site_manifests import ROOT, needs_kubectl
from standin_cluster import StandInCluster
from waiting import wait_until

from labkit.cli import main
from labkit.linux.free_port import free_port

OVERLAY = ROOT / "overlays" / "runs"
IMAGE = "registry.example/lab-ranks:1"
CONFIG = ROOT.parent / "configs" / "fsdp.yaml"


@pytest.fixture(autouse=True)
def _tools(standin: StandInCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_kubectl()
    standin.kubelet.images[IMAGE] = 1000
    monkeypatch.chdir(tmp_path)


def test_a_saved_job_trains_on_images_of_a_volume_and_goes_on(standin: StandInCluster, tmp_path: Path) -> None:
    """One epoch, and by another Job with the same volume the next one. TensorBoard shows both."""
    port = free_port()
    kubectl(standin, "apply", "--validate=false", "-k", str(overlay(tmp_path / "overlay", port)))
    claims = standin.kubelet.folder / "claims"
    photographs(claims / "data" / "tiny")
    reports = []
    for epochs in ("1", "2"):
        save_job(epochs)
        kubectl(standin, "apply", "--validate=false", "-f", "job.yaml")
        output = wait_until(lambda: ended(standin))
        reports.append(json.loads(next(line for line in output.splitlines() if line.startswith("{"))))
        kubectl(standin, "delete", "-f", "job.yaml")
        wait_until(lambda: not standin.store.list("jobs"))
    assert [(report["epoch"], report["step"], report["strategy"]) for report in reports] == [
        (1, 3, "fsdp"),
        (2, 6, "fsdp"),
    ]
    assert "from step 3" in output, output
    saved = claims / "runs" / "tiny"
    assert [path.name for path in sorted(saved.glob("step_*"))] == ["step_00000003", "step_00000006"]
    stored = json.loads((saved / "configuration.json").read_text())
    assert stored["options"]["ranks"] == 2 and stored["options"]["data"] == "/data/tiny"
    assert wait_until(lambda: shown_runs(port)) == ["tiny/tensorboard/rank-0", "tiny/tensorboard/rank-1"]


def save_job(epochs: str) -> None:
    """Write job.yaml as docs/launch.md does, in a small size; pods share this machine's ports."""
    words = ["--config", str(CONFIG), "--cluster", "kubernetes", "--namespace", "lab", "--image", IMAGE, "-n", "1"]
    words += ["--pod-template", str(OVERLAY / "pod-template.yaml"), "--master-port", str(free_port())]
    small = [
        "--data",
        "/data/tiny",
        "--model",
        "resnet8",
        "--image-size",
        "16",
        "--epochs",
        epochs,
        "--batch-size",
        "4",
    ]
    small += ["--mixed-precision", "no", "--checkpoint-dir", "/runs/tiny", "--tensorboard", "/runs/tiny/tensorboard"]
    assert main(["launch", *words, "--save", "job.yaml", "--force", "--", *small, "--resume"]) == 0


def ended(standin: StandInCluster) -> str:
    """What the pods have printed, once their Job is complete."""
    output = b"".join(line for pod in list(standin.kubelet.pods.values()) for _, line in list(pod.printed)).decode()
    for job in standin.store.list("jobs"):
        for condition in job.get("status", {}).get("conditions", ()):
            assert condition["type"] == "Complete", output
            return kubectl(standin, "logs", "-l", "labkit/run=fsdp", "--tail=-1")
    return ""


def photographs(folder: Path) -> None:
    """24 images for training and 8 for testing, in two classes."""
    draw = np.random.default_rng(0)
    for split, count in (("train", 12), ("val", 4)):
        for name in ("dark", "bright"):
            (place := folder / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = draw.integers(0, 90, (20, 24, 3), dtype=np.uint8) + (120 if name == "bright" else 0)
                Image.fromarray(pixels.astype(np.uint8)).save(place / f"{number}.jpg")


def shown_runs(port: int) -> Any:
    try:
        with urlopen(f"http://127.0.0.1:{port}/data/runs") as reply:
            return json.load(reply)
    except URLError:
        return None


def overlay(folder: Path, port: int) -> Path:
    """The site's overlay, with a port of this machine for TensorBoard."""
    folder.mkdir()
    patch = [{"op": "replace", "path": "/spec/template/spec/containers/0/args/2", "value": f"--port={port}"}]
    content = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(OVERLAY, folder)],
        "patches": [{"target": {"kind": "StatefulSet"}, "patch": yaml.safe_dump(patch)}],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(content))
    return folder


def kubectl(standin: StandInCluster, *words: str) -> str:
    done = subprocess.run(["kubectl", "--kubeconfig", str(standin.kubeconfig), *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout
