"""Futures of collectives have gloo's values, and do not wait before the program does."""

from __future__ import annotations

from waiting import BROKEN_SECONDS

from labkit import Job, local, virtual

HEAD = "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\nrank = dist.get_rank()\n"

CHAINED = (
    HEAD
    + """
x = torch.arange(3.0)
seen = []
work = dist.all_reduce(x, async_op=True)
total = work.get_future().then(lambda done: done.value()[0].sum().item())
more = total.then(lambda done: done.value() + 1)
bad = total.then(lambda done: 1 / 0)
results = [more.wait(), total.done(), total.value()]
try:
    bad.wait()
except RuntimeError as error:
    results.append("ZeroDivisionError" in str(error))
everyone = [torch.empty(3) for _ in range(2)]
gathering = dist.all_gather(everyone, torch.full((3,), float(rank)), async_op=True)
gathering.get_future().add_done_callback(lambda done: seen.append([t.tolist() for t in done.value()]))
gathering.get_future().wait()
reduced = lambda k: dist.all_reduce(torch.ones(1) * k, async_op=True).get_future()
results.append([f.value()[0].item() for f in torch.futures.collect_all([reduced(k) for k in range(3)]).wait()])
results.append([value[0].item() for value in torch.futures.wait_all([reduced(k) for k in range(3)])])
polled = reduced(7)
while not polled.done():
    pass
results + seen + [polled.value()[0].item()]
"""
)


def test_futures_are_chained_collected_and_polled_as_with_gloo() -> None:
    real = local(nproc_per_node=2).run(Job(source=CHAINED)).raise_if_failed()
    for how in ("threads", "processes"):
        job = Job(source=CHAINED, timeout=BROKEN_SECONDS)
        assert virtual(nproc_per_node=2, ranks=how).run(job).raise_if_failed().values == real.values  # type: ignore[arg-type]


def test_a_future_that_nobody_waits_for_yet_holds_up_nothing() -> None:
    source = """
x = torch.ones(1)
if rank == 0:
    reducing = dist.all_reduce(x, async_op=True).get_future()
    dist.send(torch.ones(1), 1)
    reducing.wait()
else:
    dist.recv(torch.ones(1), 0)
    dist.all_reduce(x)
x.item()
"""
    assert virtual(nproc_per_node=2).run(Job(source=HEAD + source)).raise_if_failed().values == [2.0, 2.0]
