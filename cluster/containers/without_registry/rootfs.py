"""A Debian root file system in the place of a base image: essential packages, as they are installed on this machine.

`debian:bookworm-slim` has the same: packages of priority `required`, apt, and what they depend on. Needs root on a
Debian machine.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

_INFO = Path("/var/lib/dpkg/info")
_CONFIGURATION = ("etc/apt", "etc/alternatives", "etc/pam.d", "usr/share/keyrings")
"""Made at an installation, and in no package."""


def make(folder: Path) -> None:
    """Raises OSError where this is not Debian."""
    packages = essential_packages()
    files = subprocess.run(["dpkg", "-L", *packages], capture_output=True, text=True, check=True).stdout.splitlines()
    names = sorted({name.lstrip("/") for name in files if name.startswith("/") and _is_wanted(Path(name))} - {"."})
    folder.mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (folder / "usr" / name).mkdir(parents=True)
        (folder / name).symlink_to(f"usr/{name}")
    _copy([*names, *(name for name in _CONFIGURATION if Path("/", name).exists())], folder)
    _write_dpkg(folder, packages)
    for name in ("dev", "proc", "sys", "run", "tmp", "root", "var/tmp", "var/cache/apt/archives/partial"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name in ("tmp", "var/tmp"):
        (folder / name).chmod(0o1777)
    for name in ("passwd", "group"):
        shutil.copy(f"/usr/share/base-passwd/{name}.master", folder / "etc" / name)
    (folder / "etc/hosts").write_text("127.0.0.1 localhost\n")
    subprocess.run(["chroot", str(folder), "sh", "-c", "pwconv; ldconfig"], check=True, capture_output=True)


def essential_packages() -> list[str]:
    """Names of the packages, with all that they depend on."""
    table = "${Package}\t${Priority}\t${Essential}\t${Pre-Depends}, ${Depends}\t${Provides}\t${db:Status-Status}\n"
    lines = subprocess.run(["dpkg-query", "-W", "-f", table], capture_output=True, text=True, check=True).stdout
    depends: dict[str, list[list[str]]] = {}
    providers: dict[str, str] = {}
    wanted = {"apt", "debian-archive-keyring"}
    for line in lines.splitlines():
        name, priority, essential, needs, provides, status = line.split("\t")
        if status != "installed":
            continue
        depends[name] = [[_bare(each) for each in group.split("|")] for group in needs.split(",") if group.strip()]
        providers.update(dict.fromkeys((_bare(each) for each in provides.split(",") if each.strip()), name))
        if priority == "required" or essential == "yes":
            wanted.add(name)
    found: set[str] = set()
    while wanted:
        name = wanted.pop()
        name = name if name in depends else providers.get(name, name)
        if name in found or name not in depends:
            continue
        found.add(name)
        for group in depends[name]:
            wanted.add(next((each for each in group if each in depends or each in providers), group[0]))
    return sorted(found)


def _bare(dependency: str) -> str:
    return re.sub(r"[ (:\[].*", "", dependency.strip())


def _is_wanted(path: Path) -> bool:
    documentation = ("/usr/share/doc/", "/usr/share/man/", "/usr/share/locale/", "/usr/share/info/")
    return (path.exists() or path.is_symlink()) and not str(path).startswith(documentation)


def _copy(names: Iterable[str], folder: Path) -> None:
    # folders by themselves: else their other contents would come, too
    contents = "".join(f"{name}\n" for name in names)
    configuration = [name for name in _CONFIGURATION if Path("/", name).is_dir()]
    pack = ["tar", "-C", "/", "--create", "--no-recursion", "--files-from=-", "--ignore-failed-read"]
    unpack = ["tar", "-C", str(folder), "--extract", "--keep-directory-symlink"]
    for command, text in ((pack, contents), (["tar", "-C", "/", "--create", *configuration], "")):
        packed = subprocess.run(command, input=text.encode(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        subprocess.run(unpack, input=packed.stdout, check=True, stderr=subprocess.DEVNULL)


def _write_dpkg(folder: Path, packages: list[str]) -> None:
    """dpkg's records of these packages alone, so that apt installs what is missing."""
    info = folder / "var/lib/dpkg/info"
    for name in ("info", "updates", "alternatives", "triggers"):
        (folder / "var/lib/dpkg" / name).mkdir(parents=True, exist_ok=True)
    for package in packages:
        for file in [*_INFO.glob(f"{package}.*"), *_INFO.glob(f"{package}:*")]:
            shutil.copy(file, info / file.name)
    if (_INFO / "format").exists():
        shutil.copy(_INFO / "format", info / "format")
    stanzas = Path("/var/lib/dpkg/status").read_text().split("\n\n")
    kept = [each for each in stanzas if (match := re.search(r"^Package: (.+)$", each, re.M)) and match[1] in packages]
    (folder / "var/lib/dpkg/status").write_text("\n\n".join(kept) + "\n\n")
    (folder / "var/lib/dpkg/available").touch()
    for file in Path("/var/lib/dpkg/alternatives").iterdir():
        shutil.copy(file, folder / "var/lib/dpkg/alternatives" / file.name)
