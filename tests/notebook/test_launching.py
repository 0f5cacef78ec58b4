"""torchrun's own options of %%torchrun, and cells that leave the notebook as scripts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ENVIRONMENT = "import os\n[os.environ[name] for name in ('WORLD_SIZE', 'LOCAL_WORLD_SIZE', 'GROUP_WORLD_SIZE')]"
SUM = """
import os
import torch
import torch.distributed as dist
from labkit.exercises import ring_allreduce

dist.init_process_group("gloo")
x = torch.ones(3)
ring_allreduce.ring_all_reduce(x)
if dist.get_rank() == 0:
    print(dist.get_world_size(), x.tolist(), os.environ["TORCHELASTIC_MAX_RESTARTS"])
dist.barrier()
dist.destroy_process_group()
"""
MODULE = """%%exercise ring_allreduce
__all__ = ["ring_reduce_scatter", "ring_all_gather", "ring_all_reduce"]
import torch.distributed as dist
def ring_reduce_scatter(tensor, group=None): ...
def ring_all_gather(shard, group=None): ...
def ring_all_reduce(tensor, group=None):
    dist.all_reduce(tensor)
"""


@pytest.fixture(scope="module")
def folder(kernel) -> Path:
    kernel.run("%cluster local --nproc-per-node 2")
    return Path(eval(kernel.run("import os; os.getcwd()").result))


def test_nodes_and_ranks_in_torchruns_words(kernel, folder: Path) -> None:
    assert kernel.run(f"%%torchrun --nnodes 1:2\n{ENVIRONMENT}").result == "[0-3] ['4', '2', '2']"
    cores = len(os.sched_getaffinity(0))
    assert kernel.run(f"%%torchrun --nproc-per-node cpu\n{ENVIRONMENT}").result.endswith(f"['{cores}', '{cores}', '1']")
    port = "import os\nos.environ['MASTER_PORT']"
    assert (
        kernel.run(f"%%torchrun --master_port 4711 --standalone --rdzv-backend c10d\n{port}").result == "[0-1] '4711'"
    )


def test_standalone_is_one_node_of_a_cluster_that_has_more(kernel, folder: Path) -> None:
    kernel.run("%cluster local --nproc-per-node 2 --nnodes 2")
    assert kernel.run(f"%%torchrun --standalone\n{ENVIRONMENT}").result == "[0-1] ['2', '2', '1']"
    kernel.run("%cluster local --nproc-per-node 2")


def test_the_role_is_in_the_environment_with_and_without_an_agent(kernel, folder: Path) -> None:
    role = "import os\nos.environ['ROLE_NAME']"
    assert kernel.run(f"%%torchrun --role trainer\n{role}").result == "[0-1] 'trainer'"
    assert kernel.run(f"%%torchrun --role trainer --max-restarts 1\n{role}").result == "[0-1] 'trainer'"
    assert kernel.run(f"%%torchrun\n{role}").result == "[0-1] 'default'"


def test_every_option_of_torchrun_works_or_is_refused_with_its_reason(kernel, folder: Path) -> None:
    from torch.distributed.run import get_args_parser

    works = {"--nnodes": "1", "--nproc-per-node": "1", "--rdzv-backend": "c10d", "--max-restarts": "0", "--role": "a"}
    works |= {"--master-port": "4711", "--standalone": "", "-h": "", "--help": ""}
    for action in get_args_parser()._actions:
        for option in action.option_strings:
            value = works.get(option.replace("_", "-"))
            if value is None:
                outputs = kernel.run(f"%%torchrun {option} {action.choices[0] if action.choices else ''}\n1")
                assert outputs.stderr.startswith(f"UsageError: %%torchrun: {option.replace('_', '-')}: "), (
                    option,
                    outputs.stderr,
                )
            elif option not in ("-h", "--help"):
                outputs = kernel.run(f"%%torchrun {option} {value}\n1")
                assert outputs.stderr == "" and outputs.result, (option, outputs.stderr)


def test_a_cluster_whose_nodes_come_and_go(kernel, folder: Path) -> None:
    chosen = kernel.run("%cluster local --nproc-per-node auto --nnodes 2 --join-node 0.3")
    assert chosen.stdout.startswith("local: 2 simulated nodes of ") and "a node joins after 0.3 s" in chosen.stdout
    cell = """%%torchrun -n 1 --nnodes 1:2
