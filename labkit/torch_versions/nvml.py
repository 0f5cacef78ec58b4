"""The number by which NVML knows a device."""

from __future__ import annotations

import torch


def nvml_index(device: torch.device) -> int:
    """Return the number of a CUDA device among all of the machine, of which `CUDA_VISIBLE_DEVICES` shows some.

    Raises RuntimeError for a device that is not visible, or a part of one (MIG).
    """
    return int(torch.cuda._get_nvml_device_index(device))
