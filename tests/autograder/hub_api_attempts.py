"""What a learner tries against the hub's API with the token of the own server, and in a server outside of a sandbox."""

from __future__ import annotations

from classroom_person import Person

REQUESTS = """
import json, os
from concurrent.futures import ThreadPoolExecutor

async def ask(method, path, body):
    from jupyterhub.httpclient import fetch
    token = {"Authorization": f"token {os.environ['JUPYTERHUB_API_TOKEN']}"}
    url = os.environ["JUPYTERHUB_API_URL"] + path
    return (await fetch(url, method=method, json=body, headers=token, raise_for_status=False)).status

async def ask_all():
    for method, path, body in ATTEMPTS:
        print(method, path, json.dumps(body), "=>", await ask(method, path, body))

import asyncio
with ThreadPoolExecutor() as pool:  # the kernel's own thread runs a loop already
    pool.submit(lambda: asyncio.run(ask_all())).result()
"""

ATTEMPTS = (
    ("GET", "/users", {}),
    ("POST", "/users", {"usernames": ["mallory"], "admin": True}),
    ("PATCH", "/users/ada", {"admin": True}),
    ("DELETE", "/users/grace", {}),
    ("POST", "/users/grace/server", {}),
    ("DELETE", "/users/grace/server", {}),
    ("GET", "/users/grace/tokens", {}),
    ("POST", "/users/grace/tokens", {}),
    ("POST", "/users/ada/tokens", {"scopes": ["admin:users"]}),
    ("POST", "/users/ada/tokens", {"roles": ["instructor"]}),
    ("POST", "/groups/instructors/users", {"users": ["ada"]}),
    ("POST", "/shares/ada/", {"user": "grace", "scopes": ["access:servers!server=ada/"]}),
    ("GET", "/services", {}),
    ("GET", "/proxy", {}),
    ("POST", "/shutdown", {}),
)


TRIES = """
import glob, os, socket
from pathlib import Path

def tried(what, attempt):
    try:
        print(what, "=>", attempt())
    except Exception as problem:
        print(what, "=>", type(problem).__name__)

secret = ("TOKEN", "SECRET", "PASSW", "KEY", "CREDENTIAL", "KUBE", "DOCKER_")
tried("secrets in the environment", lambda: sorted(name for name in os.environ if any(map(name.count, secret))))
tried("the account of a pod", lambda: os.listdir("/var/run/secrets/kubernetes.io/serviceaccount"))
for name in ("/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock"):
    tried(name, lambda: socket.socket(socket.AF_UNIX).connect(name))
tried("another's home", lambda: glob.glob("/home/*/../../*/grace") + glob.glob(str(Path.home().parent / "grace")))
tried("others' submissions", lambda: os.listdir("/exchange/small-course/inbound/../inbound/../../small-course/grace"))
for name in ("collected", "submitted", "gradebook.db", "../hub", "../homes", "../challenges"):
    tried(f"the course's {name}", lambda: os.listdir(f"/exchange/small-course/{name}"))
tried("root", lambda: os.setuid(0))
tried("a device", lambda: os.mknod(str(Path.home() / "device"), 0o60600, os.makedev(8, 0)))
tried("another root", lambda: os.chroot("/tmp"))
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
for name in ("CapEff", "CapBnd", "NoNewPrivs"):
    tried(name, lambda: int(status[name], 16))
"""
"""Each attempt prints a line `what => seen`."""

OPTIONS = {
    **{"profile": "", "volumes": {"/": "/host"}, "environment": {"LEFT": "1"}, "cmd": ["sleep", "1"]},
    **{"service_account": "default", "privileged": True, "uid": 0, "extra_host_config": {"privileged": True}},
    **{"prologue": "touch /left", "partition": "other\\ntouch /left", "batch_submit_cmd": "touch /left", "image": ""},
}
"""Settings of spawners and of their templates, which a request for the own server carries: none may hold."""


def seen_in(said: str) -> dict[str, str]:
    """Return what was tried and seen in the output of `TRIES`, and print it as a table."""
    found = dict(line.split(" => ", 1) for line in said.splitlines() if " => " in line)
    print("\n".join(["| tried | seen |", "|---|---|", *(f"| {what} | {seen} |" for what, seen in found.items())]))
    return found


def api_answers(person: Person, other: str = "grace") -> dict[str, str]:
    """Return the status of each of `ATTEMPTS`, by the token of the person's server; print them as a table.

    other: name of the learner that they are about.
    """
    attempts = repr(ATTEMPTS).replace("grace", other).replace("ada", person.name)
    return seen_in(person.run(REQUESTS.replace("ATTEMPTS", attempts)))
