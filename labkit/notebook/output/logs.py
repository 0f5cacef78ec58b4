"""Log files with all output of the ranks: one folder per run, one file per rank, unchanged."""

from __future__ import annotations

import contextlib
import shutil
import threading
from pathlib import Path
from typing import BinaryIO

MOST_BYTES = 256 << 20
"""Limit for all ranks of a run together. If a rank prints more than its share, only the last part is kept."""
RUNS_KEPT = 20
_LEAST_BYTES = 64 << 10


class Logs:
    """The files of one run. The folder is made when needed; there is none if it cannot be written."""

    def __init__(self, parent: Path, most_bytes: int = MOST_BYTES) -> None:
        """parent: contains a folder for each run; those of the oldest runs are removed."""
        self._parent = parent
        self._most_bytes = most_bytes
        self._files: dict[int, BinaryIO] = {}
        self._written: dict[int, int] = {}
        self._lock = threading.Lock()
        self._over = False
        """Whether the logs are closed, or a write has failed."""
        self.folder: Path | None = None

    def write(self, rank: int, text: str) -> None:
        """Append to a rank's file. An error, such as a full disk, ends the logs, not the run."""
        if self._over:
            return
        try:
            data = text.encode(errors="replace")
            if rank not in self._files:
                self._files[rank] = open(self._a_folder() / f"rank{rank}.log", "wb", buffering=0)  # noqa: SIM115
                self._written[rank] = 0
            # half of the share for the file, half for the previous one
            if self._written[rank] + len(data) > max(_LEAST_BYTES, self._most_bytes // (2 * len(self._files))):
                self._turn_over(rank)
            self._files[rank].write(data)
            self._written[rank] += len(data)
        except OSError:
            self.close()

    def reserve(self) -> Path | None:
        """Return the folder, making it if needed, so that its path can be shown. May be called by another thread."""
        with contextlib.suppress(OSError):
            if not self._over:
                return self._a_folder()
        return self.folder

    def close(self) -> None:
        """Close the files; remove the folder if nothing was printed. May be called twice."""
        self._over = True
        with self._lock:
            for file in self._files.values():
                with contextlib.suppress(OSError):
                    file.close()
            self._files.clear()
            if self.folder is not None and not self._written:
                with contextlib.suppress(OSError):
                    self.folder.rmdir()
                self.folder = None

    def _a_folder(self) -> Path:
        with self._lock:
            if self.folder is None:
                self._parent.mkdir(parents=True, exist_ok=True)
                earlier = [folder for folder in self._parent.iterdir() if folder.name.isdigit()]
                number = max((int(folder.name) for folder in earlier), default=0)
                while self.folder is None:
                    number += 1
                    with contextlib.suppress(FileExistsError):  # another notebook was faster
                        (self._parent / f"{number:04d}").mkdir()
                        self.folder = self._parent / f"{number:04d}"
                # by last write: a folder that another notebook is writing to is not old
                for folder in sorted(earlier, key=_last_written)[: -(RUNS_KEPT - 1)]:
                    shutil.rmtree(folder, ignore_errors=True)
            return self.folder

    def _turn_over(self, rank: int) -> None:
        file = self._files[rank]
        file.close()
        path = Path(file.name)
        path.rename(path.with_suffix(".earlier.log"))
        self._files[rank] = open(path, "wb", buffering=0)  # noqa: SIM115
        self._written[rank] = 0


def _last_written(folder: Path) -> float:
    try:
        return max(path.stat().st_mtime for path in [folder, *folder.iterdir()])
    except OSError:  # it is being removed
        return 0.0