import os, time
while os.environ["GROUP_WORLD_SIZE"] == "1":
    time.sleep(0.1)
os.environ["WORLD_SIZE"]"""
    outputs = kernel.run(cell)
    assert outputs.result == "[0-1] '2'"
    assert outputs.stdout == "note: restarted once because a node joined, with 2 nodes and 2 ranks\n"
    assert "give a number" in kernel.run("%cluster virtual -n gpu").stderr
    kernel.run("%cluster local --nproc-per-node 2")


def test_restarts_are_noted_below_the_output(kernel, folder: Path) -> None:
    cell = """%%torchrun -n 2 --max-restarts 1
import os, pathlib, time
restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
print("start", restarts, flush=True)
if os.environ["RANK"] == "0":
    pathlib.Path("printed").touch()
while not pathlib.Path("printed").exists():  # a failure ends all ranks, also those that have not printed
    time.sleep(0.01)
assert restarts == "1" or os.environ["RANK"] == "0"
restarts"""
    outputs = kernel.run(cell)
    number = kernel.run("1").messages[0][1]["execution_count"] - 1
    why = f"restarted once after rank 1 failed: AssertionError at Cell In[{number}], line 9"
    assert outputs.stdout == f"[0-1] start 0\n[0-1] start 1\nnote: {why}\n"
    assert outputs.result == "[0-1] '1'"


def test_a_saved_cell_does_the_same_under_plain_torchrun(kernel, folder: Path) -> None:
    kernel.run(MODULE)
    here = kernel.run(f"%%torchrun -n 2 --max-restarts 2\n{SUM}").stdout
    assert here.splitlines()[0] == "[0] 2 [2.0, 2.0, 2.0] 2"
    saved = kernel.run(f"%%torchrun -n 2 --max-restarts 2 --save sum.py --print-command\n{SUM}").stdout.splitlines()
    assert saved[0] == "saved as sum.py" and len(saved) == 2
    assert "torchrun --standalone --nproc-per-node=2 --max-restarts=2 sum.py" in saved[1]
    script = (folder / "sum.py").read_text()
    assert saved[1] in script and "It needs torch and labkit. Your ring_allreduce: labkit.exercises looks in" in script
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    there = subprocess.run(
        ["bash", "-c", saved[1]],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
    )
    assert there.returncode == 0, there.stderr
    assert there.stdout == "2 [2.0, 2.0, 2.0] 2\n"


def test_the_command_keeps_the_port_and_the_role(kernel, folder: Path) -> None:
    from torch.distributed.run import config_from_args, get_args_parser

    options = "-n 1 --master-port 4711 --role tester --save port.py --print-command"
    command = kernel.run(f"%%torchrun {options}\n1").stdout.splitlines()[-1]
    assert command.endswith("torchrun --master-port=4711 --nproc-per-node=1 --role=tester port.py")
    read = config_from_args(get_args_parser().parse_args(command.split("torchrun ")[1].split()))[0]
    assert (read.rdzv_backend, read.rdzv_endpoint, read.role) == ("static", "127.0.0.1:4711", "tester")
    shown = kernel.run("%%torchrun --nnodes 3 -n 2 --master-port 4711 --save two.py --print-command\n1").stdout
    assert "# NUMBER is 0 on HOST, and 1 to 2 on the others" in shown
    words = "--nnodes=3 --node-rank=NUMBER --master-addr=HOST --master-port=4711 --nproc-per-node=2 two.py"
    assert shown.splitlines()[-1].endswith(f"torchrun {words}")


def test_a_file_is_overwritten_only_when_that_is_said(kernel, folder: Path) -> None:
    (folder / "mine.py").write_text("precious")
    refused = kernel.run("%%torchrun --save mine.py\n1")
    assert "mine.py exists; --force overwrites it" in refused.stderr and refused.error == ""
    assert (folder / "mine.py").read_text() == "precious"
    kernel.run("%%torchrun --save mine.py --force\nprint(1)")
    assert (folder / "mine.py").read_text().endswith('It needs torch.\n"""\n\nprint(1)\n')
    assert (
        "--save needs the name of a Python file, got 'mine.txt'" in kernel.run("%%torchrun --save mine.txt\n1").stderr
    )
    assert "no/where.py cannot be written: No such file" in kernel.run("%%torchrun --save no/where.py\n1").stderr


