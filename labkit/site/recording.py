"""Record what keeps a notebook's pictures alive on the site: traces of timelines, and all frames of players.

python -m labkit.site.recording NOTEBOOK...     # run a copy of each notebook, and write docs/live/EXERCISE/CELL.json

The site runs no notebook: it shows these files by the notebooks' own viewer and player (`labkit.site.live`). Measured
times are different in each run, and the text beside a picture quotes them: measured timelines stay pictures.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nbformat
import numpy as np

from labkit.catalogue import Exercise, exercises_in, root
from labkit.notebook.stepper import Stepper
from labkit.notebook.viewer import Viewer, packed
from labkit.plots.picture import SHARPER, Picture
from labkit.plots.traces.timeline import heading, shown
from labkit.site.notebooks import source_hash
from labkit.trace import Trace
from labkit.trace.critical_path import critical_path

MOST_BYTES = 800_000
"""Maximum size of a file. A player whose file would be longer has frames of one pixel per pixel on the page; if they
are still too many, nothing is written, and the site shows the still picture.
"""
LEFT_OUT = "left_out.txt"
"""File in the folder of new recordings: a line for each that is too long."""


def folder(exercise: Exercise) -> Path:
    """Return the folder of the exercise's recordings."""
    return root() / "docs" / "live" / exercise.short_name


def record(exercise: Exercise) -> list[Path]:
    """Run a copy of the exercise's notebook, replace its recordings, and return their files.

    Raises nbclient's `CellExecutionError` if a cell fails.
    """
    from nbclient import NotebookClient

    notebook = nbformat.read(exercise.notebook, as_version=4)
    client = NotebookClient(notebook, resources={"metadata": {"path": str(exercise.notebook.parent)}})
    with tempfile.TemporaryDirectory() as scratch, client.setup_kernel(env=_environment(Path(scratch))):
        made = Path(scratch) / "recordings"
        made.mkdir()
        (made / LEFT_OUT).touch()
        for number, cell in enumerate(notebook.cells):
            if cell.cell_type == "code":
                arguments = f"{str(made / f'{cell.id}.json')!r}, {source_hash(cell.source)!r}"
                begin = f"from labkit.site import recording as _recording\n_recording.begin_cell({arguments})"
                # not in the history: events name the lines of numbered cells
                client.execute_cell(nbformat.v4.new_code_cell(begin), number, store_history=False)
            client.execute_cell(cell, number)
        print((made / LEFT_OUT).read_text(), end="")
        (made / LEFT_OUT).unlink()
        place = folder(exercise)
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(made, place)
    return sorted(place.glob("*.json"))


def _environment(scratch: Path) -> dict[str, str]:
    """The kernel's environment: the workspace has the solutions, which some notebooks import."""
    workspace = scratch / "workspace"
    shutil.copytree(root() / "solutions", workspace)
    return {**os.environ, "LABKIT_WORKSPACE": str(workspace)}


# In the notebook's kernel -------------------------------------------------------------------------------------------

_cell: tuple[Path, str] | None = None
"""File of the running cell's recording, and the hash of its source."""


def begin_cell(path: str, source: str) -> None:
    """Record what the next cell shows to the file `path`."""
    global _cell
    if _cell is None:
        _record_pictures()
    _cell = Path(path), source


def _record_pictures() -> None:
    """Let pictures, timelines and players write recordings when they are shown."""
    still, zoomable, player = Picture.mimebundle, Viewer._repr_mimebundle_, Stepper.__init__

    def picture_bundle(self: Picture) -> Any:
        if self.trace is not None and self.trace.clock == "modelled":  # other runs are never the notebook's
            _write([timeline(self.trace, self.title, self.alt)])
        return still(self)

    def viewer_bundle(self: Viewer, **kwargs: Any) -> Any:
        bundle = zoomable(self, **kwargs)
        _write([timeline(self._trace, self._title, bundle[1]["image/png"]["alt"])])
        return bundle

    def new_player(self: Stepper, draw: Any, about: dict[str, Any]) -> None:
        player(self, draw, about)
        pictures = [draw(step) for step in range(about["last"] + 1)]
        ways = (_frames(pictures, sharper) for sharper in (SHARPER, 1.0))
        _write({"kind": "stepper", "about": about, "frames": frames} for frames in ways)

    Picture.mimebundle = picture_bundle  # type: ignore[method-assign]
    Viewer._repr_mimebundle_ = viewer_bundle  # type: ignore[method-assign]
    Stepper.__init__ = new_player  # type: ignore[method-assign]


def timeline(trace: Trace, title: str, alt: str, at_least: float = 0.0) -> dict[str, Any]:
    """The recording of a timeline: what the viewer is sent, with the critical path; `alt` as of the still picture.

    at_least: minimum length of the time axis, in seconds.
    """
    trace = shown(trace)
    about, data = packed(trace)
    steps = critical_path(trace).steps
    path = np.array([(step.rank, step.start, step.end) for step in steps], dtype="<f8").tobytes()
    about |= {"title": heading(trace, title), "alt": alt}
    if at_least > trace.seconds:
        about["axis"] = at_least
    return {"kind": "viewer", "about": about, "data": _base64(data), "path": _base64(path)}


def _frames(pictures: list[Picture], sharper: float) -> list[dict[str, Any]]:
    frames = []
    for step, picture in enumerate(pictures):
        (width, height), (light, dark) = picture.size, picture.themed(sharper)
        frame = {"step": step, "alt": picture.alt, "width": width, "height": height}
        frames.append({**frame, "light": _base64(light), "dark": _base64(dark)})
    return frames


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def text(recording: dict[str, Any]) -> str:
    """The content of a recording's file."""
    return json.dumps(recording, ensure_ascii=False, separators=(",", ":")) + "\n"


def _write(ways: Iterable[dict[str, Any]]) -> None:
    """Write the running cell's recording, in the first of several ways that is short enough."""
    assert _cell is not None
    path, source = _cell
    for recording in ways:
        content = text({"source": source, **recording})
        if len(content.encode()) <= MOST_BYTES:
            path.write_text(content)  # the last picture of a cell counts: a player follows its first frame
            return
    with (path.parent / LEFT_OUT).open("a") as lines:
        lines.write(f"{path.name} would have {len(content.encode()):,} bytes: not recorded\n")


def main() -> int:
    """Record the named notebooks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", nargs="+", type=Path, metavar="NOTEBOOK", help="one of the course's")
    wanted = {path.resolve() for path in parser.parse_args().notebooks}
    known = {exercise.notebook.resolve(): exercise for exercise in exercises_in(root())}
    if others := wanted - set(known):
        parser.error(f"{min(others)} is no notebook of the course")
    for path in sorted(wanted):
        files = record(known[path])
        print(f"{known[path].short_name}: {len(files)} files, {sum(file.stat().st_size for file in files):,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
