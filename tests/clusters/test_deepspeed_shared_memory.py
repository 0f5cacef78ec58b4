"""DeepSpeed compiles nothing when ranks begin; see benchmarks/programs.py for DeepSpeed itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit import Job, local, virtual
from labkit.clusters import Cluster


@pytest.mark.parametrize("cluster", [local(nproc_per_node=2), virtual(), virtual(ranks="processes")])
def test_its_collectives_in_shared_memory_are_not_compiled(cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "site-packages"
    cpu = folder / "deepspeed" / "ops" / "op_builder" / "cpu"
    cpu.mkdir(parents=True)
    builders = "".join(
        f"class {name}:\n    def is_compatible(self, verbose=False):\n        return True\n"
        for name in ("ShareMemCommBuilder", "CCLCommBuilder")
    )
    (cpu / "comm.py").write_text(builders)
    for package in (cpu, *list(cpu.parents)[:3]):
        (package / "__init__.py").touch()
    (folder / "deepspeed" / "__init__.py").write_text("import deepspeed.ops.op_builder.cpu.comm\n")
    source = f"""
import sys
sys.path.insert(0, {str(folder)!r})
import deepspeed
from deepspeed.ops.op_builder.cpu.comm import CCLCommBuilder, ShareMemCommBuilder
ShareMemCommBuilder().is_compatible(), CCLCommBuilder().is_compatible(False)
"""
    assert cluster.run(Job(source=source)).raise_if_failed().values == [(False, True)] * 2
