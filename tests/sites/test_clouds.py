"""Files for clouds, codespaces and Binder: facts that they repeat are the project's, and scripts are well formed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from requirement_lists import locked_versions
from system_packages import needs_packages

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "cluster"
sys.path.insert(0, str(CLUSTER))
import check  # noqa: E402
import cost  # noqa: E402

SCRIPTS = [*CLUSTER.rglob("*.sh"), ROOT / ".binder" / "postBuild"]


def test_the_costs_in_the_docs_are_those_that_the_command_prints() -> None:
    prices = tomllib.loads(cost.PRICES.read_text())
    text = (ROOT / "docs" / "sites.md").read_text()
    assert cost.phases_table(prices) in text, "run python cluster/cost.py"
    assert cost.trainings_table(prices) in text, "run python cluster/cost.py"


def test_costs_follow_prices_and_gpus_can_be_left_out() -> None:
    prices = tomllib.loads(cost.PRICES.read_text())
    servers = _sum(cost.phases_table(prices, with_gpus=False))
    assert 0 < servers < _sum(cost.phases_table(prices))
    for machine in prices["machines"].values():
        machine["dollars"] *= 2
    assert _sum(cost.phases_table(prices, with_gpus=False)) == pytest.approx(2 * servers, abs=0.02)


def _sum(table: str) -> float:
    return float(table.splitlines()[-1].split("|")[-2])


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_scripts_parse_and_say_how_they_are_called(script: Path) -> None:
    assert subprocess.run(["bash", "-n", script]).returncode == 0
    if script.suffix == ".sh":
        done = subprocess.run([script], capture_output=True, text=True)
        assert done.returncode == 2 and f"./{script.name}" in done.stdout


@pytest.mark.parametrize("name", check.CHECKS)
def test_a_file_that_a_cloud_s_own_tool_checks_is_there_and_its_versions_are_pinned(name: str) -> None:
    """The tools themselves are hundreds of megabytes: python cluster/check.py --into FOLDER."""
    each = check.CHECKS[name]
    assert yaml.safe_load((CLUSTER / each.file).read_text())
    assert "==" in each.packages[0]
    compile(each.program, name, "exec")


def test_nodes_of_both_clouds_have_the_labels_and_taints_that_the_queue_expects() -> None:
    queue = list(yaml.safe_load_all((CLUSTER / "kubernetes" / "queue" / "cluster-queue.yaml").read_text()))
    spot = next(each for each in queue if each["kind"] == "ResourceFlavor" and each["metadata"]["name"] == "spot")
    (label,) = spot["spec"]["nodeLabels"].items()
    (toleration,) = spot["spec"]["tolerations"]
    groups = yaml.safe_load((CLUSTER / "aws" / "eks.yaml").read_text())["managedNodeGroups"]
    (group,) = [each for each in groups if each.get("spot")]
    assert label in group["labels"].items()
    assert {"key": toleration["key"], "value": toleration["value"], "effect": toleration["effect"]} in group["taints"]
    script = (CLUSTER / "gcp" / "gke.sh").read_text()
    assert f"--node-labels {label[0]}={label[1]}" in script
    assert f"--node-taints {toleration['key']}={toleration['value']}:{toleration['effect']}" in script


def test_vertex_finds_the_first_machine_and_its_own_number() -> None:
    """The program in the job's arguments, with what Vertex AI sets: CLUSTER_SPEC."""
    spec = yaml.safe_load((CLUSTER / "gcp" / "vertex.yaml").read_text())
    (script,) = spec["workerPoolSpecs"][1]["containerSpec"]["args"]
    (program,) = re.findall(r"<<'PYTHON'\n(.*?)\nPYTHON", script, re.S)
    cluster = {"workerpool0": ["cmle-0:2222"], "workerpool1": ["cmle-1:2222"]}
    task = {"type": "workerpool1", "index": 0}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"CLUSTER_SPEC": json.dumps({"cluster": cluster, "task": task})}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.split() == ["cmle-0", "1", "2"], done.stderr
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0


def test_prometheus_takes_the_compose_file_s_configuration() -> None:
    needs_packages("prometheus")
    file = CLUSTER / "containers" / "prometheus.yaml"
    done = subprocess.run(["promtool", "check", "config", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    services = yaml.safe_load((file.parent / "compose.yaml").read_text())["services"]
    (job,) = yaml.safe_load(file.read_text())["scrape_configs"]
    assert {target.split(":")[0] for target in job["static_configs"][0]["targets"]} <= services.keys()


def test_the_devcontainer_is_valid() -> None:
    """Names and types of https://github.com/devcontainers/spec, schemas/devContainer.base.schema.json (MIT)."""
    text = (ROOT / ".devcontainer" / "devcontainer.json").read_text()
    content = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.M))
    words: dict[str, Any] = {"type": "array", "items": {"type": "string"}}
    size = {"type": "string", "pattern": r"^\d+([tgmk]b)?$"}
    schema = {
        "type": "object",
        "required": ["name", "image"],
        "additionalProperties": False,
        "properties": {
            "name": {"type": "string"},
            "image": {"type": "string"},
            "hostRequirements": {
                "type": "object",
                "additionalProperties": False,
                "properties": {"cpus": {"type": "integer", "minimum": 1}, "memory": size, "storage": size},
            },
            "securityOpt": words,
            "runArgs": words,
            "postCreateCommand": {"type": "string"},
            "forwardPorts": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 65535}},
            "portsAttributes": {
                "type": "object",
                "patternProperties": {r"^\d+$": {"type": "object", "properties": {"label": {"type": "string"}}}},
                "additionalProperties": False,
            },
            "customizations": {"type": "object"},
        },
    }
    jsonschema.Draft202012Validator(schema).validate(content)
    command, *rest = content["postCreateCommand"].split()
    assert (ROOT / command).exists() and rest == ["doctor"]


def test_environments_name_one_python_and_the_lists() -> None:
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())
    *packages, pip = conda["dependencies"]
    assert f"pip={locked_versions()['pip']}" in packages
    assert all((ROOT / line.removeprefix("-r ")).exists() for line in pip["pip"])
    (python,) = [each.removeprefix("python=") for each in packages if each.startswith("python=")]
    assert (ROOT / ".binder" / "runtime.txt").read_text().strip() == f"python-{python}"
    assert f"python:1-{python}-" in (ROOT / ".devcontainer" / "devcontainer.json").read_text()
    binder = (ROOT / ".binder" / "postBuild").read_text()
    assert re.findall(r"--require-hashes -r requirements/(\w+)\.txt", binder) == ["tools", "learning"]
    assert binder.count("pip install") == 4 and "-r requirements/torch.txt" in binder
