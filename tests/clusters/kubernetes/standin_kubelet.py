"""A small kubelet: runs each pod's command as a real process in its own bubblewrap container.

Its pid 1 is the pod's command; volumes are mounted, `/etc/hosts` holds the names of pods that have a Service, on
loopback; SIGTERM, then SIGKILL after the grace period; `restartPolicy` decides whether an ended container starts
again. There are no images: all have this machine's files.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from standin_store import Object, Store, epoch_seconds, now
from standin_volumes import Volumes, expand, image_mounts
from unix_users import mounts_that_open

from autograder.sandbox.bwrap import bwrap

_TICK_SECONDS = 0.03


class Kubelet:
    """All nodes of the stand-in cluster together."""

    def __init__(self, store: Store, folder: Path, images: dict[str, int], environment: dict[str, str]) -> None:
        """images: pullable images with the user of each; environment: variables set by the images."""
        self.store = store
        self.folder = folder
        self.images = images
        self.environment = environment
        self.image_folders = [
            Path(sys.base_prefix),
            Path(sys.prefix),
            *(Path(path) for path in environment["PYTHONPATH"].split(":")),
        ]
        self.pods: dict[str, _Pod] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join(5)
        for pod in self.pods.values():
            pod.kill("the cluster is gone")
        for pod in self.pods.values():
            pod.thread.join(10)

    @property
    def is_over(self) -> bool:
        """Whether the cluster is gone."""
        return self._over.is_set()

    def running(self, index: int) -> _Pod:
        """Return the running pod of this completion index, or ordinal."""
        return next(pod for pod in self.pods.values() if pod.index == index and pod.process and not pod.ended)

    def read_log(self, pod: Object, follow: bool, since: float | None) -> Iterator[bytes]:
        """Yield the pod's output, from that time on."""
        found = self.pods[pod["metadata"]["uid"]]
        position = 0
        while True:
            ended = found.ended
            fresh = found.printed[position:]
            position += len(fresh)
            for when, line in fresh:
                if since is None or when >= since:
                    yield line
            if ended or not follow or self._over.is_set():
                return
            self.tick()

    def tick(self) -> bool:
        """Let a moment pass before the next look; return whether the cluster is gone."""
        return self._over.wait(_TICK_SECONDS)

    def _loop(self) -> None:
        while not self._over.is_set():
            for pod in self.store.list("pods", chosen=lambda pod: bool(pod["spec"].get("nodeName"))):
                uid = pod["metadata"]["uid"]
                if uid not in self.pods:
                    self.pods[uid] = _Pod(self, pod)
            self.tick()


