"""What the judge found in one submitted notebook: plain data, which can be stored and read again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from labkit.checks import Report


@dataclass(frozen=True)
class Verdict:
    """Reports on all graded cells of one notebook."""

    reports: Mapping[str, Report]
    """By the graded cell's `grade_id`; complete, for the instructor."""
    notes: tuple[str, ...] = ()
    """What was odd about the file, what stood in for what; shown to the learner."""

    def to_json(self) -> dict[str, Any]:
        """Plain data, without runs and pictures."""
        reports = {cell: report.to_json() for cell, report in self.reports.items()}
        return {"reports": reports, "notes": list(self.notes)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Verdict:
        """The inverse of `to_json`."""
        reports = {cell: Report.from_json(report) for cell, report in data["reports"].items()}
        return cls(reports, tuple(data["notes"]))
