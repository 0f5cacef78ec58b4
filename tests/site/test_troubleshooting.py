"""Each symptom of docs/troubleshooting.md, provoked: the page has the text that one really meets."""

from __future__ import annotations

import functools
import mmap
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from labkit import Job, local, virtual
from labkit.catalogue import find
from labkit.clusters.virtual import link
from labkit.hardware import topology
from labkit.predict import Plan, model, predict, search

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
ANY = "…"
"""In a symptom's text: whatever varies."""

GROUP = "import datetime, os, torch, torch.distributed as dist\nfrom torch import nn\ndist.init_process_group()\n"
DDP = GROUP + "DDP = nn.parallel.DistributedDataParallel\n"
MESH = GROUP + "from torch.distributed.device_mesh import init_device_mesh\n"
SHORT = "datetime.timedelta(seconds=1)"
WAITS = "else:\n    import time; time.sleep(600)\n"
"""A rank that is there until the other one has failed, which ends both."""

DCP = (
    "import tempfile, torch, torch.distributed.checkpoint as dcp\n"
    "with tempfile.TemporaryDirectory() as folder:\n"
    "    dcp.save({{'a': torch.ones(2)}}, checkpoint_id=folder, no_dist=True)\n"
    "    dcp.load({}, checkpoint_id=folder, no_dist=True)"
)
"""Saves a tensor `a` of two numbers and loads the state that is filled in."""

