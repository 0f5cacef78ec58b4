"""Calibration: measure this machine's products, copies, launches and collectives, and describe it as a cluster."""

from labkit.calibrate.machine import Machine, UnsuitableMachine, examine
from labkit.calibrate.run import Calibration, MeasuringFailed, calibrate

__all__ = ["Calibration", "Machine", "MeasuringFailed", "UnsuitableMachine", "calibrate", "examine"]
