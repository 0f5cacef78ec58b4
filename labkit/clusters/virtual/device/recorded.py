"""The memory account and the files of a rank that runs ahead of the virtual clock.

The replay takes the samples of its memory, since it has the times.
"""

from __future__ import annotations

from typing import Any

from labkit.clusters.virtual.device.garbage import collector
from labkit.clusters.virtual.device.memory import MemoryAccount
from labkit.clusters.virtual.endpoints import recording
from labkit.clusters.virtual.endpoints.recording_endpoint import RecordingEndpoint


class RecordedAccount(MemoryAccount):
    """Counts as any account does, and records each change."""

    def __init__(self, endpoint: RecordingEndpoint, capacity: int, gpu: str) -> None:
        super().__init__(endpoint.rank, capacity, gpu, endpoint.progress, world_size=1)
        self._record = endpoint.record

    def grow(self, category: int, nbytes: int) -> None:
        if self.listed is not None:
            self.listed.append((category, nbytes))
        self.held[category] += nbytes
        self.total = total = self.total + nbytes
        if total > self.peak_since_reset:
            self.peak_since_reset = total
        self._record.append(nbytes | category)

    def shrink(self, category: int, nbytes: int) -> None:
        if self.listed is not None:
            self.listed.append((category, -nbytes))
        self.held[category] -= nbytes
        self.total -= nbytes
        self._record.append(-(nbytes | category))
        if collector.at_work:
            collector.has_freed_memory = True

    def move(self, before: int, after: int, nbytes: int) -> None:
        super().move(before, after, nbytes)
        self._record.append((recording.MOVED, before, after, nbytes))

    def close(self) -> None:
        self._closed = True
        self._record.append((recording.MEMORY_ENDS,))


class RecordedFiles:
    """Files of fake tensors, which all ranks of this process share. Those of others it cannot read."""

    def __init__(self, endpoint: RecordingEndpoint, files: dict[str, Any]) -> None:
        self._endpoint, self._files = endpoint, files

    def __contains__(self, path: str) -> bool:
        self._endpoint.use_file(path, writes=False)
        return path in self._files

    def __getitem__(self, path: str) -> Any:
        return self._files[path]

    def __setitem__(self, path: str, data: Any) -> None:
        self._endpoint.use_file(path, writes=True)
        self._files[path] = data