VIRTUAL = {
    "No process group yet": "import torch, torch.distributed as dist\ndist.all_reduce(torch.ones(2))",
    "The process group exists already": GROUP + "dist.init_process_group()",
    "A virtual rank has no CUDA device": "import torch\ntorch.ones(1).cuda()",
    "A rank does not see the notebook's variables": "print(learning_rate)",
    "Ranks have no keyboard": "input()",
    "A lambda cannot travel": GROUP + "dist.broadcast_object_list([lambda: 0])",
    "Everybody sends first": GROUP + "other = 1 - dist.get_rank()\ndist.send(torch.ones(1000), other)",
    "One rank skips a collective": GROUP + "if dist.get_rank() == 0:\n    dist.barrier()",
    "Ranks call different collectives": GROUP
    + "if dist.get_rank():\n    dist.barrier()\nelse:\n    dist.all_reduce(torch.ones(1))",
    "Groups created in different orders": GROUP + "dist.new_group([dist.get_rank()])",
    "dtypes that differ": GROUP
    + "dist.all_reduce(torch.ones(4, dtype=torch.float32 if dist.get_rank() else torch.float64))",
    "A rank was waited for and failed": GROUP + "assert dist.get_rank() == 0\ndist.barrier()",
    "reduce_scatter does not divide evenly": GROUP + "dist.reduce_scatter_tensor(torch.ones(3), torch.ones(4))",
    "scatter's list on every rank": GROUP + "dist.scatter(torch.ones(1), [torch.ones(1)] * 2, src=0)",
    "A message to oneself": GROUP + "dist.send(torch.ones(1), dist.get_rank())",
    "A mesh larger than the world": MESH + "init_device_mesh('cpu', (3,))",
    "An axis that the mesh does not have": MESH + "init_device_mesh('cpu', (2,), mesh_dim_names=('dp',))['tp']",
    "Tensors beside DTensors": MESH + "from torch.distributed.tensor import Shard, distribute_tensor\n"
    "distribute_tensor(torch.ones(4, 4), init_device_mesh('cpu', (2,)), [Shard(0)]) @ torch.ones(4, 4)",
    "Unused parameters in DDP": DDP
    + "whole = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])\nwhole.forward = lambda x: whole[0](x)\n"
    "ddp = DDP(whole)\nfor _ in range(2):\n    ddp(torch.ones(1, 2)).sum().backward()",
    "Models that differ between ranks": DDP + "DDP(nn.Linear(2, 2 if dist.get_rank() else 3))",
    "DDP around a frozen model": DDP + "DDP(nn.Linear(2, 2).requires_grad_(False))",
    "backward twice": "import torch\nx = torch.ones(1, requires_grad=True)\ny = x * x\ny.backward()\ny.backward()",
    "The loss has no graph": "import torch\ntorch.ones(1).sum().backward()",
    "A tensor was changed in place": "import torch\nx = torch.ones(2, requires_grad=True)\ny = x.sigmoid()\n"
    "y.add_(1)\ny.sum().backward()",
    "Two dtypes in one product": "import torch\ntorch.ones(2, 2).bfloat16() @ torch.ones(2, 2)",
    "Shapes that do not fit after sharding": "import torch\ntorch.ones(2, 3) @ torch.ones(2, 3)",
    "A NaN in backward": "import torch\ntorch.autograd.set_detect_anomaly(True)\n"
    "x = torch.zeros(1, requires_grad=True)\n(x / x).backward()",
    "unscale_ before scale": "import torch\nscaler = torch.amp.GradScaler('cpu')\n"
    "scaler.unscale_(torch.optim.SGD([torch.ones(1, requires_grad=True)], 0.1))",
    "An optimizer without parameters": "import torch\ntorch.optim.SGD([], lr=0.1)",
    "A virtual GPU is full": "import torch\nfrom torch._subclasses import FakeTensorMode\nwith FakeTensorMode():\n"
    "    torch.empty(25_000_000_000)",
    "Keys with a prefix": "from torch import nn\nnn.Linear(2, 2).load_state_dict("
    "{f'module.{name}': value for name, value in nn.Linear(2, 2).state_dict().items()})",
    "Shapes from another model": "from torch import nn\nnn.Linear(2, 3).load_state_dict(nn.Linear(2, 2).state_dict())",
    "Objects in a checkpoint": "import datetime, io, torch\nfile = io.BytesIO()\n"
    "torch.save({'day': datetime.date.today()}, file)\nfile.seek(0)\ntorch.load(file)",
    "A checkpoint that was not finished": "import tempfile, torch, torch.distributed.checkpoint as dcp\n"
    "with tempfile.TemporaryDirectory() as folder:\n    dcp.load({'a': torch.ones(1)}, checkpoint_id=folder)",
    "Models with another number of parameters": DDP
    + "DDP(nn.Sequential(*[nn.Linear(2, 2) for _ in range(1 + dist.get_rank())]))",
    "A parameter is marked ready twice": DDP
    + "from torch.utils.checkpoint import checkpoint\nwhole = nn.Linear(2, 2)\n"
    "whole.forward = lambda x, plain=whole.forward: checkpoint(plain, x, use_reentrant=True)\n"
    "ddp = DDP(whole, find_unused_parameters=True)\nddp(torch.ones(1, 2, requires_grad=True)).sum().backward()",
    "FSDP: parameters of several dtypes": GROUP + "from torch.distributed.fsdp import fully_shard\n"
    "fully_shard(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).bfloat16()))(torch.ones(1, 2))",
    "FSDP: 'weight' must be 2-D": "import torch\n"
    "torch.nn.functional.embedding(torch.zeros(1, dtype=torch.long), torch.ones(4))",
    "The scaler has seen no gradient": "import torch\nscaler = torch.amp.GradScaler('cpu')\n"
    "x = torch.ones(1, requires_grad=True)\nscaler.scale(x.detach().sum())\nscaler.step(torch.optim.SGD([x], 0.1))",
    "Saved by another number of ranks": DCP.format("{'a': torch.ones(3)}"),
    "A key that the checkpoint does not have": DCP.format("{'b': torch.ones(2)}"),
    "Optimizer state of another model": "import torch\n"
    "sgd = lambda n: torch.optim.SGD([torch.ones(1, requires_grad=True) for _ in range(n)], 0.1)\n"
    "sgd(2).load_state_dict(sgd(1).state_dict())",
    "A file that was cut off": "import io, torch\nfile = io.BytesIO()\ntorch.save(torch.ones(1000), file)\n"
    "torch.load(io.BytesIO(file.getvalue()[:2000]))",
    "A frozen configuration": "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Configuration:\n"
    "    x: int = 1\nConfiguration().x = 2",
}
"""Programs of two virtual ranks."""
LOCAL = {
    "No space left: the disk is full": "with open('/dev/full', 'w') as file:\n    file.write('a checkpoint')",
    "The host is full": "import torch\ntorch.empty(150_000_000_000_000_000)",
    "A backend that does not exist": "import torch.distributed as dist\ndist.init_process_group('ncl')",
    "No CUDA in this torch": "import torch\ntorch.ones(1).cuda()",
    "The port is taken": "import socket, torch.distributed as dist\ntaken = socket.socket()\ntaken.bind(('', 0))\n"
    "taken.listen()\ndist.TCPStore('localhost', taken.getsockname()[1], 1, is_master=True)",
    "Connection refused: nobody listens at that address": GROUP + f"dist.TCPStore('localhost', 1, 2, False, {SHORT})",
    "A key that nobody sets": GROUP + f"dist.TCPStore('localhost', 0, 1, True, {SHORT}).get('missing')",
    "The process dies inside gloo": GROUP + "dist.all_reduce(torch.ones(4 + dist.get_rank()))",
    "Connection closed by peer": GROUP + "assert dist.get_rank() == 0\ndist.barrier()",
    "A rank is killed": GROUP + "if dist.get_rank():\n    os.kill(os.getpid(), 9)\ndist.barrier()",
    "A receive times out": GROUP.replace("group()", f"group(timeout={SHORT})")
    + f"if dist.get_rank() == 0:\n    dist.recv(torch.ones(1), 1)\n{WAITS}",
    "monitored_barrier names the missing rank": GROUP
    + f"if dist.get_rank() == 0:\n    dist.monitored_barrier(timeout={SHORT})\n{WAITS}",
    "The root is not in the group": GROUP + "dist.broadcast(torch.ones(1), src=7)",
    "The list of outputs has the wrong length": GROUP + "dist.all_gather([torch.ones(1)], torch.ones(1))",
    "TORCH_DISTRIBUTED_DEBUG finds calls that differ": "import torch.distributed as dist\n"
    "dist.set_debug_level(dist.DebugLevel.DETAIL)\n" + GROUP + "dist.all_reduce(torch.ones(1 + dist.get_rank()))",
    "A CPU tensor with NCCL": GROUP.replace("group()", "group('cuda:gloo')") + "dist.all_reduce(torch.ones(1))",
    "The store's server has ended": GROUP + "first = dist.get_rank() == 0\n"
    "server = dist.TCPStore('localhost', 0, is_master=True, wait_for_workers=False) if first else None\n"
    "port = [server.port if first else 0]\ndist.broadcast_object_list(port)\n"
    "client = server or dist.TCPStore('localhost', port[0])\ndist.barrier()\n"
    "if first:\n    os._exit(3)\nclient.get('missing')",
    "gloo does not find its interface": "import os, torch.distributed as dist\n"
    "os.environ['GLOO_SOCKET_IFNAME'] = 'none0'\ndist.init_process_group('gloo')",
    "A worker ends without a word": "import os, torch\nfrom torch.utils.data import DataLoader\n"
    "class Ends:\n    def __len__(self):\n        return 4\n"
    "    def __getitem__(self, i):\n        os.kill(os.getpid(), 9)\n"
    "next(iter(DataLoader(Ends(), num_workers=1, multiprocessing_context='fork')))",
    "Too many open files": "import resource, torch\nresource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
    "kept = [torch.ones(1).share_memory_() for _ in range(64)]",
}
"""Programs of two processes."""


