"""What others on the network or on this machine can see of a local run: nothing listens beyond loopback."""

from __future__ import annotations

from labkit import Job, local

SOURCE = """
import os, socket, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
mine = set()
for descriptor in os.listdir("/proc/self/fd"):
    try:
        mine.add(os.readlink(f"/proc/self/fd/{descriptor}"))
    except FileNotFoundError:  # the one that listdir used
        pass
listening = []
for family in "tcp", "tcp6":
    for line in open(f"/proc/net/{family}").readlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in mine:
            listening.append(fields[1].split(":")[0])
with socket.socket() as probe:
    refused = probe.connect_ex(("127.0.0.1", int(os.environ["MASTER_PORT"])))
dist.barrier()
listening, refused != 0
"""


def test_ranks_listen_on_loopback_only_and_nobody_on_master_port() -> None:
    run = local(nproc_per_node=2).run(Job(source=SOURCE)).raise_if_failed()
    # 127.0.0.1 as the kernel writes it; gloo's own
    assert run.values == [(["0100007F"], True)] * 2
