"""The judge's verdict on one submitted notebook: plain data, serializable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from labkit.checks import Report


@dataclass(frozen=True)
class Picture:
    """An image for the feedback page, drawn by the judge from the scheduler's records, not by the submission."""

    title: str
    svg: str
    """SVG element, with its title and description for screen readers."""
    caption: str


@dataclass(frozen=True)
class Verdict:
    """Reports on all graded cells of one notebook."""

    reports: Mapping[str, Report]
    """Complete reports for the instructor, by the graded cell's `grade_id`."""
    notes: tuple[str, ...] = ()
    """Oddities of the file and substituted modules; shown to the learner."""
    pictures: Mapping[str, Sequence[Picture]] = field(default_factory=dict)
    """Plots of the submission's own runs, by `grade_id`."""

    def to_json(self) -> dict[str, Any]:
        """Return plain data, without runs."""
        reports = {cell: report.to_json() for cell, report in self.reports.items()}
        pictures = {cell: [asdict(picture) for picture in drawn] for cell, drawn in self.pictures.items()}
        return {"reports": reports, "notes": list(self.notes), "pictures": pictures}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Verdict:
        """The inverse of `to_json`."""
        reports = {cell: Report.from_json(report) for cell, report in data["reports"].items()}
        pictures = {
            cell: tuple(Picture(**picture) for picture in drawn) for cell, drawn in data.get("pictures", {}).items()
        }
        return cls(reports, tuple(data["notes"]), pictures)