PRINTED = {
    "The loss differs between ranks": GROUP
    + "torch.manual_seed(rank := dist.get_rank())\nprint(f'rank {rank}: loss {torch.rand(1).item():.4f}')",
    "inf after a reduce in fp16": GROUP + "gradient = torch.full((1,), 4e4, dtype=torch.float16)\n"
    "dist.all_reduce(gradient)\nprint(gradient)",
    "DDP walks through the graph for nothing": DDP + "ddp = DDP(nn.Linear(2, 2), find_unused_parameters=True)\n"
    "for _ in range(2):\n    ddp(torch.ones(1, 2)).sum().backward()",
}
"""Programs of two virtual ranks that do not fail, and show the text in their output."""
PROCESSES: dict[str, tuple[str, ...]] = {
    "RANK is not set": ("-c", "import torch.distributed as dist\ndist.init_process_group('gloo')"),
    "A host name is not known": (
        "-c",
        f"import datetime, torch.distributed as dist\ndist.TCPStore('none.invalid', 29500, 2, False, {SHORT})",
    ),
    "Data loader workers die": (
        "-c",
        "import os, signal\nfrom torch.utils.data import DataLoader\n"
        "class Ends:\n    def __len__(self):\n        return 4\n"
        "    def __getitem__(self, i):\n        os.kill(os.getpid(), signal.SIGBUS)\n"
        "next(iter(DataLoader(Ends(), num_workers=1, multiprocessing_context='fork')))",
    ),
    "torchrun reports exit code -9": ("-m", "torch.distributed.run", "--no-python", "sh", "-c", "kill -9 $$$$"),
    **dict.fromkeys(
        ("torchrun says that a child failed", "torchrun restarts again and again", "torchrun sets OMP_NUM_THREADS"),
        ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1", "--no-python", "false"),
    ),
}
"""Arguments of Python, without the lab, by the symptom that is printed."""

ONE_OF_THEM = {"Connection closed by peer", "The store's server has ended"}
"""Symptoms whose lines are alternatives."""


