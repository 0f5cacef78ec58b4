"""Everything that ranks print, in files: one folder a run, one file a rank, as it was printed."""

from __future__ import annotations

import contextlib
import shutil
import threading
from pathlib import Path
from typing import BinaryIO

MOST_BYTES = 256 << 20
"""Of all ranks of a run together. A rank that prints more than its share keeps its last part."""
RUNS_KEPT = 20
_LEAST_BYTES = 64 << 10


class Logs:
    """The files of one run. There is no folder until one is needed, nor when none can be written."""

    def __init__(self, parent: Path, most_bytes: int = MOST_BYTES) -> None:
        """parent: holds a folder for each run; those of the oldest runs are removed."""
        self._parent = parent
        self._most_bytes = most_bytes
        self._files: dict[int, BinaryIO] = {}
        self._written: dict[int, int] = {}
        self._lock = threading.Lock()
        self._over = False
        """Closed, or something could not be written."""
        self.folder: Path | None = None

    def write(self, rank: int, text: str) -> None:
        """Add to a rank's file. An error, such as a full disk, ends the logs and not the run."""
        if self._over:
            return
        try:
            data = text.encode(errors="replace")
            if rank not in self._files:
                self._files[rank] = open(self._a_folder() / f"rank{rank}.log", "wb", buffering=0)  # noqa: SIM115
                self._written[rank] = 0
            # half of the share for the file, half for the one before it
            if self._written[rank] + len(data) > max(_LEAST_BYTES, self._most_bytes // (2 * len(self._files))):
                self._turn_over(rank)
            self._files[rank].write(data)
            self._written[rank] += len(data)
        except OSError:
            self.close()

    def reserve(self) -> Path | None:
        """The folder, made if need be: it is told where the ranks' lines will be. May be called by another thread."""
        with contextlib.suppress(OSError):
            if not self._over:
                return self._a_folder()
        return self.folder

    def close(self) -> None:
        """There is no folder any more if nothing was printed. Closing twice does no harm."""
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
                # what another notebook is still writing is not old
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
    except OSError:  # it is just being removed
        return 0.0