class _Pod:
    def __init__(self, kubelet: Kubelet, pod: Object) -> None:
        self.kubelet = kubelet
        self.pod = pod
        ordinal = pod["metadata"]["name"].rpartition("-")[2]
        index = (pod["metadata"].get("annotations") or {}).get("batch.kubernetes.io/job-completion-index", ordinal)
        self.index = int(index) if index.isdigit() else -1
        self.container = pod["spec"]["containers"][0]
        self.address = "127.0.0.1"
        if self.index < 0:
            # all pods share the network: a server has an address of its own, since all listen at the same port
            self.address = f"127.{secrets.randbelow(254) + 1}.{secrets.randbelow(254) + 1}.1"
        self.printed: list[tuple[float, bytes]] = []
        self.ended = False
        self.process: subprocess.Popen[bytes] | None = None
        self.init = 0
        """Process id of the container's pid 1."""
        self._reason = ""
        self._folder = kubelet.folder / pod["metadata"]["uid"]
        self._volumes = Volumes(kubelet.store, pod, self._folder, kubelet.folder / "claims")
        self.restarts = 0
        self.thread = threading.Thread(target=self._live, daemon=True)
        self.thread.start()

    def kill(self, reason: str) -> None:
        """End it as the kernel does: `OOMKilled`."""
        self._reason = reason
        with contextlib.suppress(ProcessLookupError):
            if self.init:
                os.kill(self.init, signal.SIGKILL)

    def _live(self) -> None:
        if self._may_start():
            code = self._run()
            while self._restarts_after(code) and not self._is_deleted() and not self.kubelet.is_over:
                self.restarts += 1
                code = self._run()
            self._terminated(code)
        self.ended = True
        while not self._is_deleted() and not self.kubelet.tick():
            pass
        self.kubelet.store.delete("pods", self.pod["metadata"]["namespace"], self.pod["metadata"]["name"], True)

    def _restarts_after(self, code: int) -> bool:
        policy = self.pod["spec"]["restartPolicy"]
        return policy == "Always" or (policy == "OnFailure" and code != 0)

    def _run(self) -> int:
        """Run the container once; return its exit code."""
        self._start()
        reader = threading.Thread(target=self._read, daemon=True)
        reader.start()
        grace: threading.Timer | None = None
        while self.process and self.process.poll() is None:
            self._refresh()
            if grace is None and self._is_deleted():
                grace = threading.Timer(self.pod["spec"].get("terminationGracePeriodSeconds", 30), self.kill, [""])
                grace.daemon = True
                grace.start()
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.init, signal.SIGTERM)
            if self.kubelet.tick():
                self.kill("the cluster is gone")
        if grace is not None:
            grace.cancel()
        reader.join()
        assert self.process
        code = self.process.returncode
        return 128 - code if code < 0 else code

    def _may_start(self) -> bool:
        image = self.container["image"]
        user = self.kubelet.images.get(image)
        if user is None:
            gone = f'failed to pull and unpack image "{image}": {image}: not found'
            self._status(waiting={"reason": "ErrImagePull", "message": gone})
            self.kubelet.tick()
            message = f'Back-off pulling image "{image}": ErrImagePull: {gone}'
            self._status(waiting={"reason": "ImagePullBackOff", "message": message})
            return False
        if user == 0 and self.pod["spec"].get("securityContext", {}).get("runAsNonRoot"):
            message = "container has runAsNonRoot and image will run as root"
            self._status(waiting={"reason": "CreateContainerConfigError", "message": message})
            return False
        self._status(waiting={"reason": "ContainerCreating"})
        while not self._refresh():
            if self._is_deleted() or self.kubelet.tick():
                return False
        return True

    def _start(self) -> None:
        # only now does it have an address, and with it a name
        self._status(waiting={"reason": "ContainerCreating"}, podIP=self.address)
        self._folder.mkdir(parents=True, exist_ok=True)
        hosts = self._folder / "hosts"
        nsswitch = self._folder / "nsswitch.conf"
        nsswitch.write_text("hosts: files\n")
        self._write_hosts(hosts)
        (self._folder / "termination-log").touch()
        mounts = image_mounts(self.container)
        environment = dict(self.kubelet.environment)
        for entry in self.container.get("env", ()):
            name, value = self._variable(entry)
            environment[name] = expand(value, environment).replace("//0.0.0.0", f"//{self.address}")
        mounts += self._volumes.mounts(self.container, environment)
        # an empty folder may cover the image's files, and Python may be in a home that other users cannot enter
        mounts += mounts_that_open(self.kubelet.image_folders)
        for file, path in (
            (hosts, "/etc/hosts"),
            (nsswitch, "/etc/nsswitch.conf"),
            (self._folder / "termination-log", "/dev/termination-log"),
        ):
            mounts += ["--bind", str(file), path]
        # a container's /usr/bin/python is this one
        words = [*self.container.get("command", ()), *self.container.get("args", ())]
        command = [sys.executable if word == "python" else expand(word, environment) for word in words]
        user = self.container.get("securityContext", {}).get("runAsUser")
        users = Path("/etc/passwd").read_text() if user is None else f"jovyan:x:{user}:{user}::/home/lab:/bin/bash\n"
        (self._folder / "passwd").write_text(users)
        mounts += ["--ro-bind", str(self._folder / "passwd"), "/etc/passwd"]
        if user is not None:
            if os.geteuid() == 0:
                command = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--", *command]
            else:
                mounts += ["--unshare-user", "--uid", str(user), "--gid", str(user)]
        mounts += ["--chdir", self.container.get("workingDir", "/")]
        told, tells = os.pipe()
        isolation = ["--unshare-pid", "--as-pid-1", "--unshare-uts", "--hostname", self.pod["spec"]["hostname"]]
        self.process = subprocess.Popen(
            [bwrap(), "--die-with-parent", *isolation, "--info-fd", str(tells), *mounts, "--", *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[tells],
        )
        os.close(tells)
        with open(told) as file:
            self.init = json.load(file)["child-pid"]
        self._status("Running", running={"startedAt": now()})

    def _read(self) -> None:
        assert self.process and self.process.stdout
        for line in self.process.stdout:
            self.printed.append((epoch_seconds(), line))

    def _refresh(self) -> bool:
        """Bring the volumes and the hosts file up to date; return False when an object of a volume is missing."""
        if not self._volumes.refresh():
            return False
        if (self._folder / "hosts").exists():
            self._write_hosts(self._folder / "hosts")
        return True

    def _write_hosts(self, file: Path) -> None:
        """Write names as in the cluster's DNS: of pods with an address, where a Service of that name selects them."""
        store, space = self.kubelet.store, self.pod["metadata"]["namespace"]
        lines = ["127.0.0.1 localhost", f"127.0.0.1 {self.pod['spec']['hostname']}"]
        for pod in store.list("pods", space, lambda pod: bool(pod["status"].get("podIP"))):
            subdomain = pod["spec"].get("subdomain", "")
            service = store.get("services", space, subdomain)
            labels = pod["metadata"]["labels"]
            if service and all(labels.get(key) == value for key, value in service["spec"]["selector"].items()):
                name = f"{pod['spec']['hostname']}.{subdomain}"
                lines.append(f"127.0.0.1 {name} {name}.{space}.svc.cluster.local")
        text = "\n".join(lines) + "\n"
        if not file.exists() or file.read_text() != text:
            # the same file: it is mounted
            file.write_text(text)

    def _variable(self, entry: Object) -> tuple[str, str]:
        if "value" in entry:
            return entry["name"], entry["value"]
        path = entry["valueFrom"]["fieldRef"]["fieldPath"]
        if path == "metadata.name":
            return entry["name"], self.pod["metadata"]["name"]
        match = re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path)
        assert match, path
        return entry["name"], self.pod["metadata"][match[1]][match[2]]

    def _is_deleted(self) -> bool:
        metadata = self.pod["metadata"]
        found = self.kubelet.store.get("pods", metadata["namespace"], metadata["name"])
        return found is None or found["metadata"]["uid"] != metadata["uid"] or "deletionTimestamp" in found["metadata"]

    def _terminated(self, code: int) -> None:
        message = (self._folder / "termination-log").read_text()
        reason = self._reason or ("Completed" if code == 0 else "Error")
        ended = {"exitCode": code, "reason": reason, "finishedAt": now(), **({"message": message} if message else {})}
        self._status("Succeeded" if code == 0 else "Failed", terminated=ended)

    def _status(self, phase: str = "Pending", podIP: str = "", **state: Object) -> None:  # Kubernetes' name
        def settle(stored: Object) -> None:
            stored["status"]["phase"] = phase
            stored["status"].setdefault("startTime", now())
            if podIP:
                stored["status"]["podIP"] = podIP
            stored["status"]["containerStatuses"] = [
                {
                    "name": self.container["name"],
                    "image": self.container["image"],
                    "imageID": "",
                    "state": state,
                    "ready": "running" in state,
                    "restartCount": self.restarts,
                }
            ]

        self.kubelet.store.change("pods", self.pod, settle)
