"""Each symptom of docs/troubleshooting.md, provoked: the page has the text that one really meets."""

from __future__ import annotations

import functools
import re
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
    "Parameters without a gradient in DDP": DDP
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
    "A frozen configuration": "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Configuration:\n"
    "    x: int = 1\nConfiguration().x = 2",
}
"""Programs of two virtual ranks."""
LOCAL = {
    "The host is full": "import torch\ntorch.empty(150_000_000_000_000_000)",
    "A backend that does not exist": "import torch.distributed as dist\ndist.init_process_group('ncl')",
    "No CUDA in this torch": "import torch\ntorch.ones(1).cuda()",
    "The port is taken": "import socket, torch.distributed as dist\ntaken = socket.socket()\ntaken.bind(('', 0))\n"
    "taken.listen()\ndist.TCPStore('localhost', taken.getsockname()[1], 1, is_master=True)",
    "Nobody listens at that address": GROUP + f"dist.TCPStore('localhost', 1, 2, False, {SHORT})",
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
}
"""Programs of two processes."""


ONE_OF_THEM = {"Connection closed by peer"}
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
}
"""Calls that raise."""


@functools.cache
def symptoms() -> dict[str, tuple[list[str], str]]:
    """Each symptom's title, the lines of its error, and the text below."""
    found = {}
    for section in re.split(r"^### ", PAGE.read_text(), flags=re.MULTILINE)[1:]:
        title, _, rest = section.partition("\n")
        block = re.search(r"((?:^    .*\n)+)", rest, re.MULTILINE)
        assert block is not None, title
        found[title] = [line.strip() for line in block[1].splitlines()], rest[block.end() :].split("\n## ")[0]
    return found


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


def test_on_a_cut_link() -> None:
    program = GROUP + "dist.all_reduce(torch.ones(4))"
    assert_shown("A link is cut", errors(virtual, program, nnodes=2, nproc_per_node=1, faults=[link(node=1)]))


@pytest.mark.parametrize("title", CALLS)
def test_by_a_call(title: str) -> None:
    with pytest.raises(Exception) as raised:
        CALLS[title]()
    assert_shown(title, f"{raised.type.__name__}: {raised.value}")


def cited(text: str) -> Iterator[str]:
    """Contents of the repository's files that an entry links to."""
    for target in re.findall(r"\]\(\.\./((?:tests|labkit)/[^)]+\.py)\)", text):
        yield re.sub(r'"\s*\n\s*f?"', "", (ROOT / target).read_text())


def test_every_symptom_is_provoked_or_says_where_it_occurs() -> None:
    provoked = {*VIRTUAL, *LOCAL, *CALLS, "A link is cut"}
    assert provoked <= set(symptoms()), "a program without its entry"
    assert len(symptoms()) >= 40
    for title, (lines, text) in symptoms().items():
        assert all(f"- **{part}**: " in text for part in ("Cause", "Fix", "See it")), title
        if title in provoked or "occurs in [" in text:
            continue
        pieces = [part.strip() for line in lines for part in line.split(ANY) if len(part.strip()) > 8]
        files = list(cited(text))
        assert files and all(any(piece in file for file in files) for piece in pieces), title