def test_the_command_for_several_nodes_and_for_slurm(kernel, folder: Path) -> None:
    shown = kernel.run("%%torchrun --nnodes 1:2 -n gpu --print-command\n1").stdout
    assert "# run on each of 1:2 nodes; HOST is the name of one of them, the same on all." in shown
    number = kernel.run("1").messages[0][1]["execution_count"] - 1
    assert shown.splitlines()[-1] == (
        "torchrun --nnodes=1:2 --rdzv-backend=c10d --rdzv-endpoint=HOST:29500 --rdzv-id=a-cell "
        f"--nproc-per-node=gpu cell_{number}.py"
    )
    kernel.run("%cluster virtual --nnodes 2 --nproc-per-node 4")
    assert "--nproc-per-node=4" in kernel.run("%%torchrun --print-command\n1").stdout
    kernel.run("%cluster local --nproc-per-node 2")


def test_slurms_command_starts_torchrun_once_on_each_node() -> None:
    import argparse

    from labkit.clusters.launch_options import Nodes
    from labkit.clusters.slurm.cluster import SlurmCluster
    from labkit.clusters.slurm.script import ResourceRequest
    from labkit.clusters.torchrun_command import TorchrunCommand
    from labkit.notebook import launching

    asked = ResourceRequest(
        nnodes=2, nproc_per_node=4, cpus_per_task=3, partition="gpu", sbatch_options=("--reservation=a b",)
    )
    cluster = SlurmCluster(asked, 0.0, sys.executable, None, None)
    options = argparse.Namespace(
        save=None, print_command=True, nnodes=None, nproc_per_node=None, max_restarts=0, force=False, master_port=None,
        role=None, standalone=False,
    )  # fmt: skip
    command = TorchrunCommand(("x.py",), Nodes(None, 2), 4, 0, {}).explained(cluster)
    assert launching.instead_of_running(options, cluster, "1", 3)
    assert command.startswith(
        "srun --nodes=2 --partition=gpu '--reservation=a b' --ntasks-per-node=1 --cpus-per-task=12 sh -c 'torchrun "
    )
    assert '--rdzv-endpoint="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)":29500' in command


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        ("--rdzv-endpoint host:1", "--rdzv-endpoint: the cluster sets up the rendezvous of a cell's ranks"),
        ("--master-addr 10.0.0.1", "the cluster sets up the rendezvous of a cell's ranks"),
        ("--log-dir x", "each rank's output is always shown and saved in its own file"),
        ("--rdzv-backend etcd", "ranks of a cell use the c10d rendezvous, got 'etcd'"),
        ("--rdzv-backend static", "ranks of a cell use the c10d rendezvous, got 'static'"),
        ("-m", "-m: ranks are forked, with torch imported, and run this cell"),
        ("-r 3", "-r: each rank's output is always shown"),
        ("-t 3", "-t: each rank's output is always shown"),
        ("--signals-to-handle SIGTERM", "the kernel's interrupt stops a cell's ranks"),
        ("--standalone --nnodes 2", "--standalone: one node, but 2 are asked for"),
        ("--nnodes 1:2 --master-port 4711 --print-command", "torchrun chooses MASTER_PORT: leave out --master-port"),
        ("--nnodes 3:2", "expected MIN:MAX"),
        ("--nnodes 0:2", "expected a whole number of at least 1, got '0'"),
        ("-n tpu", "expected a whole number of at least 1, got 'tpu'"),
        ("--max-restarts -1", "a whole number"),
    ],
)
def test_what_means_nothing_here_is_answered_in_a_line(kernel, folder: Path, options: str, answer: str) -> None:
    outputs = kernel.run(f"%%torchrun {options}\n1")
    assert answer in outputs.stderr and outputs.stderr.count("\n") == 1 and outputs.error == ""
    assert "--rdzv-endpoint" not in kernel.complete("%%torchrun --r")
