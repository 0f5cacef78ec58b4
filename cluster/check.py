"""Checks files for clouds and clusters by their own tools, without an account: each in an environment of its own.

    python cluster/check.py --into /var/tmp/checks [NAME ...]

NAME is a row of CHECKS below; all of them by default. A complete environment is used again. Exit status 1: a file
is invalid, or a tool could not be installed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Check:
    packages: tuple[str, ...]
    file: str
    program: str
    """Python that reads the file named by `FILE`, and raises an error if it is invalid."""


CHECKS = {
    "parallelcluster": Check(
        ("aws-parallelcluster==3.16.1", "setuptools<81"),
        "aws/parallelcluster.yaml",
        """
import os, yaml
os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-2")
from pcluster.schemas.cluster_schema import ClusterSchema
config = ClusterSchema(cluster_name="lab").load(yaml.safe_load(open(FILE)))
print([queue.name for queue in config.scheduling.queues])
""",
    ),
    "skypilot": Check(
        ("skypilot==0.14.1",),
        "skypilot/train.sky.yaml",
        """
import jsonschema, yaml
from sky.utils import schemas
jsonschema.Draft7Validator(schemas.get_task_schema()).validate(yaml.safe_load(open(FILE)))
import sky
print(sky.Task.from_yaml(FILE))
""",
    ),
    "vertex": Check(
        ("google-cloud-aiplatform==2.7.0", "pyyaml"),
        "gcp/vertex.yaml",
        """
import json, yaml
from google.cloud.aiplatform_v1.types import CustomJobSpec
spec = CustomJobSpec.from_json(json.dumps(yaml.safe_load(open(FILE))), ignore_unknown_fields=False)
print([pool.machine_spec.machine_type for pool in spec.worker_pool_specs])
""",
    ),
    "train-job": Check(
        ("kubeflow-trainer-api==2.3.0", "pyyaml"),
        "kubernetes/training/train-job/train-job.yaml",
        """
import json, yaml
from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob
given = yaml.safe_load(open(FILE))
# the client drops fields that it does not know
assert json.loads(TrainerV1alpha1TrainJob.from_dict(given).to_json()) == given
print(given["kind"], given["metadata"]["name"])
""",
    ),
    "pod-monitor": Check(
        ("cloudcoil-models-prometheus-operator==0.80.1.0", "pyyaml"),
        "kubernetes/components/monitoring/pod-monitor.yaml",
        """
import yaml
from cloudcoil.models.prometheus_operator.v1 import PodMonitor
given = yaml.safe_load(open(FILE))
# the models of the operator's CRDs drop fields that they do not know
assert PodMonitor.model_validate(given).model_dump(mode="json", by_alias=True, exclude_unset=True) == given
print(given["kind"], given["metadata"]["name"])
""",
    ),
    "compose": Check(
        ("check-jsonschema==0.39.0",),
        "containers/compose.yaml",
        """
from check_jsonschema import main
main(["--builtin-schema", "vendor.compose-spec", FILE])
""",
    ),
}


def passes(name: str, into: Path) -> bool:
    """Whether the check's file is valid. Prints what the tool says."""
    check, folder = CHECKS[name], into / name
    python, stamp = folder / "bin" / "python", folder / "installed"
    if not stamp.exists() or stamp.read_text() != " ".join(check.packages):
        venv.create(folder, clear=True, with_pip=True)
        installed = subprocess.run([python, "-m", "pip", "install", "--quiet", *check.packages])
        if installed.returncode:
            print(f"{name}: {' '.join(check.packages)} cannot be installed", file=sys.stderr)
            return False
        stamp.write_text(" ".join(check.packages))
    done = subprocess.run([python, "-c", f"FILE = {str(HERE / check.file)!r}\n{check.program}"])
    print(f"{name}: {check.file} is {'invalid' if done.returncode else 'valid'}", flush=True)
    return done.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(CHECKS))
    parser.add_argument("--into", type=Path, required=True, help="folder for the environments")
    options = parser.parse_args()
    if unknown := set(options.names) - CHECKS.keys():
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are: {', '.join(CHECKS)}")
    sys.exit(not all([passes(name, options.into) for name in options.names or CHECKS]))


if __name__ == "__main__":
    main()
