"""Starts the services of a compose file where podman and registries are not: as processes of this machine.

    sudo .venv/bin/python cluster/containers/without_registry/compose.py cluster/containers/compose.yaml \
        --into /var/tmp/lab --run "curl -s localhost:9090/api/v1/targets"

Each service sees this machine's files, under a root that is read-only where the file says so, with its volumes, which
are folders of `--into`, and its tmpfs. All share one network of their own, in which each service's name leads to the
loopback. Commands of our images are those of the environment of this Python; Prometheus is this machine's program. A
service whose program this machine lacks is named and left out. When all others are healthy, each `--run` runs beside
them, and then everything ends; without one, Ctrl-C ends it. Needs root, iproute2 and overlayfs.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parent))
from containerfile import Instruction, stages

_LAB = Path(__file__).resolve().parents[3]
_INSIDE = "LABKIT_COMPOSE_INSIDE"
"""Variable of the process that is in the services' network."""
_PROGRAMS = {"docker.io/prom/prometheus": "prometheus", "docker.io/grafana/grafana": "grafana"}
"""Programs that images start with a service's `command` as arguments."""
_USED = {"build", "command", "environment", "healthcheck", "image", "profiles", "read_only", "tmpfs", "volumes"}
_WITHOUT_MEANING = {
    "cap_drop", "depends_on", "pids_limit", "ports", "restart", "security_opt", "shm_size", "working_dir",
}  # fmt: skip
"""Keys for containers alone: processes are started together, not again, and as root of this machine."""
_OF_IMAGES = {"PATH", "LABKIT_ROOT"}
"""Variables of images that name folders of theirs."""
_SCRIPT = """
set -ef
# lists have one entry a line: folders may have spaces in their names
IFS='
'
root=$1 read_only=$2 hosts=$3 kept=$4 volumes=$5 temporary=$6
shift 6
mount -t tmpfs tmpfs "$root"
mkdir "$root/upper" "$root/work" "$root/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$root/upper,workdir=$root/work" "$root/root"
root=$root/root
mount -t proc proc "$root/proc"
echo "$0" >"$root/proc/sys/kernel/hostname"
for name in dev sys; do mount --rbind /$name "$root/$name"; done
mount --bind "$hosts" "$root/etc/hosts"
for folder in $temporary; do mkdir -p "$root$folder"; mount -t tmpfs -o mode=1777 tmpfs "$root$folder"; done
# tmpfs may have covered them
for folder in $kept; do mkdir -p "$root$folder"; mount --rbind "$folder" "$root$folder"; done
for volume in $volumes; do
    from=${volume%%:*} rest=${volume#*:}
    to=$root${rest%%:*}
    if [ -d "$from" ]; then mkdir -p "$to"; else mkdir -p "${to%/*}"; touch "$to"; fi
    mount --bind "$from" "$to"
    case $rest in *:ro) mount -o remount,bind,ro "$to" ;; esac
done
[ "$read_only" = no ] || mount -o remount,ro "$root"
cd "$root"
pivot_root . .
umount -l .
exec "$@"
"""


