"""A real Slurm on one machine: munge, a controller, and nodes with their own network, name and processes.

Nothing outlives the program that starts it, however it ends: the daemons die with it, and the network with them.
Where namespaces are not permitted, all nodes have one address and differ by port.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from left_over import lasting
from waiting import wait_until

from labkit.linux.free_port import free_port
from labkit.linux.prctl import signal_when_parent_ends

_GPUS = ("/dev/null", "/dev/zero")
_PATIENT = "SlurmdTimeout=300\nMessageTimeout=60\nTCPTimeout=10"
"""A machine may be as busy as it likes: what does not answer at once is not lost."""
_IMPATIENT = "SlurmdTimeout=3\nMessageTimeout=3\nTCPTimeout=1"
"""From when a node is cut off, so that Slurm soon says so."""


def _search_path() -> str:
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


@dataclass
class Node:
    """A node of the rig. `process` is its slurmd, with namespaces the first process, with which all others end."""

    name: str
    address: str
    port: int
    process: subprocess.Popen[bytes] | None = None
    link: str = ""
    """The switch's end of its cable."""


class SlurmRig:
    """Start with `with SlurmRig(folder, nodes=2) as rig`; programs find it by `rig.environment`."""

    def __init__(self, folder: Path, nodes: int = 2, cpus: int = 4, settings: str = "", mounts: str = "true") -> None:
        """settings: further lines of slurm.conf. mounts: lines of bash, run in the mount namespace of each node."""
        self.folder = folder
        self._mounts = mounts
        self._settings = settings
        self._cpus = cpus
        self._processes: list[subprocess.Popen[bytes]] = []
        self._switch: subprocess.Popen[bytes] | None = None
        self._cables = f"lab{secrets.token_hex(3)}"
        self.namespaces = self._may_make_namespaces()
        self._network = f"10.77.{secrets.randbelow(250) + 1}"
        self.address = f"{self._network}.254" if self.namespaces else "127.0.0.1"
        self._port = free_port()
        self.nodes = [
            Node(f"node{i}", f"{self._network}.{i}" if self.namespaces else "127.0.0.1", free_port())
            for i in range(1, nodes + 1)
        ]

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables for clients."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def __enter__(self) -> SlurmRig:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        self._processes.clear()

    def ask(self, *command: str) -> str:
        """Return what a Slurm client prints."""
        done = subprocess.run(
            command, env={**os.environ, **self.environment}, stdin=subprocess.DEVNULL, capture_output=True
        )
        return (done.stdout + done.stderr).decode().strip()

    def jobs(self) -> list[str]:
        """Return ids of waiting and running jobs."""
        return self.ask("squeue", "--noheader", "--states=PENDING,RUNNING", "--format=%i").split()

    def clear(self) -> None:
        """Cancel all jobs; return when the nodes are idle again."""
        if jobs := self.jobs():
            self.ask("scancel", *jobs)
        wait_until(lambda: not self.ask("squeue", "--noheader", "--format=%i"), lambda: self.ask("squeue", "--long"))
        # the nodes share this folder: one that lost its power could not remove what its runs had there
        for folder in Path(tempfile.gettempdir()).glob("labkit-[0-9]*"):
            shutil.rmtree(folder, ignore_errors=True)

    def is_empty(self) -> bool:
        """Whether there are no jobs, and no processes on nodes that have some of their own."""
        return not self.jobs() and (not self.namespaces or not any(map(self.processes_on, self.nodes)))

    def processes_on(self, node: Node) -> list[str]:
        """Return command lines of a node's processes, except its slurmd."""
        assert node.process is not None
        if not self.namespaces:
            raise NotImplementedError("nodes without namespaces of their own share their processes")
        namespace = os.readlink(f"/proc/{self._first_process(node)}/ns/pid")
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{name}/ns/pid") == namespace:
                    command = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
                    if command and not command.startswith(("slurmd", "/usr/sbin/slurmd")):
                        found.append(command)
        return found

    def start_on(self, node: Node, user: int, *command: str) -> subprocess.Popen[bytes]:
        """Start a process on a node beside Slurm, as over ssh."""
        if not self.namespaces:
            raise NotImplementedError("nodes without namespaces of their own share their processes")
        enter = ["nsenter", f"--target={self._first_process(node)}", "--pid", "--mount", "--net"]
        enter += ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--"]
        return self._spawn(*enter, *command)

    def cut_off(self, node: Node) -> None:
        """Simulate a power loss: the node vanishes without notice."""
        assert node.process is not None
        self._configure(_IMPATIENT)
        self.ask("scontrol", "reconfigure")
        if node.link:
            self._in_switch("ip", "link", "set", node.link, "down")
        node.process.kill()
        node.process.wait()
        if node.link:
            # the kernel would do that too, but later
            with contextlib.suppress(RuntimeError):
                self._in_switch("ip", "link", "delete", node.link)

    def revive(self, node: Node) -> None:
        """Bring the node back, empty."""
        self._configure(_PATIENT)
        with lasting():
            self._start_node(node)
        self.ask("scontrol", "reconfigure")
        self.ask("scontrol", "update", f"nodename={node.name}", "state=resume")
        wait_until(self._all_idle, lambda: self.ask("sinfo", "--Node", "--long"))

    def _start(self) -> None:
        for name in ("run", "log", "state", *(f"spool/{node.name}" for node in self.nodes)):
            (self.folder / name).mkdir(parents=True)
        if self.namespaces:
            self._lay_network()
        self._configure(_PATIENT)
        run, key = self.folder / "run", self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o600)
        self._spawn(
            *("munged", "--force", "--foreground", f"--key-file={key}", f"--socket={run}/munge.socket"),
            *(f"--pid-file={run}/munged.pid", f"--seed-file={run}/munged.seed"),
            *(f"--log-file={self.folder}/log/munged.log", "--num-threads=2"),
        )
        self._wait_for_start((run / "munge.socket").exists)
        self._spawn("slurmctld", "-D", "-c", "-f", str(self.folder / "slurm.conf"))
        for node in self.nodes:
            self._start_node(node)
        wait_until(self._all_idle, lambda: self.ask("sinfo", "--Node", "--long"))

    def _wait_for_start(self, reached: Callable[[], bool]) -> None:
        """Wait for what the last process that was started does; fail at once when that has ended."""

        def is_there() -> bool:
            assert self._processes[-1].poll() is None, (self.folder / "log" / "daemons.log").read_text()
            return reached()

        wait_until(is_there)

    def _all_idle(self) -> bool:
        states = self.ask("sinfo", "--noheader", "--Node", "--partition=lab", "--format=%T").split()
        return states == ["idle"] * len(self.nodes)

    def _start_node(self, node: Node) -> None:
        slurmd = ["slurmd", "-D", "-f", str(self.folder / "slurm.conf"), "-N", node.name]
        if not self.namespaces:
            node.process = self._spawn(*slurmd)
            return
        hosts = self.folder / f"hosts.{node.name}"
        hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{n.address} {n.name}\n" for n in self.nodes))
        # the cable is connected after the namespace exists
        script = f"""
            set -e
            hostname {node.name}
            mount --bind {hosts} /etc/hosts
            {self._mounts}
            ip link set lo up
            until ip link show eth0 >/dev/null 2>&1; do sleep 0.01; done
            ip address add {node.address}/24 dev eth0
            ip link set eth0 up
            exec "$@"
        """
        namespaces = ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        node.process = self._spawn(*namespaces, "bash", "-c", script, "node", *slurmd)
        node.link = f"{self._cables}n{self.nodes.index(node) + 1}"
        self._wait_for_start(lambda: self._first_process(node) is not None)
        self._in_switch("ip", "link", "add", node.link, "type", "veth", "peer", "name", "eth0", "netns",
                        str(self._first_process(node)))  # fmt: skip
        self._in_switch("ip", "link", "set", node.link, "master", "switch", "up")

    def _first_process(self, node: Node) -> int | None:
        assert node.process is not None
        children = Path(f"/proc/{node.process.pid}/task/{node.process.pid}/children")
        with contextlib.suppress(OSError):
            first = children.read_text().split()
            if first and os.readlink(f"/proc/{first[0]}/ns/net") != os.readlink("/proc/self/ns/net"):
                return int(first[0])
        return None

    def _lay_network(self) -> None:
        """Create a switch in its own namespace, and a cable from it to this machine."""
        self._switch = self._spawn("unshare", "--net", "sleep", "infinity")
        namespace = f"/proc/{self._switch.pid}/ns/net"
        self._wait_for_start(lambda: os.readlink(namespace) != os.readlink("/proc/self/ns/net"))
        self._in_switch("ip", "link", "add", "switch", "type", "bridge")
        self._in_switch("ip", "link", "set", "switch", "up")
        ours = f"{self._cables}h"
        self._in_switch("ip", "link", "add", "host", "type", "veth", "peer", "name", ours, "netns", str(os.getpid()))
        self._in_switch("ip", "link", "set", "host", "master", "switch", "up")
        self._command("ip", "address", "add", f"{self.address}/24", "dev", ours)
        self._command("ip", "link", "set", ours, "up")

    def _in_switch(self, *command: str) -> None:
        assert self._switch is not None
        self._command("nsenter", f"--net=/proc/{self._switch.pid}/ns/net", *command)

    def _configure(self, time_limits: str) -> None:
        names = f"{self.nodes[0].name.rstrip('0123456789')}[1-{len(self.nodes)}]"
        # any device will do: Slurm counts them, and assigns them to jobs
        gpus = "".join(f"NodeName={names} Name=gpu File={device}\n" for device in _GPUS)
        (self.folder / "gres.conf").write_text(gpus)
        addresses = "".join(
            f"NodeName={node.name} NodeHostname={node.name if self.namespaces else socket.gethostname()} "
            f"NodeAddr={node.address} Port={node.port} "
            f"CPUs={self._cpus} RealMemory=8000 Gres=gpu:{len(_GPUS)} State=UNKNOWN\n"
            for node in self.nodes
        )
        (self.folder / "slurm.conf").write_text(
            f"""\
ClusterName=lab
SlurmctldHost={socket.gethostname()}({self.address})
SlurmctldPort={self._port}
SlurmUser={_user()}
SlurmdUser={_user()}
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket={self.folder}/run/munge.socket
SlurmctldPidFile={self.folder}/run/slurmctld.pid
SlurmdPidFile={self.folder}/run/slurmd.%n.pid
SlurmctldLogFile={self.folder}/log/slurmctld.log
SlurmdLogFile={self.folder}/log/slurmd.%n.log
StateSaveLocation={self.folder}/state
SlurmdSpoolDir={self.folder}/spool/%n
SwitchType=switch/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_min_interval=10000
ReturnToService=2
SlurmdParameters=config_overrides
SlurmctldTimeout=30
{time_limits}
InactiveLimit=0
KillWait=2
GresTypes=gpu
{addresses}PartitionName=lab Nodes={names} Default=YES MaxTime=00:30:00 State=UP OverSubscribe=NO
PartitionName=closed Nodes={names} AllowAccounts=physics State=UP
{self._settings}"""
        )

    def _spawn(self, *command: str) -> subprocess.Popen[bytes]:
        log = self.folder / "log" / "daemons.log"
        with log.open("ab") as file:
            process = subprocess.Popen(
                command,
                env={**os.environ, "PATH": _search_path()},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
                preexec_fn=signal_when_parent_ends,
            )
        self._processes.append(process)
        return process

    def _command(self, *command: str) -> None:
        done = subprocess.run(command, env={**os.environ, "PATH": _search_path()}, capture_output=True)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.decode().strip()}")

    @staticmethod
    def _may_make_namespaces() -> bool:
        trial = ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--mount-proc"]
        trial += [
            "sh",
            "-c",
            "ip link add end1 type veth peer name end2 && ip link add switch type bridge && hostname node1",
        ]
        environment = {**os.environ, "PATH": _search_path()}
        found = all(shutil.which(name, path=environment["PATH"]) for name in ("ip", "nsenter", "unshare"))
        if os.geteuid() != 0 or not found:
            return False
        return subprocess.run(trial, env=environment, capture_output=True).returncode == 0


def _user() -> str:
    import pwd

    return pwd.getpwuid(os.geteuid()).pw_name
