"""Installed packages that keep state of their process: every rank has its own, or is informed that it has not."""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
from waiting import BROKEN_SECONDS

from labkit import Job, Run, virtual

TRAINER = """\
import functools, logging, sys
import torch.distributed as dist
from .counting import count

class State:
    shared = {}
    def __init__(self):
        self.__dict__ = self.shared
        if not self.shared:
            self.rank = dist.get_rank()

started = None
def start():
    global started
    started = dist.get_rank()

@functools.cache
def first_rank():
    return dist.get_rank()

logger = logging.getLogger("labkit_test_trainer")
logger.addHandler(logging.StreamHandler(sys.stdout))
"""
LAZY = """\
import sys, types
class Lazy(types.ModuleType):
    __path__ = __path__
    def __getattr__(self, name):
        if name != "parts":
            raise AttributeError(name)
        return len(self.seen)
lazy = Lazy(__name__)
lazy.seen = []
sys.modules[__name__] = lazy
"""
"""A module that replaces itself, as transformers does."""
HEAD = """\
import sys
sys.path.insert(0, {folder!r})
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of installed packages."""
    trainer = tmp_path / "site-packages" / "labkit_test_trainer"
    trainer.mkdir(parents=True)
    (trainer / "__init__.py").write_text(TRAINER)
    (trainer / "counting.py").write_text(
        "calls = 0\ndef count():\n    global calls\n    calls += 1\n    return calls\n"
    )
    return trainer.parent


def run(folder: Path, source: str, ranks: int = 2) -> Run:
    head = HEAD.format(folder=str(folder))
    return virtual(nproc_per_node=ranks).run(Job(source=head + source, timeout=BROKEN_SECONDS)).raise_if_failed()


def test_singletons_globals_and_caches_of_a_package_belong_to_one_rank(folder: Path) -> None:
    source = """
import labkit_test_trainer as trainer, pickle
from labkit_test_trainer.counting import count
dist.barrier()
state = trainer.State()
trainer.start()
for _ in range(rank):
    count()
trainer.logger.warning("once")
dist.barrier()
copy = pickle.loads(pickle.dumps(trainer.State))
state.rank, trainer.State().rank, trainer.started, trainer.first_rank(), trainer.count(), copy is trainer.State
"""
    finished = run(folder, source, 3)
    assert finished.values == [(r, r, r, r, r + 1, True) for r in range(3)]
    assert [rank.output for rank in finished.ranks] == ["once\n"] * 3


def test_a_package_that_a_package_imports_belongs_to_one_rank_if_it_knows_of_ranks(folder: Path) -> None:
    (folder / "labkit_test_recipe.py").write_text(
        "import labkit_test_trainer, labkit_test_numbers\nstate = labkit_test_trainer.State\n"
    )
    (folder / "labkit_test_numbers.py").write_text("import warnings\nwarnings.filterwarnings('ignore', 'a number')\n")
    source = """
import warnings
if rank == 0:
    import labkit_test_recipe
dist.barrier()
known = "labkit_test_numbers" in sys.modules, any("a number" in str(one[1]) for one in warnings.filters)
import labkit_test_recipe
known, labkit_test_recipe.state().rank
"""
    assert run(folder, source).values == [((True, True), r) for r in range(2)]


def test_a_module_that_replaces_itself_is_replaced_for_its_rank(folder: Path) -> None:
    package = folder / "labkit_test_lazy"
    package.mkdir()
    (package / "__init__.py").write_text(LAZY)
    (package / "part.py").write_text("import labkit_test_lazy\nlabkit_test_lazy.seen.append(1)\n")
    source = """
import labkit_test_lazy
if rank == 1:
    from labkit_test_lazy import part
dist.barrier()
labkit_test_lazy.parts, sys.modules["labkit_test_lazy"].seen == labkit_test_lazy.seen
"""
    assert run(folder, source).values == [(0, True), (1, True)]


def test_a_package_with_compiled_modules_is_common_to_the_ranks_and_named(folder: Path) -> None:
    (folder / "labkit_test_trainer" / f"_fast{EXTENSION_SUFFIXES[0]}").touch()
    finished = run(folder, "import labkit_test_trainer\ndist.barrier()\nlabkit_test_trainer.State().rank")
    assert len(set(finished.values)) == 1
    warned = [rank.output for rank in finished.ranks if rank.output]
    assert len(warned) == 1 and "labkit_test_trainer has compiled modules" in warned[0]
    assert "--ranks processes" in warned[0]


def test_a_package_that_can_be_loaded_only_once_is_common_to_the_ranks_and_named(folder: Path) -> None:
    package = folder / "labkit_test_registered"
    package.mkdir()
    (package / "__init__.py").write_text("from .state import seen\nfrom . import register\n")
    (package / "state.py").write_text("seen = []\n")
    (package / "register.py").write_text(
        "import torch\nif hasattr(torch, 'mine'):\n    raise KeyError('already defined')\ntorch.mine = 1\n"
    )
    source = """
import labkit_test_registered
labkit_test_registered.seen.append(rank)
dist.barrier()
from labkit_test_registered import state
sorted(labkit_test_registered.seen), state.seen is labkit_test_registered.seen
"""
    finished = run(folder, source)
    assert finished.values == [([0, 1], True)] * 2
    warned = [rank.output for rank in finished.ranks if rank.output]
    assert len(warned) == 1 and "labkit_test_registered cannot be loaded once for each rank (KeyError" in warned[0]
