"""Bodies of torch's own `DistributedTest`, unmodified, one after the other on the same ranks.

The environment names them in `BODIES`, separated by spaces, and a folder for their files in `FOLDER`. The value is a
dictionary: `passed`, `skipped: reason` or the traceback, by body. torch's launcher starts processes for each body; this
program gives a body what it finds there: a rank, a file to meet by, a folder, a barrier, seeds, a process group. With
`LIMIT` in the environment, the program ends at a body that takes longer, in seconds.

Bodies that require GPUs run on the CPU: `cuda()` returns its tensor or module, and `device="cuda"` means the CPU.
"""

import contextlib
import functools
import json
import os
import sys
import threading
import time
import traceback
import unittest
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

FOLDER = Path(os.environ["FOLDER"])
# read when the module is imported
os.environ["BACKEND"], os.environ["INIT_METHOD"] = "gloo", f"file://{FOLDER}/again"
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

if "expecttest" not in sys.modules:  # a package that torch's test cases derive from; no body uses its assertions
    sys.modules["expecttest"] = ModuleType("expecttest")
    vars(sys.modules["expecttest"])["TestCase"] = unittest.TestCase

from torch.testing._internal import common_distributed, common_utils  # noqa: E402
from torch.testing._internal.common_distributed import TEST_SKIPS  # noqa: E402


def any_number_of_gpus(*_: Any, **__: Any) -> Any:
    return lambda body: body


common_distributed.skip_if_no_gpu = lambda body: body
for name in ("skip_if_lt_x_gpu", "nccl_skip_if_lt_x_gpu", "require_n_gpus_for_nccl_backend"):
    setattr(common_distributed, name, any_number_of_gpus)

from torch.testing._internal.distributed import distributed_test  # noqa: E402

REASONS = {skip.exit_code: skip.message for skip in TEST_SKIPS.values()}


def on_cpu(device: Any) -> Any:
    """The CPU for a GPU, by whatever name: `cuda:1`, 1, `torch.device("cuda")`."""
    is_gpu = isinstance(device, int) and not isinstance(device, bool)
    return "cpu" if is_gpu or str(device).startswith("cuda") else device


class OnCpu(TorchFunctionMode):
    """Functions that create or move tensors use the CPU, whatever device they name."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if "device" in kwargs:
            kwargs["device"] = on_cpu(kwargs["device"])
        if function is torch.Tensor.to:
            args = (args[0], *map(on_cpu, args[1:]))
        return function(*args, **kwargs)


def without_gpus() -> None:
    """Replace functions of torch that need a GPU, once in a process."""
    if getattr(torch.nn.Module.cuda, "is_on_cpu", False):
        return

    def itself(self: Any, *_: Any, **__: Any) -> Any:
        return self

    itself.is_on_cpu = True  # type: ignore[attr-defined]
    torch.Tensor.cuda = torch.nn.Module.cuda = itself
    for name in ("set_device", "synchronize", "manual_seed"):
        setattr(torch.cuda, name, lambda *_, **__: None)
    torch.cuda.device_count = lambda: SIZE
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.Stream, torch.cuda.stream = torch.cpu.Stream, torch.cpu.stream
    torch.cuda.current_stream = torch.cpu.current_stream
    move = torch.nn.Module.to

    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        return move(self, *map(on_cpu, args), **{name: on_cpu(value) for name, value in kwargs.items()})

    torch.nn.Module.to = to
    parallel = torch.nn.parallel.DistributedDataParallel
    construct = parallel.__init__

    @functools.wraps(construct)
    def without_devices(self: Any, module: Any, device_ids: Any = None, output_device: Any = None, **rest: Any) -> None:
        construct(self, module, **rest)

    parallel.__init__ = without_devices


class Bodies(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    """What torch's launcher gives to a body."""

    _number = 0

    def _barrier(self, wait_for: int = SIZE, timeout: float = 10) -> None:
        """torch's own counts files that are named by process."""
        self._number += 1
        key = f"{self._testMethodName} {self._number}"
        arrived, until = STORE.add(key, 1), time.time() + timeout * PATIENCE
        while arrived < wait_for:
            if STORE.check([f"{self._testMethodName} failed"]) or time.time() > until:
                raise RuntimeError("barrier timeout")
            time.sleep(0.02)
            arrived = STORE.add(key, 0)


STORE = dist.FileStore(str(FOLDER / "meetings"), SIZE)
STORE.set_timeout(timedelta(minutes=20))
PATIENCE = float(os.environ.get("PATIENCE", 1))
"""Factor of torch's own time limits, for real ranks on a busy machine."""


def meet(key: str) -> None:
    """Wait until all ranks are here. A rank whose body has failed may leave others in a deadlock first."""
    if STORE.add(key, 1) == SIZE:
        STORE.set(f"{key} complete", "")
    while True:
        try:
            STORE.wait([f"{key} complete"])
            return
        except dist.DistStoreError:
            raise
        except RuntimeError:
            continue


def record(name: str, outcome: str) -> None:
    with open(FOLDER / f"outcomes of {RANK}", "a") as file:
        print(json.dumps([name, outcome]), file=file)


@contextlib.contextmanager
def limited(name: str) -> Iterator[None]:
    """End this process if the body is still running at the limit: gloo cannot be interrupted."""
    if "LIMIT" not in os.environ:
        yield
        return

    def give_up() -> None:
        record(name, "hangs")
        os._exit(1)

    timer = threading.Timer(float(os.environ["LIMIT"]), give_up)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def outcome(name: str) -> str:
    case = Bodies(name)
    body = getattr(Bodies, name)
    if getattr(body, "__unittest_skip__", False):
        return f"skipped: {body.__unittest_skip_why__}"
    case.rank = RANK
    case.file_name = str(FOLDER / f"{name} init")
    os.environ["TEMP_DIR"] = str(FOLDER / name)
    (FOLDER / name / "test_dir").mkdir(parents=True, exist_ok=True)
    seconds = distributed_test.CUSTOM_PG_TIMEOUT.get(name, distributed_test.default_pg_timeout)
    meet(f"{name} begins")
    dist.init_process_group(
        "gloo", init_method=case.init_method, rank=RANK, world_size=SIZE, timeout=timedelta(seconds=seconds)
    )
    common_utils.set_rng_seed(1234)
    try:
        with OnCpu():
            getattr(case, name)()
        case._barrier()
    except unittest.SkipTest as skip:
        return f"skipped: {skip}"
    except SystemExit as skip:
        return f"skipped: {REASONS.get(skip.code, skip.code)}"
    except BaseException:
        STORE.set(f"{name} failed", "")
        return traceback.format_exc()
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    return "passed"


without_gpus()
outcomes = {}
for name in os.environ["BODIES"].split():
    with limited(name):
        outcomes[name] = outcome(name)
    record(name, outcomes[name])
    meet(f"{name} ends")
dict(outcomes)
