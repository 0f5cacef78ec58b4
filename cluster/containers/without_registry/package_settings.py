"""This machine's settings of pip and npm as variables for the steps of a build: indexes, wheels, certificates.

Steps get pip's as `PIP_INDEX_URL` and so on, and see the files that they name below `/run/host`. Images keep neither.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

_HOST = "/run/host"
VOLUME = f"/:{_HOST}"
"""The volume that steps need for `variables`, HOST:CONTAINER."""
_OWN = {"cache-dir", "config-file", "log", "no-cache-dir", "prefix", "python", "target", "user"}
"""Settings of pip for this machine alone."""
_NPM = re.compile(r"(?i)^npm_config_(registry|cafile|.*proxy)$|^NODE_EXTRA_CA_CERTS$")


def variables() -> dict[str, str]:
    """Return the settings; without pip's where this Python has no pip."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
    found: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in listed.splitlines():
        place, name, value = re.fullmatch(r"(:env:|[\w-]+)\.([\w-]+)=(.*)", line).groups()  # type: ignore[union-attr]
        if place in found and name not in _OWN:
            found[place][name] = ast.literal_eval(value)
    # what comes later overrides, as in pip
    pip = found["global"] | found["install"] | found[":env:"]
    settings = {f"PIP_{name.upper().replace('-', '_')}": value for name, value in pip.items()}
    settings |= {name: value for name, value in os.environ.items() if _NPM.search(name)}
    if (npmrc := Path.home() / ".npmrc").is_file():
        settings["NPM_CONFIG_USERCONFIG"] = str(npmrc)
    return {name: _below_host(value) for name, value in settings.items()}


def _below_host(value: str) -> str:
    return re.sub(r"(^|\s)(file://|)(?=/)", rf"\1\2{_HOST}", value)
