"""The key-value store on virtual ranks: torch's own answers, on the virtual clock; others run while a rank waits."""

from __future__ import annotations

import pytest

from labkit import Job, local, virtual
from labkit.clusters.virtual.scheduler.key_values import DEFAULT_TIMEOUT_SECONDS

HEAD = """\
import os, time, torch, torch.distributed as dist
from datetime import timedelta
dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
"""

AT_A_FREE_PORT = """
def tcp_store():
    "The first rank listens where the system has a port free, and tells the others."
    store = dist.TCPStore("localhost", 0, n, True, wait_for_workers=False) if rank == 0 else None
    port = [store and store.port]; dist.broadcast_object_list(port)
    return store or dist.TCPStore("localhost", port[0], n, False)
"""

OPERATIONS = """
store = MAKE
out = []
if rank == 0:
    store.set("a", "1"); store.set("b", b"\\x00\\xff")
store.wait(["a", "b"])
out.append((store.get("a"), store.get("b"), store.multi_get(["a", "b"]), store.check(["a"]), store.check(["a", "z"])))
store.add("sum", rank + 1); dist.barrier(); out.append((store.get("sum"), store.add("sum", 0)))
if rank == 0:
    out.append((store.compare_set("c", "x", "y"), store.compare_set("c", "", "y"), store.compare_set("c", "y", "z"),
                store.compare_set("c", "q", "r"), store.get("c"), store.delete_key("c"), store.delete_key("c")))
dist.barrier()
if rank == n - 1:
    store.multi_set(["d", "e"], ["4", "5"]); store.append("d", "!"); store.append("f", "new")
out.append(store.multi_get(["e"])); dist.barrier()
out.append((store.get("d"), store.get("f"), store.num_keys())); dist.barrier()
prefixed = dist.PrefixStore("p", store)
if rank == 0: prefixed.set("k", "v")
out.append((prefixed.get("k"), store.get("p/k")))
try: store.wait(["never"], timedelta(milliseconds=30))
except RuntimeError: out.append("too long")
store.set_timeout(timedelta(milliseconds=20))
try: store.get("never")
except RuntimeError: out.append("too long again")
dist.barrier()
out
"""


