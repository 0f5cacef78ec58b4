"""Sink for Python's `logging`: a line of JSON for each step, for those who collect logs."""

from __future__ import annotations

import json
import logging

from labkit.course.phase4_production.monitoring.given.records import Alarm, Evaluation, StepRecord


class StructuredLog:
    """Logs each step at level INFO, with time, rank, step, loss and throughput, and each alarm as a WARNING."""

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger or logging.getLogger("labkit.monitoring")

    def step(self, record: StepRecord) -> None:
        fields = {
            "time": record.time,
            "rank": record.rank,
            "step": record.step,
            "loss": record.loss,
            "throughput": record.samples_per_second,
        }
        self._logger.info("%s", json.dumps(fields))

    def evaluation(self, evaluation: Evaluation) -> None:
        self._logger.info("%s", json.dumps({"step": evaluation.step, **evaluation.figures}))

    def alarm(self, alarm: Alarm) -> None:
        self._logger.warning("%s", json.dumps(alarm._asdict()))

    def close(self) -> None:
        """Do nothing: handlers belong to whoever added them."""
