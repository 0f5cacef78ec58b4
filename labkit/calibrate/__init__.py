"""This machine measured: products, copies, launches and collectives, as a cluster that predictions take."""

from labkit.calibrate.machine import Machine, Unsuitable, examine
from labkit.calibrate.run import Calibration, MeasuringFailed, calibrate

__all__ = ["Calibration", "Machine", "MeasuringFailed", "Unsuitable", "calibrate", "examine"]