@pytest.mark.parametrize(
    "make",
    [
        "tcp_store()",
        'dist.FileStore(os.environ["LABKIT_TEST_FILE"], n)',
    ],
)
@pytest.mark.parametrize("ranks", ["threads", "processes"])
def test_every_operation_answers_as_torchs_own_stores_do(
    make: str, ranks: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    source = HEAD + AT_A_FREE_PORT + OPERATIONS.replace("MAKE", make)
    if "FileStore" in make:  # it has no append, and counts keys as each process remembers them
        source = source.replace('store.append("d", "!"); store.append("f", "new")', 'store.set("f", "new")').replace(
            "store.num_keys()", "0"
        )
        # and claims to delete keys that are already gone
        source = source.replace(', store.delete_key("c"), store.delete_key("c")', ', store.delete_key("c")')

    def outputs(cluster: object) -> list[object]:
        environment = {"LABKIT_TEST_FILE": str(tmp_path_factory.mktemp("store") / "store")}
        return cluster.run(Job(source=source, environment=environment)).raise_if_failed().values  # type: ignore[attr-defined]

    assert outputs(virtual(nproc_per_node=3, ranks=ranks)) == outputs(local(nproc_per_node=3))  # type: ignore[arg-type]


def test_queues_barriers_and_listing() -> None:
    source = (
        HEAD
        + """
store = dist.TCPStore("localhost", 1234, n, rank == 0)
if rank == 0:
    got = [store.queue_pop("q") for _ in range(n - 1)]
else:
    time.sleep(rank); store.queue_push("q", str(rank)); got = store.queue_len("other")
store.barrier("all", n)
try: store.queue_pop("q", block=False)
except dist.QueueEmptyError as error: said = str(error)
got, said, sorted(key for key in store.list_keys() if "all" not in key), time.perf_counter() >= 2
"""
    )
    run = virtual(nproc_per_node=3).run(Job(source=source)).raise_if_failed()
    assert run.values == [([b"1", b"2"], "queue is empty", [], True), *[(0, "queue is empty", [], True)] * 2]


@pytest.mark.parametrize("ranks", ["threads", "processes"])
def test_a_rank_that_waits_for_a_key_sleeps_and_others_run(ranks: str) -> None:
    """Rank 1 waits 2 virtual seconds; meanwhile rank 0 works and sets the key."""
    source = (
        HEAD
        + """
store = dist.TCPStore("localhost", 1234, n, rank == 0)
if rank == 0:
    time.sleep(2.0); store.set("key", "late")
began = time.perf_counter(); value = store.get("key")
value, time.perf_counter()
"""
    )
    run = virtual(nproc_per_node=2, ranks=ranks).run(Job(source=source)).raise_if_failed()  # type: ignore[arg-type]
    (_, _), (value, ended) = run.values
    assert value == b"late" and 2.0 < ended < 2.001


def test_a_time_out_passes_on_the_virtual_clock() -> None:
    source = (
        HEAD
        + """
store = dist.distributed_c10d._get_default_store()
said = ""
if rank == 1:
    try: store.wait(["missing"], timedelta(seconds=30))
    except dist.DistStoreError as error: said = str(error)
said, time.perf_counter()
"""
    )
    run = virtual(nproc_per_node=2).run(Job(source=source)).raise_if_failed()
    said, ended = run.values[1]
    assert "wait timeout after 30000ms, keys:" in said and "missing" in said and ended == pytest.approx(30, abs=0.01)
    assert run.values[0][1] < 1 and run.wall_seconds < 20


@pytest.mark.parametrize("ranks", ["threads", "processes"])
def test_waiting_for_a_key_that_nobody_sets_is_diagnosed_at_once(ranks: str) -> None:
    source = (
        "import torch.distributed as dist\nstore = dist.TCPStore('h', 1, 2, dist_rank == 0)\n".replace(
            "dist_rank", "int(__import__('os').environ['RANK'])"
        )
        + "if store and __import__('os').environ['RANK'] == '1':\n    store.get('answer')\n"
    )
    run = virtual(nproc_per_node=2, ranks=ranks).run(Job(source=source, filename="Cell In[3]"))  # type: ignore[arg-type]
    error = run.ranks[1].error
    assert error is not None and error.type == "DeadlockError" and error.time < DEFAULT_TIMEOUT_SECONDS + 1
    assert "rank 1 waits in store.get('answer') at Cell In[3], line 4" in error.message
    assert run.ranks[0].error is None


def test_who_waits_for_a_key_of_a_rank_that_failed_is_a_consequence() -> None:
    source = HEAD + (
        "store = dist.TCPStore('h', 1, n, rank == 0)\n"
        "if rank == 0: time.sleep(1); raise ValueError('mine')\n"
        "store.get('from 0')"
    )
    run = virtual(nproc_per_node=3).run(Job(source=source))
    assert run.first_failure is run.ranks[0]
    assert [r.error.type for r in run.ranks if r.error] == ["ValueError", "PeerFailed", "PeerFailed"]
    assert "stopped because of it" in run.diagnosis()


def test_a_group_made_from_a_store_and_two_masters_on_one_port() -> None:
    source = """
import os, torch, torch.distributed as dist
rank = int(os.environ["RANK"])
store = dist.TCPStore("127.0.0.1", 29555, 2, rank == 0)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
x = torch.ones(1); dist.all_reduce(x)
said = ""
if rank == 0:
    try: dist.TCPStore("localhost", 29555, 2, True)
    except dist.DistNetworkError as error: said = str(error)
own = dist.HashStore(); own.set("rank", str(rank)); dist.barrier()
chosen = dist.TCPStore("localhost", 0, 1, True)
dist.destroy_process_group(); dist.init_process_group("gloo"); dist.all_reduce(x)
x.item(), "EADDRINUSE" in said, own.get("rank"), chosen.port > 0
"""
    run = virtual(nproc_per_node=2).run(Job(source=source)).raise_if_failed()
    assert run.values == [(4.0, True, b"0", True), (4.0, False, b"1", True)]
