"""Device memory and the copies to and from it, for a rank's program: the same on virtual and real ranks.

Tensors of virtual ranks are all on the CPU, and memory is that of the modelled GPU. A copy to the host, and what is
computed from it, do not count; the copy takes the time of PCIe or of the node's host memory, whichever is slower; a
file takes the time of the node's storage. Ranks of a node that copy at the same time do not slow each other down, and
computation on a host copy is charged as if the GPU did it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from labkit.clusters.virtual.device import memory
from labkit.hardware import Topology
from labkit.linux import proc
from labkit.torch_versions.dispatch import no_modes
from labkit.torch_versions.fake_tensors import FakeTensor
from labkit.torch_versions.tensors import tree_map


def memory_allocated() -> int:
    """Bytes that this rank's tensors hold on its GPU.

    On a real rank without a GPU: bytes that its process holds, including torch and Python.
    """
    account = memory.current()
    if account is not None:
        return account.total
    return torch.cuda.memory_allocated() if torch.cuda.is_available() else _of_process("VmRSS")


def max_memory_allocated() -> int:
    """Maximum of `memory_allocated` since the start or the last `reset_peak_memory_stats`."""
    account = memory.current()
    if account is not None:
        return account.peak_since_reset
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else _of_process("VmHWM")


def reset_peak_memory_stats() -> None:
    """Restart the maximum of `max_memory_allocated` from now."""
    account = memory.current()
    if account is not None:
        account.peak_since_reset = account.total
    elif torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")  # see proc(5)


def to_host(tensor: Tensor) -> Tensor:
    """A copy of `tensor` in host memory."""
    device = memory.device()
    if device is None:
        return tensor.detach().to("cpu", copy=True)
    device.endpoint.sleep(_copy_seconds(device.topology, tensor.nbytes))
    with no_modes():
        host = tensor.detach().clone()
    device.account.hold(host, memory.HOST)
    return host


def to_device(tensor: Tensor, device: torch.device | str | None = None) -> Tensor:
    """Copy a tensor in host memory to this rank's GPU. Raises torch.OutOfMemoryError.

    device: on real ranks, the target device if it is another one.
    """
    modelled = memory.device()
    if modelled is None:
        return tensor.detach().to(device or ("cuda" if torch.cuda.is_available() else "cpu"), copy=True)
    modelled.account.must_fit(tensor.nbytes)
    with no_modes():
        moved = tensor.detach().clone()
    modelled.account.hold(moved, memory.OTHER)
    modelled.endpoint.sleep(_copy_seconds(modelled.topology, tensor.nbytes))
    return moved


def write(data: Any, path: str | Path) -> None:
    """`torch.save` data in host memory. Fake tensors take the time, and are kept without a file."""
    device = memory.device()
    if device is None:
        torch.save(data, path)
        return
    tensors = _tensors(data)
    device.endpoint.sleep(device.topology.storage.write_seconds(sum(tensor.nbytes for tensor in tensors)))
    with no_modes():
        if any(isinstance(tensor, FakeTensor) for tensor in tensors):
            device.files[str(path)] = tree_map(lambda leaf: leaf, data)  # containers of its own
        else:
            torch.save(data, path)


def read(path: str | Path) -> Any:
    """Return what `write` has written to `path`, in host memory. Raises FileNotFoundError."""
    device = memory.device()
    if device is None:
        return torch.load(path, map_location="cpu")
    with no_modes():
        data = tree_map(lambda leaf: leaf, device.files[str(path)]) if str(path) in device.files else torch.load(path)
    tensors = _tensors(data)
    device.endpoint.sleep(device.topology.storage.read_seconds(sum(tensor.nbytes for tensor in tensors)))
    for tensor in tensors:
        device.account.hold(tensor, memory.HOST)
    return data


class NodeStorage:
    """The modelled storage of a virtual rank's node, for code that writes files by itself: its time, in any thread."""

    def __init__(self, device: memory.Device) -> None:
        self._endpoint, self._storage = device.endpoint, device.topology.storage
        self.nproc_per_node = device.topology.nproc_per_node

    def write(self, nbytes: float) -> None:
        """Take the time of writing bytes; several ranks of a node that write at once count all of theirs."""
        self._endpoint.sleep(self._storage.write_seconds(nbytes))

    def read(self, nbytes: float) -> None:
        """Take the time of reading bytes."""
        self._endpoint.sleep(self._storage.read_seconds(nbytes))


def node_storage() -> NodeStorage | None:
    """Return the storage of this rank's node; None on real ranks, whose files take their own time."""
    device = memory.device()
    return None if device is None else NodeStorage(device)


def _copy_seconds(topology: Topology, nbytes: int) -> float:
    """Seconds for a copy between GPU and host that is alone on its node."""
    link = topology.host_link
    return link.latency_seconds + nbytes / min(link.bytes_per_second, topology.host_memory_gb_per_s * 1e9)


def _tensors(data: Any) -> list[Tensor]:
    if isinstance(data, Tensor):
        return [data]
    parts = data.values() if isinstance(data, Mapping) else data if isinstance(data, (list, tuple)) else ()
    return [tensor for part in parts for tensor in _tensors(part)]


def _of_process(field: str) -> int:
    return proc.table("self/status")[field]
