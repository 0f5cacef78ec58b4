"""torch.compile compiles on every kind of rank, and compiled graphs are charged as what they run."""

from __future__ import annotations

import pytest
from system_packages import needs_packages
from waiting import BROKEN_SECONDS

from labkit import Job, Run, local, virtual
from labkit.clusters import Cluster
from labkit.clusters.virtual.device.loop_nests import loop_nests
from labkit.torch_versions import compilation

PROGRAM = """
import torch, torch.distributed as dist
from torch import nn
from torch._dynamo.utils import counters
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
rank = dist.get_rank()
graphs = []


def backend(graph, inputs):
    graphs.append([node.op for node in graph.graph.nodes].count("call_function"))
    return graph.forward


@torch.compile(backend=backend, fullgraph=True)
def summed(x):
    y = x.sin() + rank
    dist.all_reduce(y)
    return y * 2


@torch.compile(backend="eager")
def interrupted(x):
    y = x + 1
    print("breaks the graph on rank", rank)
    return y * 2


out = {"summed": summed(torch.ones(3)).tolist(), "interrupted": interrupted(torch.ones(2)).tolist()}
# another size on each rank: not a reason for dynamic shapes
out["sizes"] = interrupted(torch.ones(4 + rank)).tolist()
out["graphs"], out["stats"] = len(graphs), dict(counters["stats"])
for case in ("aot_eager ddp", "eager fsdp"):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 8))
    if "fsdp" in case:
        fully_shard(model)
    else:
        model = nn.parallel.DistributedDataParallel(model)
    compiled = torch.compile(model, backend=case.split()[0])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    losses = []
    for _ in range(3):
        loss = compiled(torch.randn(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    out[case] = losses
out
"""
JOB = Job(source=PROGRAM, timeout=BROKEN_SECONDS)


@pytest.fixture(scope="module")
def real() -> Run:
    return local(nproc_per_node=2).run(JOB).raise_if_failed()


@pytest.mark.parametrize("cluster", [virtual(), virtual(ranks="processes")], ids=["threads", "processes"])
def test_virtual_ranks_compile_what_local_ranks_compile(real: Run, cluster: Cluster) -> None:
    run = cluster.run(JOB).raise_if_failed()
    for wanted, seen in zip(real.values, run.values, strict=True):
        assert wanted["graphs"] == 1
        assert seen == wanted
    for rank in run.ranks:
        assert f"breaks the graph on rank {rank.rank}" in rank.output


CHARGED = """
import gc, time
import torch, torch.distributed as dist, labkit
dist.init_process_group("gloo")


def block(x, w):
    return torch.relu(torch.tanh(x @ w) * 2 + 1)


def cost(function):
    x, w = torch.ones(2048, 512), torch.ones(512, 2048)
    function(x, w)
    gc.collect()  # the compiler leaves cycles, some with tensors
    labkit.reset_peak_memory_stats()
    begin, before = time.perf_counter(), labkit.memory_allocated()
    result = function(x, w)
    return time.perf_counter() - begin, labkit.max_memory_allocated() - before


(cost(block), cost(torch.compile(block, backend="aot_eager")), cost(torch.compile(block)))
"""


def test_fused_kernels_read_and_write_inputs_and_outputs_only() -> None:
    needs_packages("g++")
    if not compilation.links_with_torch():
        pytest.skip("needs a path without spaces: inductor does not quote it")
    run = virtual("dgx-a100", nproc_per_node=2).run(Job(source=CHARGED, timeout=BROKEN_SECONDS)).raise_if_failed()
    eager, aot_eager, inductor = run.values[1]
    result = 2048 * 2048 * 4
    assert aot_eager == pytest.approx(eager, rel=1e-3)
    # of tanh, multiplication, addition and relu, each reads and writes all elements
    gpu = virtual("dgx-a100").topology.gpu
    saved = 4 * gpu.seconds(0.0, 2 * result, "float32") - gpu.seconds(0.0, 2 * result, "float32")
    assert eager[0] - inductor[0] == pytest.approx(saved, rel=0.02)
    assert (eager[1], inductor[1]) == (2 * result, result)


@pytest.mark.parametrize(
    ("lacks", "said"),
    [
        (
            "os.environ['CXX'] = 'none'\nimport torch._inductor.config as c\nc.cpp.cxx = ('none',)",
            "finds no C++ compiler",
        ),
        (
            "os.environ['CXX'] = 'cc'\nimport torch._inductor.config as c\nc.cpp.cxx = ('true',)\n"
            "torch.__file__ = '/with a space/torch/__init__.py'",
            "cannot link kernels where the path",
        ),
    ],
    ids=["compiler", "linker"],
)
def test_inductor_is_replaced_where_it_cannot_compile(lacks: str, said: str) -> None:
    source = (
        f"import os, torch\n{lacks}\n"
        "f = torch.compile(lambda x: x + 1)\ng = torch.compile(lambda x: x + 2)\n"
        "(f(torch.ones(1)) + g(torch.ones(1))).item()"
    )
    run = virtual(ranks="processes").run(Job(source=source, timeout=BROKEN_SECONDS)).raise_if_failed()
    assert run.values == [5.0, 5.0]
    assert [rank.output.count(said) for rank in run.ranks] == [1, 1]


KERNEL = """
extern "C"  void  kernel(const int64_t* in_ptr0,
                       const float* in_ptr1,
                       float* in_out_ptr0,
                       float* out_ptr0)
{
    {
        for(int64_t x0=static_cast<int64_t>(0L); x0<static_cast<int64_t>(4L); x0+=static_cast<int64_t>(1L))
        {
            auto tmp0 = in_ptr0[static_cast<int64_t>(x0)];
            auto tmp1 = in_ptr1[static_cast<int64_t>(tmp0)];
            out_ptr0[static_cast<int64_t>(x0)] = tmp1;
        }
    }
    {
        for(int64_t x0=static_cast<int64_t>(0L); x0<static_cast<int64_t>(8L); x0+=static_cast<int64_t>(8L))
        {
            auto tmp0 = at::vec::Vectorized<float>::loadu(in_out_ptr0 + static_cast<int64_t>(x0), 8L);
            tmp0.store(in_out_ptr0 + static_cast<int64_t>(x0));
        }
    }
}
"""


def test_a_loop_nest_reads_no_more_of_a_table_than_it_has_iterations() -> None:
    import torch

    args = (torch.zeros(4, dtype=torch.int64), torch.zeros(1000), torch.zeros(8), torch.zeros(4))
    lookup, update = loop_nests(KERNEL)
    assert lookup.nbytes(args) == 4 * 8 + 4 * 4 + 4 * 4
    assert update.nbytes(args) == 2 * 8 * 4
