"""Private names of torch occur in labkit/torch_versions only: a new version of torch changes that folder alone."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import PContext
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler
from torch.nn.parallel import DistributedDataParallel

ROOT = Path(__file__).resolve().parents[2]
THE_PLACE = ROOT / "labkit/torch_versions"
SUBMISSIONS = ("autograder/tests/", "/mutants/", "/variants/")
"""Learners' code, and tests with such code."""


class TensorOfOwnClass(torch.Tensor):
    pass


OBJECTS = (
    torch.zeros(1),
    torch.zeros(1).untyped_storage(),
    torch.nn.Parameter(torch.zeros(1)),
    torch.nn.Parameter(torch.zeros(1).as_subclass(TensorOfOwnClass)),
    torch.nn.Module(),
    torch.default_generator,
    torch.ops.aten.add,
    torch.ops.aten.add.Tensor,
    dist.HashStore(),
    dist.ProcessGroup,
    dist.Work,
    torch.optim.Optimizer,
    DeviceMesh,
    DistributedDataParallel,
    LocalElasticAgent,
    PContext,
    DynamicRendezvousHandler,
)
ATTRIBUTES = {name for each in OBJECTS for name in dir(each)}
EXCEPTIONS = {
    "torch.distributed.ProcessGroup._start_coalescing": "torch calls it on a process group written in Python",
    "torch.distributed.ProcessGroup._end_coalescing": "the same",
}
SOURCES = [
    path
    for package in ("labkit", "autograder")
    for path in sorted((ROOT / package).rglob("*.py"))
    if THE_PLACE not in path.parents and not any(part in path.as_posix() for part in SUBMISSIONS)
]


def is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.endswith("__") for part in name.split("."))


def imported(nodes: Iterable[ast.AST]) -> dict[str, str]:
    """Full names of what a module imports, by the names that it uses."""
    names: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                names[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    return names


def full_name(node: ast.AST, names: dict[str, str]) -> str:
    """What an expression such as `dist.Store` refers to: `torch.distributed.Store`; empty if it is not imported."""
    if isinstance(node, ast.Name):
        return names.get(node.id, "")
    if isinstance(node, ast.Attribute):
        owner = full_name(node.value, names)
        return owner and f"{owner}.{node.attr}"
    return ""


def overridden(kind: ast.ClassDef, names: dict[str, str]) -> Iterator[tuple[int, str]]:
    """Private methods of torch's classes that a class defines anew."""
    for base in [full_name(base, names) for base in kind.bases]:
        if base.startswith("torch."):
            module, _, name = base.rpartition(".")
            original = getattr(importlib.import_module(module), name)
            for method in kind.body:
                if isinstance(method, ast.FunctionDef) and is_private(method.name) and hasattr(original, method.name):
                    yield method.lineno, f"{base}.{method.name}"


def private_names(text: str) -> Iterator[tuple[int, str]]:
    """Line and name of each private name of torch: imported, looked up, or defined anew in a subclass.

    An attribute of an unknown object counts if torch's objects have one of that name, and the file defines none.
    """
    nodes = list(ast.walk(ast.parse(text)))
    names = imported(nodes)
    own = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    own |= {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    foreign = ATTRIBUTES - own
    for node in nodes:
        match node:
            case ast.Import():
                used = [alias.name for alias in node.names]
            case ast.ImportFrom() if not node.level:
                used = [f"{node.module}.{alias.name}" for alias in node.names]
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                continue
            case ast.Attribute(attr=attribute):
                used = [full_name(node, names)]
                if not used[0] and attribute in foreign:
                    used = [f"torch.OBJECT.{attribute}"]
            case ast.Call(func=ast.Name(id="getattr" | "setattr" | "hasattr"), args=[_, ast.Constant(value=name), *_]):
                used = [f"torch.OBJECT.{name}"] if name in ATTRIBUTES else []
            case ast.ClassDef():
                yield from overridden(node, names)
                continue
            case _:
                continue
        yield from ((node.lineno, name) for name in used if name.startswith("torch") and is_private(name))


def test_no_private_names_of_torch() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in SOURCES
        for line, name in private_names(path.read_text())
        if name not in EXCEPTIONS
    ]
    assert len(SOURCES) > 300
    assert not found, f"give them public names in {THE_PLACE.relative_to(ROOT)}"


@pytest.mark.parametrize(
    "text",
    [
        "import torch._dynamo",
        "from torch._C import _distributed_c10d as bindings",
        "from torch.distributed.rendezvous import _rendezvous_handlers",
        "import torch\nwith torch._C._DisableTorchDispatch(): pass",
        "import torch.distributed as dist\ndist.distributed_c10d._world",
        "def key(storage): return storage._cdata",
        "def is_parameter(tensor): return getattr(tensor, '_is_param', False)",
        "from torch.distributed.elastic.multiprocessing import PContext\n"
        "class Workers(PContext):\n    def _poll(self): pass",
    ],
)
def test_private_names_are_found(text: str) -> None:
    assert list(private_names(text))
