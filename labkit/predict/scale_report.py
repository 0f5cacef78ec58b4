"""A scaling study as a table, Markdown, HTML, JSON or a picture: `labkit predict --scale 1..256`."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.hardware import Topology
from labkit.hardware.settings import with_settings
from labkit.predict.running import ScalingPoint

if TYPE_CHECKING:
    from rich.table import Table


NOTE = "exposed: share of the step that waits for communication; ratio: the same / computing"


def clusters(
    text: str, scale: str, settings: Mapping[str, Any], parse_cluster: Callable[[str], Topology]
) -> list[Topology]:
    """Clusters of `FROM..TO` GPUs by doubling, of the kind that `text` names: `a100` or `a100x32`.

    Raises ValueError if the scale is invalid.
    """
    ends = re.fullmatch(r"(\d+)\.\.(\d+)", scale)
    if ends is None or not 0 < int(ends[1]) <= int(ends[2]):
        raise ValueError(f"--scale is two numbers of GPUs, such as 1..256, got {scale!r}")
    kind, gpus = re.sub(r"[xX]\d+$", "", text), int(ends[1])
    listed = []
    while gpus <= int(ends[2]):
        listed.append(with_settings(parse_cluster(f"{kind}x{gpus}"), settings))
        gpus *= 2
    return listed


@dataclass(frozen=True)
class Report:
    """Points of a scaling study, and the cost of an epoch of `samples` at each.

    In its columns `exposed` is the share of the step that waits for communication, `ratio` the same / computing.
    """

    title: str
    points: tuple[ScalingPoint, ...]
    samples: float | None = None
    price: float | None = None
    """Dollars of one GPU and hour; None: costs are in GPU hours."""

    def headings(self) -> list[str]:
        cost = [] if self.samples is None else ["epoch, h", "epoch, $" if self.price else "epoch, GPU h"]
        return ["GPUs", "microbatch", "step, ms", "samples/s", "efficiency", "exposed", "ratio", *cost]

    def rows(self) -> list[list[str]]:
        return [self._row(point) for point in self.points]

    def _row(self, point: ScalingPoint) -> list[str]:
        shown = [
            str(point.gpus) + ("" if point.fits else " (does not fit)"), str(point.microbatch),
            f"{1e3 * point.step_seconds:,.4g}", f"{point.samples_per_second:,.4g}", f"{point.efficiency:.1%}",
            f"{point.communication_share:.1%}", f"{point.ratio:.3f}",
        ]  # fmt: skip
        if self.samples is not None:
            hours = self.samples / point.samples_per_second / 3600
            shown += [f"{hours:,.3g}", f"{hours * point.gpus * (self.price or 1):,.4g}"]
        return shown

    def table(self) -> Table:
        from rich.table import Table

        table = Table(box=None, pad_edge=False, caption=NOTE, caption_justify="left")
        for heading in self.headings():
            table.add_column(heading, justify="right")
        for row in self.rows():
            table.add_row(*row)
        return table

    def write(self, file: Path, draw: Draw) -> None:
        """Write the study in the format of the file's name; `draw` makes the picture.

        Raises ValueError if the name has no such ending, or the file cannot be written.
        """
        formats: dict[str, Callable[[], str | bytes]] = {
            ".md": self._markdown, ".html": self._html, ".json": self._json, ".png": lambda: draw(self),
        }  # fmt: skip
        if file.suffix not in formats:
            raise ValueError(f"--report {file}: its name must end in {', '.join(formats)}")
        content = formats[file.suffix]()
        try:
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
        except OSError as error:
            raise ValueError(f"cannot write {file}: {error.strerror}") from None

    def _markdown(self) -> str:
        lines = [self.headings(), ["---:"] * len(self.headings()), *self.rows()]
        return f"# {self.title}, predicted\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines) + f"\n{NOTE}\n"

    def _html(self) -> str:
        def row(cells: list[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        title = html.escape(f"{self.title}, predicted")
        body = "\n".join([row(self.headings(), "th"), *(row(cells, "td") for cells in self.rows())])
        return (
            f"<!doctype html>\n<html lang='en'><meta charset='utf-8'><title>{title}</title>\n"
            "<style>td, th { text-align: right; padding: 0 1em }</style>\n"
            f"<h1>{title}</h1>\n<table>\n{body}\n</table>\n<p>{NOTE}</p>\n</html>\n"
        )

    def _json(self) -> str:
        plain = {"title": self.title, "samples": self.samples, "price": self.price}
        return json.dumps({**plain, "points": [asdict(point) for point in self.points]}, indent=2) + "\n"


Draw = Callable[[Report], bytes]
"""Renders a report as a PNG: pictures are above predictions in the layers of imports."""
