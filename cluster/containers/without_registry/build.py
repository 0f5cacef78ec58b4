"""Builds and runs a Containerfile without a registry, a daemon or a network but the packages': where podman is not.

    cd cluster/containers
    sudo python without_registry/build.py ranks.Containerfile --context ../.. --into /var/tmp/ranks \
        --build-arg TORCH=cpu --run "labkit doctor"

Each stage is a folder of changes, over those that it began from (overlayfs); the base image is this machine's Debian
(rootfs.py), packages come from where this machine takes them (package_settings.py), and steps copy the files that
`.dockerignore` leaves (context.py). Every step that the last stage needs is run, in its own namespaces. Then that stage
is started: its CMD, until its HEALTHCHECK succeeds, and each `--run`, as its USER, without privileges, with a root that
is read-only and no network but loopback. Needs Debian, root, iproute2 and overlayfs.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import context
import package_settings
import rootfs
from containerfile import Instruction, Stage, fill_in, stages

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PASSED_ON = re.compile(r"(?i)^(https?|no)_proxy$")
"""Variables of this machine that builds get, and images do not."""
_SCRIPT = """
set -e
mount -t overlay overlay -o "$1" "$2"
mount -t proc proc "$2/proc"
for name in dev sys; do mount --rbind /$name "$2/$name"; done
if [ -e /etc/resolv.conf ]; then touch "$2/etc/resolv.conf"; mount --bind /etc/resolv.conf "$2/etc/resolv.conf"; fi
root=$2 user=$3 volumes=$4 started=$5
shift 5
# one a line: folders may have spaces in their names
set -f
IFS='
'
for volume in $volumes; do
    from=${volume%%:*} to=$root${volume#*:}
    mkdir -p "$to"
    mount --bind "$from" "$to"
    # what a step writes is for its image, not for this machine
    case $to in "$root/home/lab") ;; *) mount -o remount,bind,ro "$to" ;; esac
done
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
if [ "$started" = yes ]; then
    ip link set lo up
    echo localhost >/proc/sys/kernel/hostname # JupyterHub looks its own up
    mount -o remount,ro "$root"
    set -- --no-new-privs --inh-caps=-all --bounding-set=-all -- "$@"
fi
# chroot would do, but Linux makes no user namespaces in it, which the judge's sandboxes need
cd "$root"
pivot_root . .
umount -l .
exec setpriv --reuid="$user" --regid="$user" --clear-groups "$@"
"""


@dataclass
class Image:
    """State of one stage."""

    layers: list[Path]
    """Folders, the topmost first; the first is this stage's own."""
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": _PATH})
    user: str = "0"
    folder: str = "/"
    command: Instruction | None = None
    health: list[str] = field(default_factory=list)


class Builder:
    def __init__(
        self, into: Path, context: Path, arguments: dict[str, str], volumes: list[str], environment: dict[str, str]
    ) -> None:
        """into: folder for all layers. context: of COPY. volumes, HOST:CONTAINER, and environment: in builds only."""
        self.into, self.context, self.arguments, self.volumes = into, context, arguments, volumes
        proxies = {name: value for name, value in os.environ.items() if _PASSED_ON.search(name)}
        self.environment = proxies | environment
        self.images: dict[str, Image] = {}

    def build(self, file: Path) -> Image:
        """Run the steps of the stages that the last one needs; return its image."""
        found = stages(file.read_text(), self.arguments)
        by_name = {stage.name: stage for stage in found}
        last = found[-1]
        for stage in found:
            if stage.name in _needed(last, by_name):
                self._build_stage(stage)
        return self.images[last.name]

    def _build_stage(self, stage: Stage) -> None:
        before = self.images.get(stage.base) or self._base(stage.base)
        own = self.into / "stages" / stage.name
        own.mkdir(parents=True)
        image = Image([own, *before.layers], dict(before.environment), before.user, before.folder)
        self.images[stage.name] = image
        arguments: dict[str, str] = {}
        for each in stage.instructions:
            took = _stopwatch()
            variables = {**arguments, **image.environment}
            match each.name:
                case "ARG":
                    name, _, value = each.text.partition("=")
                    arguments[name] = self.arguments.get(name, value)
                case "ENV":
                    pairs = [word.partition("=") for word in shlex.split(fill_in(each.text, variables))]
                    image.environment |= {name: value for name, _, value in pairs}
                case "WORKDIR":
                    image.folder = str(Path(image.folder, fill_in(each.text, variables)))
                    self.run(image, ["mkdir", "-p", image.folder], user="0", folder="/")
                case "USER":
                    image.user = each.text
                case "COPY":
                    self._copy(image, each, variables)
                case "RUN":
                    self.run(
                        image, ["sh", "-c", each.text], more={**self.environment, **arguments}, volumes=self.volumes
                    )
                case "CMD":
                    image.command = each
                case "HEALTHCHECK":
                    image.health = Instruction(0, "CMD", each.options()[1].removeprefix("CMD ")).words
            print(f"{stage.name}: {each.name} {each.text[:90]}  [{took()}]", flush=True)

    def _base(self, name: str) -> Image:
        folder = self.into / "base"
        if not folder.exists():
            print(f"in the place of {name}: this machine's Debian", flush=True)
            rootfs.make(folder)
        return Image([folder])

    def _copy(self, image: Image, step: Instruction, variables: dict[str, str]) -> None:
        options, rest = step.options()
        *sources, target = shlex.split(fill_in(rest, variables))
        to = Path(image.folder, target)
        copy = f"mkdir -p {shlex.quote(str(to if target.endswith('/') else to.parent))} && cp -a"
        for source in sources:
            if "from" in options:
                other = self.images[options["from"]]
                # the other stage's files, put together by the kernel
                command = ["sh", "-c", f"cd / && tar -C {shlex.quote(str(Path(source).parent))} -c {Path(source).name}"]
                packed = subprocess.Popen(self._command(other, command, "0", "/", {}, []), stdout=subprocess.PIPE)
                unpack = f"mkdir -p {to.parent} && tar -C {to.parent} -x --no-same-owner"
                self.run(image, ["sh", "-c", unpack], user="0", stdin=packed.stdout)
                if packed.wait():
                    raise SystemExit(f"line {step.line}: COPY --from={options['from']} {source} failed")
            else:
                place = f"/run/context/{source}"
                end = f"{to}/" if target.endswith("/") else str(to)
                self.run(image, ["sh", "-c", f"{copy} {place} {end} && chown -R 0:0 {end}"], user="0", folder="/",
                         volumes=[f"{self.context}:/run/context"])  # fmt: skip

    def run(
        self, image: Image, command: list[str], user: str = "", folder: str = "", more: dict[str, str] | None = None,
        volumes: list[str] | None = None, stdin: object = subprocess.DEVNULL, started: bool = False,
    ) -> None:  # fmt: skip
        """Run a command in the image. Raises SystemExit if it fails."""
        words = self._command(
            image, command, user or image.user, folder or image.folder, more or {}, volumes or [], started
        )
        status = subprocess.run(words, stdin=stdin).returncode  # type: ignore[call-overload]
        if status:
            raise SystemExit(f"exit status {status}: {' '.join(command)[:300]}")

    def _command(
        self, image: Image, command: list[str], user: str, folder: str, more: dict[str, str], volumes: list[str],
        started: bool = False,
    ) -> list[str]:  # fmt: skip
        work, root = self.into / "work", self.into / "root"
        for each in (work, root):
            each.mkdir(exist_ok=True)
        own, *lower = image.layers
        # a work folder belongs to one upper folder
        work = work / own.name
        work.mkdir(exist_ok=True)
        options = f"lowerdir={':'.join(map(str, lower))},upperdir={own},workdir={work}"
        home = {"HOME": "/root" if user == "0" else "/home/lab"}
        variables = [f"{name}={value}" for name, value in {**home, **image.environment, **more}.items()]
        return [
            *("unshare", "--mount", "--pid", "--fork", "--uts", "--ipc", "--kill-child"),
            *(["--net"] if started else []),
            *("sh", "-c", _SCRIPT, "step", options, str(root), user, "\n".join(volumes)),
            *("yes" if started else "no", "env", "-i", *variables),
            *("sh", "-c", 'cd "$1" && shift && exec "$@"', "step", folder, *command),
        ]


