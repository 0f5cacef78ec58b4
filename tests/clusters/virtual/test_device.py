"""Device functions: memory, and copies to host memory and storage, on virtual and on real ranks."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest
import torch

from labkit import Job, local, virtual
from labkit.hardware import Link, Storage

MB = 4 * 256_000
HEAD = "import torch, labkit\n"


def values(source: str, **options: object) -> list[object]:
    cluster = virtual(nproc_per_node=2, **options)  # type: ignore[arg-type]
    return cluster.run(Job(source=HEAD + dedent(source))).raise_if_failed().values


@pytest.mark.parametrize("ranks", ["threads", "processes"])
def test_a_virtual_rank_knows_what_it_holds(ranks: str) -> None:
    source = """
        x = torch.empty(256_000)
        held = [labkit.memory_allocated()]
        del x
        held += [labkit.memory_allocated(), labkit.max_memory_allocated()]
        labkit.reset_peak_memory_stats()
        [*held, labkit.max_memory_allocated()]
    """
    assert values(source, ranks=ranks) == [[MB, 0, MB, 0]] * 2


def test_copies_leave_the_account_and_take_their_links_time(tmp_path: Path) -> None:
    path = tmp_path / "rank.pt"
    source = f"""
        import time
        x = torch.ones(256_000)
        start = time.perf_counter()
        copy = labkit.to_host(x)
        copied = time.perf_counter()
        del x
        held = labkit.memory_allocated()
        labkit.write({{"x": copy}}, "{path}")
        written = time.perf_counter()
        back = labkit.to_device(copy)
        (held, labkit.memory_allocated(), copied - start, written - copied, back.sum().item())
    """
    held, again, copying, writing, total = values(
        source,
        host_link=Link("slow", 1.0, 1e-3, "made up"),
        storage=Storage("slower", 0.1, 0.1, 1e-3, "made up"),
    )[0]  # type: ignore[misc]
    assert (held, again) == (0, MB)
    assert copying == pytest.approx(1e-3 + MB / 1e9, rel=0.02)
    assert writing == pytest.approx(1e-3 + MB / 1e8, rel=0.02)
    assert total == 256_000
    assert torch.equal(torch.load(path)["x"], torch.ones(256_000))


def test_fake_tensors_take_the_time_and_leave_no_file(tmp_path: Path) -> None:
    path = tmp_path / "rank.pt"
    source = f"""
        copy = labkit.to_host(torch.empty(10**9))
        labkit.write(copy, "{path}")
        back = labkit.to_device(copy)
        (list(back.shape), labkit.memory_allocated())
    """
    shape, held = values(source, fake=True)[0]  # type: ignore[misc]
    assert shape == [10**9] and 4 * 10**9 <= held < 4 * 10**9 + 512
    assert not path.exists()


@pytest.mark.parametrize("fake", [False, True])
def test_what_is_computed_from_a_host_copy_is_host_memory(fake: bool) -> None:
    source = """
        weight = torch.nn.Parameter(labkit.to_host(torch.zeros(256_000)))
        optimizer = torch.optim.AdamW([weight])
        for _ in range(2):
            weight.grad = labkit.to_host(torch.ones(256_000))
            optimizer.step()
        pieces = torch.cat([weight.detach(), weight.detach()]).chunk(2)
        held = [labkit.memory_allocated()]
        state = [value for value in optimizer.state[weight].values() if value.dim()]
        on_gpu = labkit.to_device(pieces[0])
        product = on_gpu * weight.detach()[0]
        [*held, labkit.memory_allocated(), len(state)]
    """
    for held, after, states in values(source, fake=fake):  # type: ignore[misc]
        assert held <= 4096  # the step's counter, a scalar
        assert after - held == 2 * MB and states == 2


@pytest.mark.parametrize("fake", [False, True])
def test_what_is_written_is_read_in_host_memory(fake: bool, tmp_path: Path) -> None:
    source = f"""
        import os, time
        path = "{tmp_path}/" + os.environ["RANK"]
        labkit.write({{"x": labkit.to_host(torch.ones(256_000)), "step": 3}}, path)
        start = time.perf_counter()
        data = labkit.read(path)
        (data["step"], tuple(data["x"].shape), labkit.memory_allocated(), time.perf_counter() - start)
    """
    for step, shape, held, seconds in values(source, fake=fake, storage=Storage("slow", 1.0, 0.1, 1e-3, "made up")):  # type: ignore[misc]
        assert (step, shape, held) == (3, (256_000,), 0)
        assert seconds == pytest.approx(1e-3 + MB / 1e8, rel=0.02)


def test_the_same_calls_work_on_real_ranks(tmp_path: Path) -> None:
    source = f"""
        before = labkit.memory_allocated()
        x = torch.ones(25_000_000)
        during, copy = labkit.memory_allocated(), labkit.to_host(x)
        labkit.write(copy, "{tmp_path}/x.pt")
        assert torch.equal(labkit.read("{tmp_path}/x.pt"), copy)
        labkit.reset_peak_memory_stats()
        back = labkit.to_device(copy, "cpu")
        assert back.device.type == "cpu" and back.data_ptr() != copy.data_ptr()
        (during - before, labkit.max_memory_allocated(), labkit.to_device(copy)[0].item())
    """
    grown, most, value = local(1).run(Job(source=HEAD + dedent(source))).raise_if_failed().values[0]
    assert 0.9e8 < grown < 1.5e8 and most > 1e8 and value == 1
