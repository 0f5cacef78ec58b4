"""Calibration: measure this machine's products, copies, launches and collectives, and describe it as a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from labkit.calibrate.machine import Machine as Machine
    from labkit.calibrate.machine import UnsuitableMachine as UnsuitableMachine
    from labkit.calibrate.machine import examine as examine
    from labkit.calibrate.run import Calibration as Calibration
    from labkit.calibrate.run import MeasuringFailed as MeasuringFailed
    from labkit.calibrate.run import calibrate as calibrate

# looked up at first use: the options of `labkit calibrate` are read without torch
_PUBLIC = {
    "Calibration": "labkit.calibrate.run",
    "Machine": "labkit.calibrate.machine",
    "MeasuringFailed": "labkit.calibrate.run",
    "UnsuitableMachine": "labkit.calibrate.machine",
    "calibrate": "labkit.calibrate.run",
    "examine": "labkit.calibrate.machine",
}
__all__ = sorted(_PUBLIC)

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, _PUBLIC)