def planned(name: str, nodes: int = 4, **plan: Any) -> object:
    return predict(model(name), Plan(batch=256, **plan), topology("dgx-a100", nnodes=nodes))


CALLS: dict[str, Callable[[], object]] = {
    "No layout fits": lambda: search(model("gpt-175b"), 1024, topology("dgx-a100")).best,
    "A misspelt model or cluster": lambda: topology("dgx-a10"),
    "A tensor-parallel size that does not divide": lambda: planned("gpt-13b", tensor=16, data=2),
    "A layout for another number of GPUs": lambda: planned("gpt-13b", data=8),
    "A batch that cannot be divided": lambda: planned("gpt-13b", data=32, microbatch=3),
    "Too many virtual ranks": lambda: virtual(nnodes=400, nproc_per_node=8).run(Job(source="1")),
    "An exercise that does not exist": lambda: find("ring_allreduc"),
    "A checkpoint from GPUs on a CPU": lambda: torch.serialization.default_restore_location(
        torch.UntypedStorage(1), "cuda:0"
    ),
}
"""Calls that raise."""


@functools.cache
def symptoms() -> dict[str, tuple[list[str], str]]:
    """Each symptom's title, the lines of its error, and the text below."""
    errors, _, _ = PAGE.read_text().partition("\n## Tools\n")
    found = {}
    for section in re.split(r"^### ", errors, flags=re.MULTILINE)[1:]:
        title, _, rest = section.partition("\n")
        block = re.match(r"\n((?:    .*\n)+)", rest)
        assert block is not None, title
        found[title] = [line.strip() for line in block[1].splitlines()], rest[block.end() :].split("\n## ")[0]
    return found


def part(text: str, name: str) -> str:
    """What an entry says after `- **name**:`; empty if it does not say it."""
    found = re.search(rf"^- \*\*{name}\*\*: (.*?)(?=^- \*\*|\Z)", text, re.MULTILINE | re.DOTALL)
    return " ".join(found[1].split()) if found else ""


def assert_shown(title: str, text: str) -> None:
    """Each line of the symptom is in `text`, or one of them; with anything where it has an ellipsis."""
    lines = symptoms()[title][0]
    missing = [line for line in lines if not re.search(_pattern(line), " ".join(text.split()))]
    assert len(missing) <= (len(lines) - 1 if title in ONE_OF_THEM else 0), f"{missing}\nnot in\n{text}"


def _pattern(line: str) -> str:
    return ".*".join(re.escape(" ".join(part.split())) for part in line.split(ANY))


def errors(kind: Callable[..., Any], source: str, **options: Any) -> str:
    """All errors of a program on two ranks, as they are shown: type and message."""
    run = kind(nproc_per_node=options.pop("nproc_per_node", 2), **options).run(Job(source=source))
    assert not run.ok
    return "\n".join(f"{rank.error.type}: {rank.error.message}" for rank in run.ranks if rank.error is not None)


@pytest.mark.parametrize("title", VIRTUAL)
def test_on_virtual_ranks(title: str) -> None:
    assert_shown(title, errors(virtual, VIRTUAL[title]))


@pytest.mark.parametrize("title", LOCAL)
def test_on_processes(title: str) -> None:
    if title == "No CUDA in this torch" and torch.version.cuda:
        return  # this torch has it
    assert_shown(title, errors(local, LOCAL[title]))


@pytest.mark.parametrize("title", PRINTED)
def test_in_the_output(title: str) -> None:
    run = virtual(nproc_per_node=2).run(Job(source=PRINTED[title])).raise_if_failed()
    assert_shown(title, "".join(rank.output for rank in run.ranks))


@pytest.mark.parametrize("title", PROCESSES)
def test_without_the_lab(title: str) -> None:
    assert_shown(title, output_of(PROCESSES[title]))


@functools.cache
def output_of(arguments: tuple[str, ...]) -> str:
    """All that Python prints with these arguments, without variables that a launcher sets."""
    ours = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    ended = subprocess.run(
        [sys.executable, *arguments], env={**environment, "LOGLEVEL": "INFO"}, capture_output=True, text=True
    )
    assert ended.returncode != 0
    return ended.stdout + ended.stderr


def test_on_a_cut_link() -> None:
    program = GROUP + "dist.all_reduce(torch.ones(4))"
    assert_shown("A link is cut", errors(virtual, program, nnodes=2, nproc_per_node=1, faults=[link(node=1)]))


@pytest.mark.parametrize("title", CALLS)
def test_by_a_call(title: str) -> None:
    if title == "A checkpoint from GPUs on a CPU" and torch.cuda.is_available():
        return  # it loads
    with pytest.raises(Exception) as raised:
        CALLS[title]()
    assert_shown(title, f"{raised.type.__name__}: {raised.value}")


