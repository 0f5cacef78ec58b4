"""What one learner's server leaves open, and what another learner's looks for: code for kernels of both."""

OFFERS = """
import os, socket, subprocess, time
from pathlib import Path

secret = "only grace's"
listening = socket.create_server(("127.0.0.1", 47110))
abstract = socket.socket(socket.AF_UNIX)
abstract.bind("\\0grace")
abstract.listen()
for folder in ("/dev/shm", "/tmp"):
    Path(folder, "grace").write_text(secret)
os.mkfifo("/tmp/pipe-of-grace")
child = subprocess.Popen(["sleep", "100000"], env={**os.environ, "SECRET_OF": secret})
while (seen := Path(f"/proc/{child.pid}/environ").read_bytes().count(secret.encode())) == 0:
    time.sleep(0.01)  # it has not become another program yet
print(seen, "seen")
"""
"""A port, a socket, files in memory, and a process: all of them can be reached from the server that has them."""

LOOKS = """
import ctypes, errno, os, signal, socket, subprocess, sys
from pathlib import Path

libc = ctypes.CDLL(None, use_errno=True)

def tried(what, attempt):
    try:
        print(what, "=>", attempt())
    except Exception as problem:
        print(what, "=>", type(problem).__name__)

def call(name, *arguments):
    result = getattr(libc, name)(*arguments)
    return "worked" if result >= 0 else errno.errorcode[ctypes.get_errno()]

def connected(*address):
    with socket.socket(socket.AF_INET if len(address) > 1 else socket.AF_UNIX) as one:
        one.settimeout(5)
        one.connect(address if len(address) > 1 else address[0])
        return "connected"

def seen(text):
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        for name in ("environ", "cmdline", "maps"):
            try:
                found += [process.name] * (text in (process / name).read_bytes())
            except OSError:
                pass
    return found

OUTSIDE = {outside}
tried("port of another", lambda: connected("127.0.0.1", 47110))
tried("abstract socket of another", lambda: connected("\\0grace"))
tried("sockets of the machine", lambda: [line for line in open("/proc/net/unix") if "grace" in line or ".sock" in line
    and "hub.sock" not in line and "ada" not in line and "/home" not in line])
tried("memory of another", lambda: [name for name in os.listdir("/dev/shm") if "grace" in name])
tried("temporary files of another", lambda: [name for name in os.listdir("/tmp") if "grace" in name])
tried("processes of another", lambda: seen(b"only grace's") + seen(b"JUPYTERHUB_USER=grace"))
for port in OUTSIDE["ports"]:
    tried(f"port {port} of the hub", lambda: connected("127.0.0.1", port))
for path in OUTSIDE["sockets"]:
    tried(f"socket {path}", lambda: connected(path))
here = {int(name) for name in os.listdir("/proc") if name.isdigit()}
tried("signals", lambda: [pid for pid in OUTSIDE["processes"] if pid not in here and libc.kill(pid, 0) == 0])
child = subprocess.Popen(["sleep", "1000"])
there = ctypes.create_string_buffer(8)
vector = (ctypes.c_void_p * 2)(ctypes.addressof(there), 8)
tried("ptrace", lambda: call("ptrace", 16, child.pid, None, None))
tried("memory of a process", lambda: call("process_vm_readv", child.pid, vector, 1, vector, 1, 0))
tried("open files of a process", lambda: call("syscall", 438, os.pidfd_open(child.pid), 0, 0))
child.kill()
tried("shmget", lambda: call("shmget", 0x1234, 4096, 0o1666))
tried("msgget", lambda: call("msgget", 0x1234, 0o1666))
tried("semget", lambda: call("semget", 0x1234, 1, 0o1666))
tried("mq_open", lambda: call("mq_open", b"/grace", os.O_RDWR | os.O_CREAT, 0o666, None))
tried("keyring", lambda: call("syscall", 250, 0, -4, 1))
tried("namespaces of process 1", lambda: call("setns", os.open("/proc/1/ns/net", os.O_RDONLY), 0))
tried("debugging the kernel", lambda: call("syscall", 321, 0, None, 0))
for path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/sys/fs/cgroup/cgroup.procs", "/dev/mem"):
    tried(path, lambda: open(path, "w").write("0"))
"""
"""Prints a line for each attempt. `{outside}`: ports, sockets and processes of the machine."""
