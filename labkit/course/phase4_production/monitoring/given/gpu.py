"""Utilization, memory and temperature of this rank's GPU, by NVML: NVIDIA's own library, as `nvidia-smi` reads it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from labkit.installing import how_to_install
from labkit.torch_versions.nvml import nvml_index

_logger = logging.getLogger("labkit.monitoring")


class GpuFigures(NamedTuple):
    """Figures of a GPU; None for what is not measured."""

    percent: int | None = None
    """Share of the last sample period, up to a second, in which a kernel ran."""
    memory_bytes: int | None = None
    """Memory in use, by all processes and CUDA itself."""
    celsius: int | None = None


class GpuReader:
    """Reads the figures of a device again and again. What cannot be read is None, and is logged once, as a warning.

    A missing library is logged by the first rank of each node. A device without a GPU has no figures, and no warning.
    """

    def __init__(self, device: torch.device) -> None:
        self._nvml: Any = None
        self._handle: Any = None
        self._unread: set[str] = set()
        if device.type != "cuda":
            return
        try:
            import pynvml
        except ImportError:
            self._say_on_a_node(f"GPU figures need the package: {how_to_install('nvidia-ml-py', 'ranks')}")
            return
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(nvml_index(device))
        except (pynvml.NVMLError, RuntimeError) as error:
            self._say_on_a_node(f"GPU figures are not measured, NVML does not find {device}: {error}")
            return
        self._nvml = pynvml

    def read(self) -> GpuFigures:
        """Return the figures of now."""
        nvml = self._nvml
        if nvml is None:
            return GpuFigures()
        return GpuFigures(
            self._figure("utilization", lambda: nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu),
            self._figure("memory", lambda: nvml.nvmlDeviceGetMemoryInfo(self._handle).used),
            self._figure("temperature", lambda: nvml.nvmlDeviceGetTemperature(self._handle, nvml.NVML_TEMPERATURE_GPU)),
        )

    def _figure(self, name: str, read: Callable[[], int]) -> int | None:
        try:
            return int(read())
        except self._nvml.NVMLError as error:  # parts of a GPU (MIG) have no utilization of their own
            if name not in self._unread:
                self._unread.add(name)
                _logger.warning("the GPU's %s is not measured: %s", name, error)
            return None

    @staticmethod
    def _say_on_a_node(text: str) -> None:
        if os.environ.get("LOCAL_RANK", "0") == "0":
            _logger.warning(text)
