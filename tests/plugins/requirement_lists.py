"""The lists of requirements/ as tests read them."""

from __future__ import annotations

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from requirements.update import FOLDER, LISTS, TORCH, entries, members


def listed(name: str) -> list[Requirement]:
    """Return the packages of a list and of those that it begins with."""
    return [Requirement(_pin(entry)) for member in members(name) for entry in entries(_text(member))]


def locked_versions() -> dict[str, str]:
    """Return the version of each package of all lists, and of torch."""
    pins = [Requirement(TORCH.read_text().strip()), *(each for name in LISTS for each in listed(name))]
    versions = {(canonicalize_name(each.name), str(each.specifier).removeprefix("==")) for each in pins}
    assert len(versions) == len(dict(versions)), "a package has two versions"
    return dict(versions)


def locked_entry(package: str) -> str:
    """Return the lines of a package, with its hashes."""
    return next(entry for name in LISTS for entry in entries(_text(name)) if entry.startswith(f"{package}=="))


def _text(name: str) -> str:
    return (FOLDER / f"{name}.txt").read_text()


def _pin(entry: str) -> str:
    return entry.splitlines()[0].removesuffix("\\")
