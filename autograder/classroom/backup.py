"""`labkit hub --backup` and `--restore`: a classroom's folder as one archive, also of a hub that is running."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from autograder.classroom import site as sites
from labkit.command_line.commands import CommandError

_DATABASES = (".db", ".sqlite")
_SQLITE = b"SQLite format 3\0"
"""Beginning of an SQLite file."""
_LEFT_OUT = ("hub.lock", "hub/hub.log", "hub/proxy.pid")
"""Files of a running hub, below the classroom's folder."""


def backup(site_file: Path, archive: Path) -> int:
    """Write course, gradebook, exchange, homes, passwords and the hub's database to `archive`; return the exit status.

    sqlite itself copies the databases, so that each copy is consistent. Raises `CommandError`.
    """
    folder = sites.load(site_file).folder
    if not (folder / "course").is_dir():
        raise CommandError(f"there is no classroom in {folder}")
    if archive.resolve().is_relative_to(folder):
        raise CommandError(f"{archive} is in the classroom's folder: name a file elsewhere, better on another disk")
    making = archive.with_name(f".{archive.name}.making")
    try:
        with _private(making) as file, tarfile.open(fileobj=file, mode="w:gz", format=tarfile.PAX_FORMAT) as tar:
            count = _add_all(tar, folder)
        making.replace(archive)
    except OSError as problem:
        raise CommandError(f"the backup could not be written: {problem}") from None
    finally:
        making.unlink(missing_ok=True)
    print(f"{count} files of {folder} are in {archive}, {archive.stat().st_size / 1e6:.1f} MB")
    return 0


def restore(site_file: Path, archive: Path) -> int:
    """Restore `archive` as the classroom of these settings; return the exit status.

    Owners are kept where root restores; otherwise `labkit hub` sets them. Raises `CommandError`, also if there is a
    classroom.
    """
    folder = sites.load(site_file).folder
    if folder.exists() and any(folder.iterdir()):
        raise CommandError(f"{folder} is not empty: move it away first, nothing is overwritten")
    making = folder.with_name(f".{folder.name}.making")
    try:
        making.mkdir(parents=True, mode=0o700)
        with tarfile.open(archive) as tar:
            _extract(tar, making)
        if not (making / "course").is_dir():
            raise CommandError(f"{archive} is not a backup of a classroom")
        if folder.exists():
            folder.rmdir()
        making.rename(folder)
    except FileExistsError:
        raise CommandError(f"{making} is left by a restore that did not end: delete it, and try again") from None
    except (OSError, tarfile.TarError) as problem:
        raise CommandError(f"{archive} could not be restored: {problem}; what was restored is in {making}") from None
    print(f"{archive} is restored in {folder}: ./lab hub opens it")
    return 0


def _extract(tar: tarfile.TarFile, folder: Path) -> None:
    """Extract an archive that `backup` made. Raises `tarfile.TarError` if a name leads out of the folder."""
    if hasattr(tarfile, "tar_filter"):
        tar.extractall(folder, filter="tar", numeric_owner=True)
        return
    # Python before 3.11.4
    for name in tar.getnames():
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise tarfile.TarError(f"it has a file {name}, outside of its folder")
    tar.extractall(folder, numeric_owner=True)


@contextlib.contextmanager
def _private(path: Path) -> Iterator[BinaryIO]:
    """A new file that nobody else can read: it will hold marks and password hashes."""
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        yield file


def _add_all(tar: tarfile.TarFile, folder: Path) -> int:
    """Add folders, files and links; return how many files. Files that vanish meanwhile are left out."""
    count = 0
    for parent, folders, files in os.walk(folder):
        here = Path(parent).relative_to(folder)
        folders.sort()
        if here != Path("."):
            tar.add(parent, here, recursive=False)
        for name in [*sorted(files), *(each for each in folders if Path(parent, each).is_symlink())]:
            path = Path(parent, name)
            if str(here / name) in _LEFT_OUT:
                continue
            with contextlib.suppress(FileNotFoundError):
                if not stat.S_ISREG(path.lstat().st_mode):
                    if path.is_symlink():
                        tar.add(path, here / name)
                    continue
                # learners' own databases, such as Jupyter's history, are copied like other files
                if here.parts[:1] in (("course",), ("hub",)) and _is_sqlite(path):
                    _add_database(tar, path, here / name)
                else:
                    tar.add(path, here / name)
                count += 1
    return count


def _is_sqlite(path: Path) -> bool:
    """Whether it is a database that other programs may be writing into. Not each `.db` is: passwords are in a dbm."""
    if path.suffix not in _DATABASES:
        return False
    with path.open("rb") as file:
        return file.read(len(_SQLITE)) in (_SQLITE, b"")  # an empty file is an empty database


def _add_database(tar: tarfile.TarFile, path: Path, name: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / path.name
        opened = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        with contextlib.closing(opened) as source, contextlib.closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        copy.chmod(stat.S_IMODE(path.stat().st_mode))
        tar.add(copy, name)
