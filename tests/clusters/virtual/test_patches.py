"""The table of patches is true: what it says is replaced is what changes when virtual ranks are prepared."""

from __future__ import annotations

import fnmatch
import json
import subprocess
import sys

import pytest

from labkit import cli

CHANGES = """
import importlib, json, posix, sys, types, warnings

import torch
for module in (
    "asyncio", "multiprocessing.connection", "numpy.random", "timeit", "torch._dynamo", "torch.distributed.checkpoint",
    "torch.distributed.fsdp", "torch.distributed.rpc", "torch.distributed.tensor", "torch.profiler",
):
    importlib.import_module(module)
from labkit.clusters.virtual.hosts import host, patches, remote

class Reporter:
    def __getattr__(self, name):
        return lambda *arguments: None

def names():  # of modules and of the classes in them, with what they refer to
    found = {}
    for module_name, module in list(sys.modules.items()):
        if isinstance(module, types.ModuleType) and not module_name.startswith(("labkit", "__main__", "__mp_main__")):
            for name, value in list(vars(module).items()):
                found[f"{module_name}.{name}"] = value
                if isinstance(value, type) and value.__module__ == module_name:
                    found |= {f"{module_name}.{name}.{own}": theirs for own, theirs in list(vars(value).items())}
    return found

warnings.simplefilter("ignore")  # some names warn when they are looked up
kind, fake, account = json.loads(sys.argv[1])
output = sys.stdout
setting = patches.Setting(2, account, fake, Reporter(), lambda code: None)
changes = []
for patch in patches.PATCHES:
    if getattr(patch, kind) and patch.needed(setting):
        before = names()
        patch.apply(setting)
        after = names()
        changed = [name for name in before if name in after and before[name] is not after[name]]
        changes.append([patch.subject, patch.replaces, sorted(changed)])
print(json.dumps(changes), file=output, flush=True)
posix._exit(0)  # `os._exit` belongs to a rank by now
"""


@pytest.mark.parametrize(
    ("kind", "fake", "account"), [("threads", False, True), ("threads", True, False), ("processes", False, True)]
)
def test_what_is_replaced_is_in_the_table(kind: str, fake: bool, account: bool) -> None:
    program = subprocess.run(
        [sys.executable, "-c", CHANGES, json.dumps([kind, fake, account])], capture_output=True, text=True
    )
    rows = json.loads(program.stdout or "[]")
    assert len(rows) > 15, program.stderr
    for subject, replaces, changed in rows:
        unlisted = [name for name in changed if not any(fnmatch.fnmatchcase(name, pattern) for pattern in replaces)]
        idle = [pattern for pattern in replaces if not any(fnmatch.fnmatchcase(name, pattern) for name in changed)]
        assert (unlisted, idle) == ([], []), subject


def test_the_doctor_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--patches"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "clocks" in printed and "Nothing is put back" in printed
