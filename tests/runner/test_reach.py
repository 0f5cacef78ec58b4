"""What a change reaches: in a small checkout made for it, and in this one."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiers
from reach import Reach, Selection
from sources import Sources

CATALOGUE = """
[[exercise]]
number = 1
name = "phase1/ring"
[[exercise]]
number = 2
name = "phase1/two_rings"
"""
FILES = {
    "labkit/__init__.py": """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from labkit.lazy import draw as draw
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, {"draw": "labkit.lazy"})
""",
    "labkit/catalogue.toml": CATALOGUE,
    "labkit/base.py": "",
    "labkit/lazy.py": "from labkit import base",
    "labkit/started.py": "",
    "labkit/starter.py": "ENTRY = 'labkit.started:main'",
    "labkit/typed.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from labkit.base import Base\n",
    "labkit/page/__init__.py": "",
    "labkit/page/static/page.js": "",
    "labkit/bench/command.py": "def run():\n    from labkit.exercises import ring\n",
    "labkit/cli.py": "from labkit.bench import command\ndef _dance(options):\n    from labkit import dance",
    "labkit/__main__.py": "",
    "labkit/dance.py": "",
    "labkit/agent/__init__.py": "",
    "labkit/agent/__main__.py": "",
    "labkit/near/program.py": "",
    "labkit/near/starter.py": "from pathlib import Path\nPROGRAM = Path(__file__).with_name('program.py')",
    "labkit/far.py": "from pathlib import Path\nPROGRAM = Path(__file__).parent / 'near' / 'program.py'",
    "labkit/course/phase1/ring/given.py": "",
    "solutions/phase1/ring.py": "from labkit.course.phase1.ring import given",
    "solutions/phase1/two_rings.py": "from labkit.exercises import ring",
    "notebooks/phase1/01_ring.ipynb": '{"cells": []}',
    "notebooks/phase1/02_two_rings.ipynb": '{"cells": []}',
    "tests/test_base.py": "def test(): from labkit.base import x",
    "tests/test_lazy.py": "from labkit import draw",
    "tests/test_starter.py": "from labkit import starter",
    "tests/test_typed.py": "from labkit import typed",
    "tests/test_page.py": "from labkit import page",
    "tests/test_rings.py": "PROGRAM = '''\nfrom labkit.exercises import two_rings\n'''",
    "tests/test_all.py": "from labkit import catalogue\ncatalogue.all_exercises()",
    "tests/test_words.py": "TEXT = 'a ring of ranks'",
    "tests/test_cli.py": "from labkit import cli",
    "tests/test_dance.py": "COMMAND = ['python', '-m', 'labkit', 'dance']",
    "tests/test_help.py": "TEXT = 'labkit dance --help'",
    "tests/test_agent.py": "COMMAND = ['python', '-m', 'labkit.agent']",
    "tests/test_near.py": "from labkit.near import starter",
    "tests/test_far.py": "from labkit import far",
    "tests/test_through.py": "from autograder.mutants import judging\nfor rubric in judging.rubrics(): pass",
    "tests/bench/test_bench.py": "from labkit import cli",
    "tests/bench/conftest.py": "",
    "tests/programs/crash.py": "",
    "tests/programs/test_programs.py": "",
    "docs/guide.md": "",
    "tests/test_docs.py": "",
    "lab": "",
    "strange.bin": "",
}


@pytest.fixture
def small(tmp_path: Path) -> Reach:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return Reach(Sources(tmp_path, FILES), ["lab"], {"tests/test_docs.py": ["docs/*"]}, {})


def reached(reach: Reach, *changed: str) -> set[str]:
    """The modules whose tests all run."""
    found = reach.selection(changed)
    assert found.everything == ""
    return {module for module, exercises in found.modules.items() if exercises is None}


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("labkit/base.py", {"tests/test_base.py", "tests/test_lazy.py"}),
        ("labkit/lazy.py", {"tests/test_lazy.py"}),
        ("labkit/started.py", {"tests/test_starter.py"}),
        ("labkit/page/static/page.js", {"tests/test_page.py"}),
        ("labkit/dance.py", {"tests/test_dance.py", "tests/test_help.py"}),
        ("labkit/agent/__main__.py", {"tests/test_agent.py"}),
        ("labkit/near/program.py", {"tests/test_near.py", "tests/test_far.py"}),
        ("docs/guide.md", {"tests/test_docs.py"}),
        ("tests/bench/conftest.py", {"tests/bench/test_bench.py"}),
        ("tests/programs/crash.py", {"tests/programs/test_programs.py"}),
        ("tests/test_words.py", {"tests/test_words.py"}),
    ],
)
def test_a_change_reaches_who_imports_names_or_reads_the_file(small: Reach, changed: str, tests: set[str]) -> None:
    assert reached(small, changed) == tests


@pytest.mark.parametrize("changed", ["solutions/phase1/ring.py", "labkit/course/phase1/ring/given.py"])
def test_an_exercise_reaches_who_builds_on_it_and_its_part_of_what_goes_through_all(small: Reach, changed: str) -> None:
    notebooks = {"notebooks/phase1/01_ring.ipynb", "notebooks/phase1/02_two_rings.ipynb"}
    # a command imports it within a function: its own tests call that, those of other commands do not
    assert reached(small, changed) == {"tests/test_rings.py", "tests/bench/test_bench.py", *notebooks}
    assert small.selection([changed]).modules["tests/test_all.py"] == {"ring", "two_rings"}
    only = small.selection(["solutions/phase1/two_rings.py"]).modules
    assert only["tests/test_all.py"] == only["tests/test_through.py"] == {"two_rings"}


@pytest.mark.parametrize("changed", ["lab", "strange.bin", "labkit/gone.py"])
def test_what_nothing_is_known_of_means_all_tests(small: Reach, changed: str) -> None:
    assert changed in small.selection(["docs/guide.md", changed]).everything


@pytest.fixture(scope="module")
def here(sources: Sources) -> Reach:
    table = tiers.table()
    return Reach(sources, table["everything"]["files"], table["reads"], table["otherwise"])


def select(reach: Reach, *changed: str) -> Selection:
    found = reach.selection(changed)
    assert found.everything == ""
    return found


def test_something_is_known_of_every_file(here: Reach, files: list[str]) -> None:
    everything = tiers.table()["everything"]["files"]
    unknown = {path: here.selection([path]).everything for path in files if not tiers.matches(path, everything)}
    assert {path: why for path, why in unknown.items() if why} == {}


def test_a_leaf_reaches_little_and_the_core_nearly_all(here: Reach) -> None:
    leaf = select(here, "solutions/phase3_multi_node/zero.py").modules
    assert {
        "tests/course/phase3_multi_node/zero/test_zero.py",
        "notebooks/phase3_multi_node/15_zero.ipynb",
    } <= leaf.keys()
    assert leaf["tests/autograder/test_whole_course.py"] is not None
    core = select(here, "labkit/clusters/forkserver/client.py").modules
    assert len(leaf) < 0.2 * len(core)
    assert {"tests/clusters/local/test_ranks.py", "tests/notebook/test_torchrun_magic.py"} <= core.keys()


@pytest.mark.parametrize(
    ("changed", "test"),
    [
        ("autograder/course/phase1_data_parallel/collectives/rubric.py", "tests/course/test_rubrics.py"),
        ("autograder/batch/command.py", "tests/autograder/test_batch_settings.py"),
        ("autograder/demo.py", "tests/autograder/test_demo.py"),
        ("autograder/nbgrader_config.py", "tests/autograder/test_whole_course.py"),
        ("labkit/clusters/agent/__main__.py", "tests/clusters/agent/test_nodes.py"),
        ("labkit/clusters/forkserver/launch.py", "tests/clusters/local/test_ranks.py"),
        ("labkit/__main__.py", "tests/launch/test_detached.py"),
    ],
)
def test_what_processes_of_a_test_import_reaches_it(here: Reach, changed: str, test: str) -> None:
    assert test in select(here, changed).modules
