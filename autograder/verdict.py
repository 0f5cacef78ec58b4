"""What the judge found in one submitted notebook: plain data, which can be stored and read again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from labkit.checks import Report


@dataclass(frozen=True)
class Picture:
    """An image for the feedback page, drawn by the judge of what the scheduler saw: a submission wrote none of it."""

    title: str
    svg: str
    """The SVG element, with its title and its description for those who do not see it."""
    caption: str


@dataclass(frozen=True)
class Verdict:
    """Reports on all graded cells of one notebook."""

    reports: Mapping[str, Report]
    """By the graded cell's `grade_id`; complete, for the instructor."""
    notes: tuple[str, ...] = ()
    """What was odd about the file, what stood in for what; shown to the learner."""
    pictures: Mapping[str, Sequence[Picture]] = field(default_factory=dict)
    """By `grade_id`: the submission's own runs."""

    def to_json(self) -> dict[str, Any]:
        """Plain data, without runs."""
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
