"""Presets in files, and fields replaced by name, from Python, the shell and a notebook."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from labkit import virtual
from labkit.cli import main
from labkit.clusters.job import InvalidJob
from labkit.hardware import GPUS, LINKS, Topology, topology
from labkit.hardware.files import FORMAT, write
from labkit.hardware.settings import parse
from labkit.notebook.choosing import make
from labkit.predict import Plan, model, predict
from labkit.predict.command import parse_cluster


def test_any_field_is_replaced_and_its_source_says_so() -> None:
    made = topology("dgx-a100", settings={"inter_node.gb_per_s": 20, "inter_node": "ib-ndr", "gpu.memory_gb": 40})
    assert made.inter_node.gb_per_s == 20 and made.inter_node.latency_seconds == LINKS["ib-ndr"].latency_seconds
    assert made.gpu.memory_gb == 40 and made.gpu.bf16_tflops == 312
    assert made.gpu.source == f"{GPUS['a100-80gb'].source}; memory_gb set to 40"
    assert topology("dgx-a100", settings={"gpu": "h100-80gb"}).host_link.name == "pcie5"
    assert topology(settings={"nodes_per_rack": None, "switch_gb_per_s": 1e3}).switch_gb_per_s == 1e3


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"gpu.memory": 4}, "unknown setting 'gpu.memory'; did you mean memory_gb"),
        ({"gpu.memory_gb": "much"}, "gpu.memory_gb must be a number, got 'much'"),
        ({"gpu.memory_gb": True}, "gpu.memory_gb must be a number"),
        ({"gpu.memory_gb": -1}, "memory_gb must be above 0, got -1"),
        ({"gpu.multiprocessors": 1.5}, "gpu.multiprocessors must be a whole number"),
        ({"gpu.source": 3}, "gpu.source must be a text"),
        ({"gpu.host_link": "pcie9"}, "host_link must be one of"),
        ({"gpu": "a100"}, "unknown gpu 'a100'; did you mean a100-80gb"),
        ({"gpu": 3}, "gpu must be a name or a GPU"),
        ({"gpu": ["t4", 3]}, "gpu must be a name or a GPU, got 3"),
        ({"gpu": []}, "gpu must be a name or a GPU"),
        ({"gpu": "t4,a100"}, "unknown gpu 'a100'; did you mean a100-80gb"),
        ({"gpu": "t4,l4", "gpu.memory_gb": 3}, "gpu.memory_gb: the nodes have different GPUs .t4, l4."),
        ({"intra_node.collective_ranks": 1}, "collective_ranks must be at least 2"),
        ({"nics.gb_per_s": 3}, "unknown setting 'nics.gb_per_s'"),
        ({"nnode": 2}, "did you mean nnodes"),
        ({"constants.host_seconds": "slow"}, "constants.host_seconds must be a number"),
        ({"oversubscription": float("nan")}, "oversubscription must be a number"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_name(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        topology("dgx-a100", settings=settings)
    with pytest.raises(InvalidJob, match=said):
        virtual("dgx-a100", settings=settings)


def test_nodes_have_several_kinds_of_gpu_in_turn(tmp_path: Path) -> None:
    made = topology(gpu="h100-80gb,v100-32gb", nproc_per_node=2, settings={"nnodes": 3})
    assert [made.gpu_of(rank).name for rank in range(6)] == ["h100-80gb"] * 2 + ["v100-32gb"] * 2 + ["h100-80gb"] * 2
    assert made.host_link.name == "pcie5"
    assert topology(gpu=["t4", GPUS["l4"]]).nnodes == 2
    assert Topology.from_plain(made.to_plain()) == made
    write(tmp_path / "mixed.json", made, {})
    assert topology(str(tmp_path / "mixed.json")) == made
    assert topology(str(tmp_path / "mixed.json"), gpu="t4").gpus == ()
    assert [gpu.name for gpu in made.kinds] == ["h100-80gb", "v100-32gb"] and made.kind_of_nodes == (0, 1)
    assert made.gpus == made.kinds and topology(gpu="t4").kinds == (GPUS["t4"],)


def test_constants_of_a_cluster_are_what_predictions_take() -> None:
    slow_host = topology(nproc_per_node=1, settings={"constants.host_seconds": 1.0})
    plan = Plan(batch=8, microbatch=8)
    assert predict(model("mlp-784x256x10"), plan, slow_host).seconds("launches") > 1
    with pytest.raises(ValueError, match="no constant 'host_second'; there are host_seconds"):
        predict(model("mlp-784x256x10"), plan, topology(nproc_per_node=1, settings={"constants.host_second": 1.0}))


def test_a_file_says_what_differs_from_a_preset(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    inside = {"nnodes": 2, "inter_node": "ib-ndr", "gpu": {"memory_gb": 40.0}, "constants": {"ramp_k": 5.0}}
    file.write_text(json.dumps({"format": FORMAT, "preset": "dgx-a100", "cluster": inside}))
    made = topology(str(file))
    assert (made.nnodes, made.inter_node, made.gpu.memory_gb) == (2, LINKS["ib-ndr"], 40.0)
    assert made.constants == (("ramp_k", 5.0),)
    assert parse_cluster(str(file)) == made
    assert parse_cluster(f"{file}x32").nnodes == 4
    assert parse_cluster(f"{file}x4").world_size == 4
    assert (
        make("virtual", {"preset": str(file), "settings": [("gpu.memory_gb", 20)]}).describe().startswith("virtual: 2")
    )


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    made = topology("p4d", nnodes=2, settings={"constants.host_seconds": 1e-5, "gpu.memory_gb": 39.5})
    write(tmp_path / "a.json", made, {"date": "2026-01-01"})
    assert topology(str(tmp_path / "a.json")) == made
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is no JSON: .*line 1 column 2"),
        ("[]", "format must be 'labkit cluster 1', got 'list'"),
        ('{"format": "x"}', "got 'x'"),
        ('{"format": "labkit cluster 1", "cluster": 3}', "cluster must be a table"),
        ('{"format": "labkit cluster 1", "preset": "dgx"}', "unknown preset 'dgx'"),
        ('{"format": "labkit cluster 1", "cluster": {"gpu": {"memory_gb": "big"}}}', "gpu.memory_gb must be a number"),
        ('{"format": "labkit cluster 1", "cluster": {"gpu": {"memory_gb": NaN}}}', "gpu.memory_gb must be a number"),
        ('{"format": "labkit cluster 1", "cluster": {"constants": 3}}', "unknown setting 'constants'"),
        ("[" * 100_000, "nested too deeply"),
        (b"\xff\xfe", "is no JSON"),
    ],
)
def test_a_bad_file_is_named_with_what_is_wrong(tmp_path: Path, text: str | bytes, said: str) -> None:
    file = tmp_path / "bad.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=said) as caught:
        topology(str(file))
    assert str(file) in str(caught.value)


def test_a_file_that_is_not_there_says_how_it_comes_to_be(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.json: No such file or directory; `labkit calibrate`"):
        topology(str(tmp_path / "none.json"))


def test_settings_are_typed_at_a_shell(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse("gpu.memory_gb=40") == ("gpu.memory_gb", 40)
    assert parse("inter_node=ib-ndr") == ("inter_node", "ib-ndr")
    with pytest.raises(ValueError, match="NAME=VALUE"):
        parse("gpu.memory_gb")
    asked = ["predict", "--model", "gpt-1.3b", "--cluster", "a100x2", "--batch", "8", "--set", "gpu.memory_gb=41.5"]
    assert main(asked) == 0
    assert "41.5" in capsys.readouterr().out
