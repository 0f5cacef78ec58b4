"""GPUs, links and clusters as data: their figures against measured ones, and what is refused."""

from __future__ import annotations

import csv
import json
import statistics
from pathlib import Path

import pytest

from labkit import virtual
from labkit.clusters.job import InvalidJob
from labkit.clusters.virtual import kill
from labkit.hardware import GPU, GPUS, LINKS, PRESETS, STORAGE, Link, Topology, topology

PUBLISHED = Path(__file__).with_name("published_gemm.csv")


def test_published_matrix_products_are_met() -> None:
    errors = []
    with PUBLISHED.open() as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            m, n, k = (int(row[name]) for name in "mnk")
            width = 1 if row["dtype"].startswith("float8") else 2
            seconds = GPUS[row["gpu"]].seconds(2 * m * n * k, width * (m * k + k * n) + 2 * m * n, row["dtype"])
            errors.append(seconds / (2 * m * n * k / float(row["tflops"]) / 1e12) - 1)
    print(f"{len(errors)} products: bias {statistics.mean(errors):+.1%}, worst {max(map(abs, errors)):.1%}")
    assert statistics.median(map(abs, errors)) < 0.12
    assert max(map(abs, errors)) < 0.4


@pytest.mark.parametrize(
    ("gpu", "tb_per_s"), [("a100-80gb", (1.61, 1.70)), ("h100-80gb", (2.90, 2.97)), ("h200-141gb", (4.01, 4.15))]
)
def test_copies_run_at_the_measured_bandwidth(gpu: str, tb_per_s: tuple[float, float]) -> None:
    reached = 1e10 / GPUS[gpu].seconds(0, 1e10, "float32") / 1e12
    assert tb_per_s[0] * 0.98 < reached < tb_per_s[1] * 1.02


def test_an_operator_costs_its_launch_and_the_longer_of_computing_and_moving() -> None:
    gpu = GPU("round", 100.0, 10.0, 80.0, 1000.0, "made up", matmul_efficiency=0.5, memory_efficiency=0.5)
    assert gpu.seconds(0, 0, "float32") == gpu.launch_seconds
    assert gpu.seconds(5e13, 1, "bfloat16") == pytest.approx(1.0, rel=1e-4)
    assert gpu.seconds(5e12, 1, "torch.float32") == pytest.approx(1.0, rel=1e-4)
    assert gpu.seconds(5e12, 1, "tf32") == pytest.approx(1.0, rel=1e-4), "it has no TF32"
    assert gpu.seconds(5e12, 1, "int64") == pytest.approx(1.0, rel=1e-4), "no rate of its own"
    assert gpu.seconds(1, 5e11, "bfloat16") == pytest.approx(1.0, rel=1e-4)


def test_fp32_products_do_without_tf32_unless_it_is_asked_for() -> None:
    a100 = GPUS["a100-80gb"]
    assert a100.seconds(1e15, 0, "float32") == pytest.approx(8 * a100.seconds(1e15, 0, "tf32"), rel=0.01)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_plain_data(name: str) -> None:
    preset = topology(name, nnodes=3, nodes_per_rack=2)
    assert Topology.from_plain(json.loads(json.dumps(preset.to_plain()))) == preset
    assert preset.host_link == LINKS[preset.gpu.host_link]
    assert all(thing.source for thing in (preset.gpu, preset.intra_node, preset.inter_node, preset.storage))


def test_a_path_names_what_a_message_crosses() -> None:
    cluster = topology("p4d", nnodes=4, nodes_per_rack=2, oversubscription=4, switch_gb_per_s=100)

    def names(a: int, b: int) -> tuple[list[str], list[str]]:
        leaving, arriving = cluster.path(a, b)
        return [hop.name for hop in leaving], [hop.name for hop in arriving]

    assert names(0, 7) == (["port of rank 0, out", "switch of node 0"], ["port of rank 7, in"])
    near = names(0, 15)
    assert near == (
        ["port of rank 0, out", "network card 0 of node 0, out"],
        ["network card 3 of node 1, in", "port of rank 15, in"],
    )
    leaving, arriving = names(0, 31)
    assert leaving == [*near[0], "uplink of rack 0, out"]
    assert arriving == ["uplink of rack 1, in", "network card 3 of node 3, in", "port of rank 31, in"]
    assert cluster.path(0, 31)[0][-1].bytes_per_second == 2 * 4 * 12.5e9 / 4


@pytest.mark.parametrize("name", ["h100-80gb", "b200-180gb", "l4", "rtx-4090"])
def test_fp8_is_twice_as_quick_as_bf16(name: str) -> None:
    """With sums in fp32: the RTX 4090's 660.6 TFLOP/s are with sums in fp16, which training does not use."""
    gpu = GPUS[name]
    assert gpu.seconds(1e15, 0, "bfloat16") / gpu.seconds(1e15, 0, "float8_e4m3fn") == pytest.approx(2, rel=0.01)


def test_another_gpu_brings_its_own_host_link() -> None:
    assert topology(gpu="h100-80gb").host_link.name == "pcie5"
    assert topology("dgx-a100", gpu="t4").host_link.name == "pcie3"
    assert topology(gpu="t4", host_link="pcie4").host_link.name == "pcie4"


def test_storage_writes_and_reads_at_its_rates() -> None:
    disk = STORAGE["nvme-a100"]
    assert disk.write_seconds(8.2e9) == pytest.approx(1.0, rel=0.01)
    assert disk.read_seconds(9.3e9) == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"oversubscription": 0.5}, "oversubscription"),
        ({"nodes_per_rack": 0}, "nodes_per_rack"),
        ({"switch_gb_per_s": -1.0}, "switch_gb_per_s"),
        ({"storage": "nvme"}, "nvme-a100"),
        ({"host_link": "pcie9"}, "pcie"),
        ({"gpu": "h100"}, "h100-80gb"),
        ({"preset": 4}, "preset must be .* got 4; 4 GPUs in a node are nproc_per_node=4"),
        ({"preset": 2.5}, "preset must be a cluster's name, such as 'dgx-a100', got 2.5"),
        ({"gpu": ["t4", 4]}, "gpu must be a name or a GPU, got 4"),
        ({"inter_node": 4}, "inter_node must be a name or a Link, got 4"),
        ({"storage": LINKS["ib-hdr"]}, "storage must be a name or a Storage, got Link"),
        ({"settings": 4}, "settings must be a table"),
        ({"faults": kill(rank=1, at=0.5)}, "faults must be a list"),
        ({"faults": [3]}, "faults are made by kill"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(options: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidJob, match=said):
        virtual(**options)  # type: ignore[arg-type]


def test_machines_have_the_cards_that_their_makers_list() -> None:
    """Gb/s of a whole node: NVIDIA's DGX user guides, AWS's instance pages."""
    listed = {
        "dgx-1": 400, "dgx-a100": 1600, "dgx-h100": 3200, "dgx-h200": 3200, "dgx-b200": 3200,
        "p4d": 400, "p5": 3200, "cloud-t4": 50, "cloud-l4": 100,
    }  # fmt: skip
    for name, gbps in listed.items():
        preset = PRESETS[name]
        assert preset.nics_per_node * preset.inter_node.gb_per_s * 8 == gbps, name
    assert PRESETS["dgx-1"].inter_node.name.startswith("ib-")


def test_efficiencies_are_shares() -> None:
    with pytest.raises(ValueError, match="efficiencies"):
        Link("too good", 1.0, 0.0, "made up", collective_efficiency=1.2)