@dataclass
class Service:
    """One service that has been started."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    health: list[str]
    """Command; empty without a health check."""


class Runner:
    """Starts the services of one file."""

    def __init__(self, file: Path, into: Path) -> None:
        self.file, self.into = file.resolve(), into.resolve()
        content: dict[str, Any] = yaml.safe_load(self.file.read_text())
        self.services: dict[str, dict[str, Any]] = content["services"]
        self.volumes = content.get("volumes", {})
        self.images = {each["image"]: each["build"] for each in self.services.values() if "build" in each}
        for name, service in self.services.items():
            if unknown := service.keys() - _USED - _WITHOUT_MEANING:
                raise SystemExit(f"{self.file}: service {name}: {', '.join(sorted(unknown))} is not known here")

    def start(self, name: str) -> Service | None:
        """Start a service; return None where its program is missing."""
        service = self.services[name]
        environment, command, health = self._image(service)
        program = shutil.which(command[0], path=_path())
        if program is None:
            print(f"{name}: left out, since this machine has no {command[0]}", flush=True)
            return None
        environment |= {key: str(value) for key, value in service.get("environment", {}).items()}
        kept = [str(_LAB), sys.prefix, sys.base_prefix]
        log = self.into / f"{name}.log"
        words = [
            *("unshare", "--mount", "--pid", "--fork", "--ipc", "--uts", "--kill-child", "sh", "-c", _SCRIPT, name),
            *(str(self._folder(f"root-{name}")), "yes" if service.get("read_only") else "no"),
            *(str(self.into / "hosts"), "\n".join(dict.fromkeys(kept))),
            *("\n".join(map(self._volume, service.get("volumes", ()))), "\n".join(service.get("tmpfs", ()))),
            *("env", "-i", *(f"{key}={value}" for key, value in environment.items()), program, *command[1:]),
        ]
        with log.open("wb") as output:
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        return Service(name, process, log, health)

    def _image(self, service: dict[str, Any]) -> tuple[dict[str, str], list[str], list[str]]:
        """Environment, command and health check of the image, with what the service changes."""
        environment = {"PATH": _path(), "HOME": "/home/lab", "LABKIT_ROOT": str(_LAB)}
        health = list(service.get("healthcheck", {}).get("test", ["CMD"]))[1:]
        image, command = service["image"], list(service.get("command", ()))
        build = self.images.get(image)
        if build is None:
            return environment, [_PROGRAMS[image.rpartition(":")[0]], *command], health
        target = stages((_LAB / build["dockerfile"]).read_text(), {})[-1]
        for each in target.instructions:
            if each.name == "ENV":
                pairs = dict(word.split("=", 1) for word in shlex.split(each.text))
                environment |= {key: value for key, value in pairs.items() if key not in _OF_IMAGES}
        if not command and (own := target.last("CMD")):
            command = own.words
        if not health and not service.get("command") and (check := target.last("HEALTHCHECK")):
            health = Instruction(0, "CMD", check.options()[1].removeprefix("CMD ")).words
        return environment, command, health

    def _volume(self, text: str) -> str:
        source, _, rest = text.partition(":")
        place = self._folder(f"volumes/{source}") if source in self.volumes else self.file.parent / source
        return f"{place}:{rest}"

    def _folder(self, name: str) -> Path:
        folder = self.into / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def wait(self, service: Service, seconds: float) -> None:
        """Wait until a service is healthy. Raises SystemExit, with the end of its log, if that does not happen."""
        began = time.monotonic()
        environment = {**os.environ, "PATH": _path()}
        if service.health and shutil.which(service.health[0], path=_path()) is None:
            print(f"{service.name}: started; its health is unknown without {service.health[0]}", flush=True)
            return
        while service.health and subprocess.run(service.health, env=environment, capture_output=True).returncode:
            if service.process.poll() is not None or time.monotonic() - began > seconds:
                state = "is unhealthy" if service.process.poll() is None else "has ended"
                raise SystemExit(f"{service.name} {state}:\n{service.log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.5)
        print(f"{service.name}: {'healthy' if service.health else 'started'}", flush=True)


def _path() -> str:
    return f"{sys.prefix}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--into", type=Path, required=True, help="folder of volumes and logs")
    parser.add_argument("--service", action="append", default=[], metavar="NAME", help="only this one; repeatable")
    parser.add_argument("--patience", type=float, default=300, metavar="SECONDS", help="for each to become healthy")
    parser.add_argument("--run", action="append", default=[], metavar="COMMAND", help="beside them; repeatable")
    options = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("compose.py needs root; elsewhere: podman compose")
    runner = Runner(options.file, options.into)
    options.into.mkdir(parents=True, exist_ok=True)
    hosts = options.into / "hosts"
    if not os.environ.get(_INSIDE):
        hosts.write_text(f"127.0.0.1 localhost {' '.join(runner.services)}\n")
        prepare = f'ip link set lo up && mount --bind {shlex.quote(str(hosts))} /etc/hosts && exec "$@"'
        inside = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", prepare]
        os.environ[_INSIDE] = "yes"
        os.execvp(inside[0], [*inside, "compose", sys.executable, *sys.argv])
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    wanted = [name for name, service in runner.services.items()
              if (name in options.service if options.service else not service.get("profiles"))]  # fmt: skip
    started = [service for name in wanted if (service := runner.start(name)) is not None]
    try:
        for service in started:
            runner.wait(service, options.patience)
        for command in options.run:
            print(f"\n$ {command}", flush=True)
            if status := subprocess.run(command, shell=True, env={**os.environ, "PATH": _path()}).returncode:
                raise SystemExit(status)
        if not options.run:
            signal.pause()
    except KeyboardInterrupt:
        print("stopped")


if __name__ == "__main__":
    main()
