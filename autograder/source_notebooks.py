"""The folder of solved notebooks that nbgrader releases assignments from.

nbgrader knows one such folder. If an instructor has own exercises outside of the lab, it has links to the notebooks of
both, so that an assignment may have some of each.
"""

from __future__ import annotations

import os
from pathlib import Path

from labkit import catalogue


def source_folder(course: Path) -> Path:
    """Return `notebooks/` of the lab, or `source/` of the folder `course` with links, which are made anew."""
    folders = [folder.resolve() / "notebooks" for folder in catalogue.roots()]
    if len(folders) == 1:
        return folders[0]
    source = course / "source"
    files = {path.relative_to(folder): path for folder in folders for path in folder.glob("phase*_*/*.*")}
    for link in source.glob("phase*_*/*.*"):
        if link.is_symlink() and link.relative_to(source) not in files:
            link.unlink(missing_ok=True)
    for place, path in files.items():
        _link(source / place, path)
    return source


def _link(link: Path, target: Path) -> None:
    """Make a link, or change it at once: other processes may read the folder. A file of that name stays."""
    if os.readlink(link) == str(target) if link.is_symlink() else link.exists():
        return
    link.parent.mkdir(parents=True, exist_ok=True)
    new = link.with_name(f"{link.name}.{os.getpid()}")
    new.symlink_to(target)
    new.replace(link)