def _needed(stage: Stage, by_name: dict[str, Stage]) -> set[str]:
    found = {stage.name}
    others = [stage.base, *(each.options()[0].get("from", "") for each in stage.instructions if each.name == "COPY")]
    for name in others:
        if name in by_name:
            found |= _needed(by_name[name], by_name)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--into", type=Path, required=True, help="folder that does not exist yet")
    parser.add_argument("--context", type=Path, default=Path.cwd(), help="folder of COPY (default: this one)")
    parser.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--volume", action="append", default=[], metavar="HOST:CONTAINER", help="in builds only")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="in builds only")
    parser.add_argument("--patience", type=int, default=120, metavar="SECONDS", help="for HEALTHCHECK to succeed")
    parser.add_argument("--run", action="append", default=[], metavar="COMMAND", help="then, in the image; repeatable")
    options = parser.parse_args()
    if os.geteuid() != 0 or shutil.which("dpkg-query") is None:
        raise SystemExit("build.py needs root on a Debian machine; elsewhere: podman build")
    if options.into.exists():
        raise SystemExit(f"{options.into} exists already")
    arguments, environment = (dict(each.split("=", 1) for each in given) for given in (options.build_arg, options.env))
    volumes = [package_settings.VOLUME, *options.volume]
    environment = package_settings.variables() | environment
    into = options.into.resolve()
    into.mkdir(parents=True)
    context.copy(options.context.resolve(), options.file, into / "context")
    builder = Builder(into, into / "context", arguments, volumes, environment)
    image = builder.build(options.file)
    home = into / "home"
    home.mkdir()
    os.chown(home, int(image.user), int(image.user))
    print(f"\n{image.command.text if image.command else 'no CMD'}, until: {shlex.join(image.health)}", flush=True)
    healthy = _until_healthy(image, options.patience)
    builder.run(image, ["sh", "-c", healthy], volumes=[f"{home}:/home/lab"], started=True)
    for command in options.run:
        print(f"\n$ {command}", flush=True)
        took = _stopwatch()
        builder.run(image, ["sh", "-c", command], volumes=[f"{home}:/home/lab"], started=True)
        print(f"[{took()}]", flush=True)


def _stopwatch() -> Callable[[], str]:
    """Return a function that returns what has passed since: `12.0 s, 9.5 s of CPU`."""

    def now() -> tuple[float, float]:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.monotonic(), children.ru_utime + children.ru_stime

    began = now()
    return lambda: "{:.1f} s, {:.1f} s of CPU".format(
        *(after - before for before, after in zip(began, now(), strict=True))
    )


def _until_healthy(image: Image, seconds: int) -> str:
    """A script: the image's CMD in the background, which ends with it, while HEALTHCHECK is tried for that long."""
    command = shlex.join(image.command.words) if image.command else "true"
    health = shlex.join(image.health) or "true"
    return f"""\
{command} >/tmp/output 2>&1 &
tries=0
until {health} >/tmp/health 2>&1; do
    tries=$((tries + 1))
    [ $((2 * tries)) -lt {seconds} ] || {{ cat /tmp/output /tmp/health; exit 1; }}
    sleep 2
done
echo healthy"""


if __name__ == "__main__":
    main()