def cited(text: str) -> Iterator[str]:
    """Contents of the repository's files that an entry links to."""
    for target in re.findall(r"\]\(\.\./((?:tests|labkit)/[^)]+\.py)\)", text):
        yield re.sub(r'"\s*\n\s*f?"', "", (ROOT / target).read_text())


PROVOKED = {*VIRTUAL, *LOCAL, *CALLS, *PRINTED, *PROCESSES, "A link is cut"}
PRINTS = ("torch, CUDA build", "torch, CPU build", "torch", "NCCL", "CUDA", "this lab", "Python", "Linux", "Slurm")
OTHERS = ("Kubernetes", "the NVIDIA driver", "the dynamic linker", "`nvidia-smi`", "your program")
"""What an entry may name as the program that prints its text: its first words, the more special first."""


def printed_by(text: str) -> str:
    """The program that prints a symptom, of `PRINTS` and `OTHERS`; empty if none."""
    return next((name for name in (*PRINTS, *OTHERS) if part(text, "Where").startswith(name)), "")


def pieces(lines: list[str]) -> list[str]:
    """What is always the same in a symptom's lines, without the type of the error and the system's text of an errno."""
    texts = [re.sub(r"^[\w.]+(Error|Warning): |(?<=>): [A-Z][a-z ]+ \(\d+\)$", "", line) for line in lines]
    names = [re.sub(r"^[\w.]+\.(\w+Error):?$", r"\1", text) for text in texts]
    return [piece.strip() for text in names for piece in text.split(ANY) if len(piece.strip()) > 8]


def test_every_symptom_is_provoked_or_says_where_it_occurs() -> None:
    assert set(symptoms()) >= PROVOKED, "a program without its entry"
    assert len(symptoms()) >= 130
    for title, (lines, text) in symptoms().items():
        assert printed_by(text), f"{title}: {part(text, 'Where')}"
        assert part(text, "Cause") and part(text, "Fix"), title
        if title in PROVOKED or printed_by(text) == "torch" or "occurs in [" in text:
            continue
        files = list(cited(text))
        assert files and all(any(piece in file for file in files) for piece in pieces(lines)), title


@functools.cache
def torch_sources() -> str:
    """All of torch that is Python, with string literals joined that stand below each other."""
    folder = Path(torch.__file__).parent
    parts = ("distributed", "nn", "utils/data", "amp", "optim", "cuda")
    files = [*folder.glob("*.py"), *(file for name in parts for file in (folder / name).rglob("*.py"))]
    return re.sub(r'"\s*\n\s*f?"', "", "\n".join(file.read_text() for file in files))


def in_torch(piece: str) -> bool:
    """Whether the installed torch has this text, in its Python or in one of its libraries."""
    if piece in torch_sources():
        return True
    # of CUDA's packages the texts of NCCL and of the CUDA runtime, which torch passes on
    folder = Path(torch.__file__).parent
    libraries = [*folder.glob("lib/*.so*"), *folder.parent.glob("nvidia/*/lib/libnccl*"),
                 *folder.parent.glob("nvidia/**/libcudart*")]  # fmt: skip
    for library in sorted(libraries, key=lambda one: one.stat().st_size):
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data.find(piece.encode()) >= 0:
                return True
    return False


def in_torch_in_parts(line: str) -> bool:
    """Whether three words in a row of a line are in torch, which joins such lines from several texts and numbers."""
    words = line.split()
    return any(in_torch(" ".join(words[i : i + 3])) for i in range(len(words) - 2))


def test_what_is_quoted_as_torchs_is_in_torch() -> None:
    """What is provoked has been seen, the rest is looked up. A CPU build does not have the texts of CUDA builds."""
    missing = []
    for title, (lines, text) in symptoms().items():
        who = printed_by(text)
        if title in PROVOKED or who not in ("torch", "torch, CUDA build"):
            continue
        if who == "torch":
            missing += [(title, piece) for piece in pieces(lines) if not in_torch(piece)]
        elif torch.version.cuda:
            missing += [(title, line) for line in lines if not in_torch_in_parts(line)]
        else:
            assert not in_torch(max(pieces(lines), key=len)), f"{title}: the CPU build has this text, too"
    assert missing == []


def test_links_within_the_page_lead_to_headings() -> None:
    text = PAGE.read_text()
    headings = re.findall(r"^##+ (.+)$", text, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert len(anchors) == len(headings), "two headings have one anchor"
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= anchors
