"""Search: what is found for some words, where it leads, and that it follows the learner's files."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from labkit.catalogue import find
from labkit.search import Hit, Index, Passage
from labkit.search.explanations import VARIES, entries
from labkit.search.passages import heading_id, passages_of
from labkit.start import own_copy


@pytest.fixture(scope="module")
def index() -> Index:
    return Index()


def places(hits: list[Hit]) -> list[tuple[str, str]]:
    return [(hit.passage.path.name, hit.passage.section) for hit in hits]


@pytest.mark.parametrize(
    ("words", "page", "section"),
    [
        ("rendezvous", "glossary.md", "rendezvous"),
        ("ranks hang", "troubleshooting.md", "Real ranks hang"),
        ("all_reduce latencies", "02_collectives.ipynb", "6 Small tensors pay for rounds, large ones for bytes"),
        ("bucket valley", "24_autotune.ipynb", "6 Bucket sizes have a valley"),
        ("memory decid", "strategies.md", "Memory decides between DDP and ZeRO"),
    ],
)
def test_words_lead_to_the_section_that_explains_them(
    index: Index, workspace: Path, words: str, page: str, section: str
) -> None:
    for name in ("process_group", "collectives", "autotune"):
        own_copy(find(name))
    assert (page, section) in places(index.search(words))[:3]


QUERIES = {
    "hanging job": "troubleshooting.md: Real ranks hang",
    "my training hangs": "hangs.md: What a hang is",
    "process stuck in barrier": "troubleshooting.md: monitored_barrier names the missing rank",
    "nccl timeout": "troubleshooting.md: NCCL's watchdog",
    "watchdog": "troubleshooting.md: NCCL's watchdog",
    "loss differs between ranks": "troubleshooting.md: The loss differs between ranks",
    "loss is not the same on all ranks": "troubleshooting.md: The loss differs between ranks",
    "connection refused": "troubleshooting.md: Connection refused: nobody listens at that address",
    "address already in use": "troubleshooting.md: The port is taken",
    "cuda out of memory": "troubleshooting.md: CUDA out of memory",
    "rank killed": "troubleshooting.md: A rank is killed",
    "exit code -9": "troubleshooting.md: torchrun reports exit code -9",
    "nan loss": "troubleshooting.md: A NaN in backward",
    "default process group has not been initialized": "troubleshooting.md: No process group yet",
    "unused parameters": "troubleshooting.md: Unused parameters in DDP",
    "checkpoint keys module prefix": "troubleshooting.md: Keys with a prefix",
    "no space left": "troubleshooting.md: No space left: the disk is full",
    "test without gpu": "testing_without_gpus.md: Test distributed code without GPUs",
    "how many gpus": "before_you_buy.md: Before you buy: how many GPUs, and which network?",
    "which parallelism": "strategies.md: Which parallelism, when",
    "slow training": "timeline.md: Read a timeline of distributed training",
}
"""What people search for who have a problem, and where they find it first."""
ERRORS = {
    "watchdog caught collective operation timeout": "NCCL's watchdog",
    "watchdog got stuck": "No heartbeat",
    "unhandled system error nccl": "unhandled system error",
    "ncclSystemError": "unhandled system error",
    "nccl unhandled cuda error": "unhandled cuda error",
    "nccl internal error": "internal error",
    "nccl invalid usage": "invalid usage",
    "remote process exited or there was a network error": "remote process exited or there was a network error",
    "duplicate gpu detected": "Two ranks on one GPU",
    "no space left on device shm": "NCCL: no space in /dev/shm",
    "nccl out of memory": "NCCL finds no GPU memory",
    "nccl docker0 veth": "NCCL picks the wrong interface",
    "no socket interface found": "No network interface",
    "connection closed by remote peer": "A peer has closed its connection",
    "message truncated": "NCCL gets a message of another size",
    "infiniband completion error 12 vendor err 129": "InfiniBand or RoCE gives up",
    "roce gid index": "InfiniBand or RoCE gives up",
    "mtu mismatch": "InfiniBand or RoCE gives up",
    "ibv_modify_qp failed": "Two cards cannot connect",
    "ibv_reg_mr cannot allocate memory": "Memory cannot be locked",
    "memlock": "ulimit and memlock",
    "gpudirect rdma disabled": "GPUDirect RDMA is off",
    "nvidia_peermem": "GPUDirect RDMA is off",
    "nvls multicast": "NVLink SHARP does not start",
    "undefined symbol ncclCommRegister": "Another NCCL than torch's is loaded",
    "no backend type associated with device type cpu": "A CPU tensor with NCCL",
    "nccl hangs p2p": "NCCL hangs on one node",
    "invalid device ordinal": "A GPU number that does not exist",
    "slurm cuda_visible_devices": "A GPU number that does not exist",
    "device-side assert triggered": "A CUDA kernel fails",
    "illegal memory access": "A CUDA kernel fails",
    "fallen off the bus": "Xid 79: a GPU has fallen off the bus",
    "xid 79": "Xid 79: a GPU has fallen off the bus",
    "uncorrectable ecc error": "A GPU's memory is damaged",
    "error 802 system not yet initialized": "CUDA does not start: Error 802",
    "nvidia driver too old": "The driver is too old for this torch",
    "driver/library version mismatch": "nvidia-smi does not fit the driver",
    "cannot re-initialize cuda in forked subprocess": "CUDA in a forked process",
    "cuda out of memory fragmentation": "Memory is fragmented",
    "reserved but unallocated memory": "Memory is fragmented",
    "PYTORCH_CUDA_ALLOC_CONF": "Memory is fragmented",
    "name or service not known": "A host name is not known",
    "ipv6 network addresses": "A host name is not known",
    "RANK expected but not set": "RANK is not set",
    "failed to recv got 0 bytes": "The store's server has ended",
    "rendezvous timeout": "A node does not join in time",
    "keep-alive heartbeat rendezvous": "A node has lost the others",
    "gloo connectFullMesh failed": "gloo connects to 127.0.0.1",
    "unable to find address for": "gloo does not find its interface",
    "childfailederror": "torchrun says that a child failed",
    "received 1 death signal": "torchrun receives a signal",
    "sighup nohup torchrun": "torchrun receives a signal",
    "torchrun restart loop": "torchrun restarts again and again",
    "destroy_process_group was not called": "The process group was not destroyed",
    "OMP_NUM_THREADS": "torchrun sets OMP_NUM_THREADS",
    "expected to have finished reduction": "Unused parameters in DDP",
    "mark a variable ready only once": "A parameter is marked ready twice",
    "ddp expects same model": "Models with another number of parameters",
    "fsdp mixed dtypes": "FSDP: parameters of several dtypes",
    "weight must be 2-D": "FSDP: 'weight' must be 2-D",
    "inf fp16 all_reduce": "inf after a reduce in fp16",
    "nan loss fp16": "inf after a reduce in fp16",
    "dataloader worker killed by signal": "A worker ends without a word",
    "dataloader bus error": "Data loader workers die",
    "dataloader worker exited unexpectedly": "A worker ends without a word",
    "too many open files": "Too many open files",
    "checkpoint other world size": "Saved by another number of ranks",
    "missing key in checkpoint": "A key that the checkpoint does not have",
    "failed finding central directory": "A file that was cut off",
    "mismatched collectives": "TORCH_DISTRIBUTED_DEBUG finds calls that differ",
    "slurm oom_kill": "Slurm has killed a step for memory",
    "slurm time limit": "Slurm's time limit",
    "insufficient nvidia.com/gpu": "No node has a free GPU",
    "NCCL_DEBUG": "NCCL_DEBUG and NCCL_DEBUG_SUBSYS",
    "flight recorder": "Flight recorder",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "Flight recorder",
    "py-spy": "py-spy",
    "NCCL_SOCKET_IFNAME": "Interfaces: NCCL_SOCKET_IFNAME, NCCL_IB_HCA, GLOO_SOCKET_IFNAME",
    "nvidia-smi topo": "nvidia-smi topo -m",
    "CUDA_LAUNCH_BLOCKING": "CUDA_LAUNCH_BLOCKING",
    "docker ipc host": "The size of /dev/shm",
    "TORCH_DISTRIBUTED_DEBUG": "TORCH_DISTRIBUTED_DEBUG",
}
"""What people type of an error or of a tool, and the entry of the troubleshooting page that they find first."""


@pytest.mark.parametrize("query", QUERIES)
def test_a_problem_is_found_first(index: Index, workspace: Path, query: str) -> None:
    page, section = places(index.search(query))[0]
    assert f"{page}: {section}" == QUERIES[query]


@pytest.mark.parametrize("query", ERRORS)
def test_an_error_is_found_first(index: Index, workspace: Path, query: str) -> None:
    assert places(index.search(query))[0] == ("troubleshooting.md", ERRORS[query])


def test_each_message_of_the_troubleshooting_page_is_found_by_its_own_words(index: Index, workspace: Path) -> None:
    pasted = {
        entry.title: " ".join(" ".join(entry.errors).replace(VARIES, " ").split())
        for entry in entries("troubleshooting.md")
        if entry.errors
    }
    assert len(pasted) > 130
    first = {title: places(index.search(text))[0][1] for title, text in pasted.items()}
    assert {title: found for title, found in first.items() if found != title} == {}


def test_a_section_is_listed_once_and_an_excerpt_marks_the_words(index: Index) -> None:
    hits = index.search("deadlocks")
    assert len(hits) > 3 and len({(hit.passage.path, hit.passage.section) for hit in hits}) == len(hits)
    marked = {part.lower() for hit in hits for part, matches in hit.parts if matches}
    assert marked and all(re.match("deadlock", part) for part in marked)
    assert index.search("? ! a") == [] and index.search('"unclosed') == []


def test_if_no_section_has_all_words_those_with_some_are_listed(index: Index) -> None:
    assert ("glossary.md", "rendezvous") in places(index.search("xyzzy rendezvous"))


def test_what_is_saved_or_removed_is_seen_by_the_next_search(workspace: Path) -> None:
    index, copy = Index(), own_copy(find("trainer"))
    assert index.search("quokka") == []
    notebook = nbformat.read(copy, as_version=4)
    notebook.cells.append(new_code_cell("# my own note about a quokka", id="own"))
    nbformat.write(notebook, copy)
    (hit,) = index.search("quokka")
    assert (hit.passage.title, hit.passage.place) == ("04 · A data-parallel trainer", "cell-id=own")
    copy.write_text("{")  # being saved
    assert index.search("quokka") == []
    nbformat.write(notebook, copy)
    assert len(index.search("quokka")) == 1
    copy.unlink()
    assert index.search("quokka") == []


def test_passages_of_a_notebook_lead_to_its_cells(tmp_path: Path) -> None:
    text = "# 01 · A *title*\n\n[course home](../HOME.md) · [02 →](b.ipynb)\n\nFirst.\n\n"
    text += "## 1 Two `ranks`\n\nSecond, [a link](c.md)."
    cells = [new_markdown_cell(text, id="a"), new_code_cell("x = 1", id="b"), new_code_cell("%check", id="c")]
    nbformat.write(new_notebook(cells=cells), tmp_path / "one.ipynb")
    found = [(one.section, one.text, one.place, one.begins, one.code) for one in passages_of(tmp_path / "one.ipynb")]
    assert found == [
        ("01 · A title", "First.", "cell-id=a", True, False),
        ("1 Two ranks", "Second, a link.", "cell-id=a", True, False),
        ("1 Two ranks", "x = 1", "cell-id=b", False, True),
    ]


def test_passages_of_a_page_lead_to_its_headings_outside_of_code(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n\nText.\n\n```python\n# a comment\n```\n\n## How fast?\n\n| a | b |\n|---|---|\n| **1** | 2 |\n"
    )
    first, second = passages_of(page)
    assert (first.section, "# a comment" in first.text) == ("Page", True)
    assert second == Passage("Page", "How fast?", second.text, page, "How-fast?") and second.text.split() == [
        "a",
        "b",
        "1",
        "2",
    ]
    assert heading_id("`%%torchrun` beside *torchrun*") == "%%torchrun-beside-torchrun"
