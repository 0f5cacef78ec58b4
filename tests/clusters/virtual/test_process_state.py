"""State that a process has once differs between ranks that are threads, as it does between processes."""

from __future__ import annotations

import pytest
from waiting import BROKEN_SECONDS

from labkit import Job, Run, local, virtual

STATE = """
import contextlib, io, logging, os, subprocess, sys, warnings
import torch, torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
seen = {}
text = io.StringIO()
with contextlib.redirect_stdout(text), warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    print("rank", rank)
    dist.barrier()
    print("still", rank)
    warnings.warn(f"warned {rank}")
    dist.barrier()
seen["redirected"], seen["caught"] = text.getvalue(), [str(one.message) for one in caught]

warnings.filterwarnings("error" if rank else "ignore", message="strict")
sys.path.append(f"/of/rank/{rank}")
sys.setrecursionlimit(3000 + rank)
torch.use_deterministic_algorithms(rank == 0)
torch.autograd.set_detect_anomaly(rank == 0)
torch.set_printoptions(precision=2 + rank)
torch.set_default_dtype(torch.float64 if rank else torch.float16)
torch.set_float32_matmul_precision("high" if rank else "medium")
torch.set_num_threads(1 + rank)
logging.basicConfig(level=logging.INFO if rank else logging.ERROR)
logging.getLogger("mine").setLevel(10 + rank)
os.environ["OF_RANK"] = str(rank)
dist.barrier()

try:
    warnings.warn("strict")
    seen["filter"] = "ignored"
except UserWarning:
    seen["filter"] = "raised"
seen["path"] = [folder for folder in sys.path if folder.startswith("/of/rank")]
seen["recursion"] = sys.getrecursionlimit()
seen["deterministic"] = torch.are_deterministic_algorithms_enabled()
seen["anomaly"] = torch.is_anomaly_enabled()
seen["printed"] = str(torch.tensor(1 / 3, dtype=torch.float32))
seen["dtype"], seen["precision"] = str(torch.get_default_dtype()), torch.get_float32_matmul_precision()
seen["threads"] = torch.get_num_threads()
seen["levels"] = logging.getLogger().level, logging.getLogger("mine").level
seen["bytes"] = os.environb[b"OF_RANK"]
logging.info("logged %d", rank)
os.system("echo system $OF_RANK")
subprocess.run("echo run $OF_RANK; echo wrong >&2; exit 3", shell=True)
seen["code"] = os.waitstatus_to_exitcode(os.system("exit 5"))
seen
"""


@pytest.fixture(scope="module")
def runs() -> tuple[Run, Run]:
    """On processes, and on threads of one process."""
    job = Job(source=STATE, timeout=BROKEN_SECONDS)
    real, threads = (cluster.run(job).raise_if_failed() for cluster in (local(nproc_per_node=2), virtual()))
    return real, threads


def test_each_rank_has_its_own_state(runs: tuple[Run, Run]) -> None:
    real, threads = runs
    assert real.values[0] != real.values[1]
    for wanted, seen in zip(real.values, threads.values, strict=True):
        assert seen == wanted


def test_what_commands_print_is_output_of_the_rank_that_started_them(runs: tuple[Run, Run]) -> None:
    real, threads = runs
    for rank, (wanted, seen) in enumerate(zip(real.ranks, threads.ranks, strict=True)):
        assert f"system {rank}\nrun {rank}\n" in wanted.output
        assert sorted(seen.output.splitlines()) == sorted(wanted.output.splitlines())
