"""The file system of the stand-in cluster's pods, as bubblewrap's mounts: image, Secrets, ConfigMaps, claims."""

from __future__ import annotations

import base64
import os
from collections.abc import Collection
from pathlib import Path

from standin_store import Object, Store
from unix_users import etc_of_its_own


class Volumes:
    """Of one pod. `refresh` brings their contents up to date; False: an object that they need is missing."""

    def __init__(self, store: Store, pod: Object, folder: Path, claims: Path) -> None:
        """folder: of this pod; claims: of the cluster, which outlives pods."""
        self._store, self._folder, self._claims = store, folder, claims
        self._namespace = pod["metadata"]["namespace"]
        self._volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", ())}
        self._seen: dict[str, str] = {}

    def refresh(self) -> bool:
        return all(self._refresh(name, volume) for name, volume in self._volumes.items())

    def _refresh(self, name: str, volume: Object) -> bool:
        if claim := volume.get("persistentVolumeClaim"):
            return self._store.get("persistentvolumeclaims", self._namespace, claim["claimName"]) is not None
        if secret := volume.get("secret"):
            found = self._store.get("secrets", self._namespace, secret["secretName"])
        elif config := volume.get("configMap"):
            found = self._store.get("configmaps", self._namespace, config["name"])
        else:
            return True
        if found is None:
            return False
        if found["metadata"]["resourceVersion"] != self._seen.get(name):
            self._seen[name] = found["metadata"]["resourceVersion"]
            folder = self._folder / name
            folder.mkdir(parents=True, exist_ok=True)
            for key, value in found["data"].items():
                (folder / f".{key}").write_bytes(base64.b64decode(value) if "secret" in volume else value.encode())
                (folder / f".{key}").replace(folder / key)
        return True

    def mounts(self, container: Object, expanded: dict[str, str]) -> list[str]:
        """Arguments for bubblewrap. expanded: the container's environment, for `subPathExpr`."""
        arguments: list[str] = []
        user = container.get("securityContext", {}).get("runAsUser")
        for mount in container.get("volumeMounts", ()):
            volume, path = self._volumes[mount["name"]], mount["mountPath"]
            if "emptyDir" in volume:
                arguments += ["--perms", "0777", "--tmpfs", path]
            elif claim := volume.get("persistentVolumeClaim"):
                inside = mount.get("subPath") or expand(mount.get("subPathExpr", ""), expanded)
                source = self._claims / claim["claimName"] / inside
                if not source.exists():
                    source.mkdir(parents=True)
                    if user is not None and os.geteuid() == 0:
                        os.chown(source, user, user)  # as `fsGroup` does for a new volume
                arguments += ["--perms", "0755", "--dir", os.path.dirname(path)]
                arguments += ["--ro-bind" if mount.get("readOnly") else "--bind", str(source), path]
            else:
                arguments += ["--ro-bind", str(self._folder / mount["name"]), path]
        return arguments


def image_mounts(container: Object) -> list[str]:
    """This machine's files, read-only, and places for the container's mounts that are not among them.

    In /etc, hosts, nsswitch.conf and passwd are left out.
    """
    arguments = ["--tmpfs", "/", *_contents(Path("/"), ("dev", "etc", "proc", "run", "tmp"))]
    arguments += etc_of_its_own(("hosts", "nsswitch.conf", "passwd"))
    for mount in container.get("volumeMounts", ()):
        path = Path(mount["mountPath"])
        parent = next(each for each in path.parents if each.exists())
        if not path.exists() and parent != Path("/"):
            arguments += ["--tmpfs", str(parent), *_contents(parent)]
    return [*arguments, "--bind", "/tmp", "/tmp", "--tmpfs", "/run", "--dev", "/dev", "--proc", "/proc"]


def _contents(folder: Path, without: Collection[str] = ()) -> list[str]:
    arguments = []
    for path in sorted(folder.iterdir()):
        if path.is_symlink():
            arguments += ["--symlink", os.readlink(path), str(path)]
        elif path.name not in without:
            arguments += ["--ro-bind", str(path), str(path)]
    return arguments


def expand(text: str, variables: dict[str, str]) -> str:
    """Replace `$(NAME)` by the container's variable, as in commands and arguments."""
    for name, value in variables.items():
        text = text.replace(f"$({name})", value)
    return text
