"""The four configurations of cluster/configs on two nodes of a real Slurm on this machine, and a node that dies.

Each is launched with --detach by a shell that ends at once, and attached to by another one. Sizes are those of a trial;
`3d` has four ranks, two on each node. `ddp, node lost` saves after each epoch, loses its second node by a power cut,
and goes on with the first one from its latest checkpoint. `seeds` is an array of three. Needs Slurm and munge, and for
the node that dies root.

    python benchmarks/launch_on_slurm.py [NAME ...]
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.extend(str(ROOT / "tests" / name) for name in ("clusters/slurm", "plugins"))

from slurm_rig import SlurmRig  # noqa: E402  # from a folder that was just added

CONFIGS = ROOT / "cluster" / "configs"
SLURM = ["--cluster", "slurm", "--partition", "lab", "--time", "20"]
SMALL = ["--data", "digits", "--model", "resnet8", "--mixed-precision", "no", "--batch-size", "64", "--epochs"]
IN_3D = ["--model", "2x64x4", "--sequence", "32", "--steps", "60", "--mixed-precision", "no", "--held-out", "64",
         "--tensor-parallel", "2", "--pipeline-parallel", "2", "--global-batch-size", "32"]  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """One launch. `{name}` in its words is replaced by the trial's name."""

    config: str
    launch: tuple[str, ...]
    program: tuple[str, ...]
    loses_node: bool = False


TRIALS = {
    "ddp": Trial("ddp.yaml", ("--nnodes", "2", "-n", "2"), (*SMALL, "4")),
    "fsdp": Trial("fsdp.yaml", ("--nnodes", "2", "-n", "2", "--gpus-per-node", "1"), (*SMALL, "4")),
    "3d": Trial("3d.yaml", ("--nnodes", "2", "-n", "2", "--gpus-per-node", "1"), tuple(IN_3D)),
    "deepspeed": Trial("deepspeed.yaml", ("--nnodes", "2", "-n", "1"), (*SMALL, "4")),
    "ddp, node lost": Trial(
        "ddp.yaml", ("--nnodes", "1:2", "-n", "1", "--max-restarts", "2"), (*SMALL, "30", "--resume"), loses_node=True
    ),
    "seeds": Trial("ddp.yaml", ("--nnodes", "1", "-n", "2", "--array", "0-2"), (*SMALL, "2", "--seed", "%a")),
}


def main(names: list[str]) -> int:
    """Run the trials; return 1 if one of them failed."""
    if unknown := set(names) - TRIALS.keys():
        print(f"no trial {', '.join(unknown)}; there are: {', '.join(TRIALS)}", file=sys.stderr)
        return 2
    failed = False
    with tempfile.TemporaryDirectory() as folder, SlurmRig(Path(folder) / "slurm") as rig:
        os.environ.update(rig.environment, XDG_STATE_HOME=str(Path(folder) / "state"))
        print(f"{'trial':<16} {'status':>6} {'seconds':>8}  result")
        for name in names or TRIALS:
            began = time.monotonic()
            for job, status, result in run(TRIALS[name], rig, Path(folder) / "checkpoints" / name.replace(", ", "-")):
                failed = failed or status != 0
                print(f"{name:<16} {status:>6} {time.monotonic() - began:>8.1f}  {job}: {result}", flush=True)
    return int(failed)


def run(trial: Trial, rig: SlurmRig, checkpoints: Path) -> list[tuple[str, int, str]]:
    """Launch, attach and wait; return each job's name, exit status and last figures."""
    words = ["launch", "--config", str(CONFIGS / trial.config), *SLURM, *trial.launch, "--detach", "--", *trial.program]
    if "--array" not in trial.launch:
        words += ["--checkpoint-dir", str(checkpoints)]
    shell = subprocess.run([sys.executable, "-m", "labkit", *words], capture_output=True, text=True)
    if shell.returncode != 0:
        return [("", shell.returncode, shell.stderr)]
    name = shell.stdout.strip()
    jobs = [f"{name}_{index}" for index in range(3)] if "--array" in trial.launch else [name]
    results = []
    for job in jobs:
        command = [sys.executable, "-m", "labkit", "logs", "-f", job]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as attached:
            if trial.loses_node:
                while len(list(checkpoints.glob("step_*"))) < 2 and attached.poll() is None:
                    time.sleep(0.05)
                rig.cut_off(rig.nodes[1])
            output, _ = attached.communicate()
        results.append((job, attached.returncode, figures(output)))
    if trial.loses_node:
        rig.revive(rig.nodes[1])
    return results


def figures(output: str) -> str:
    """Return the last report, or else the last line, with the notes about restarts."""
    reports = re.findall(r"\] (\{\"(?:epoch|first_step)\".*\})", output)
    notes = re.findall(r"note: (restarted.*)", output)
    if not reports:
        return " / ".join(output.splitlines()[-6:])
    names = ("epoch", "first_step", "steps", "loss", "top1", "held_out_loss", "strategy")
    kept = {name: value for name, value in json.loads(reports[-1]).items() if name in names}
    shown = [f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}" for name, value in kept.items()]
    return "; ".join([", ".join(shown), *notes])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
