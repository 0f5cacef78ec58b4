"""Pages from notebooks: the version that learners receive, with outputs where they give nothing away.

Solutions are removed by nbgrader, as for a release. Of the outputs, those of graded cells, of checks and of exercise
cells are left out; in others, lines of the solution are masked, as in the traceback of an error. What comes after a
question is folded until the next heading, so that one can predict first.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import re
from collections.abc import Iterator
from typing import Any

import nbformat
from nbformat import NotebookNode

from labkit.catalogue import Exercise, exercises_in, root
from labkit.site import live
from labkit.site.figures import markup
from labkit.site.places import COPIED, HERE, rewrite

WITHOUT_OUTPUT = ("%%exercise", "%check", "%hint", "%solution", "from labkit import grade")
"""First words of cells whose outputs show what a solution does, or were written for the learner's own."""
FIGURES = {"process_group": "skipped_barrier"}
"""Figures below the first cell of an exercise's page. In JupyterLab a learner's own run takes their place."""
BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
SHORTEST = 16
"""Letters of a solution's line that is masked; shorter ones occur everywhere."""
DARK = re.compile(r"background: url\(data:image/webp;base64,([\w+/=]+)\)")


def pages(linked: set[str]) -> Iterator[tuple[str, str | bytes]]:
    """Each page and picture: its path on the site, and its content. Adds linked repository paths to `linked`."""
    for exercise in exercises_in(root()):
        if exercise.notebook.is_file():
            pictures: dict[str, bytes] = {}
            notebook = release(exercise)
            scripts: dict[str, str] = {}
            sources = {cell.id: cell.source for cell in nbformat.read(exercise.notebook, as_version=4).cells}
            hidden = hidden_lines(exercise, notebook)
            yield f"{COPIED}/{_download(exercise)}", nbformat.writes(_without_outputs(notebook))
            for cell in notebook.cells:
                recording = _recording(exercise, cell, sources[cell.id])
                _show(cell, exercise, pictures, linked)
                if recording is not None and (name := _enliven(cell, exercise)):
                    scripts[f"{COPIED}/live/{name}.js"] = live.call(name, _masked(recording, hidden))
            if exercise.short_name in FIGURES:
                notebook.cells.insert(1, _figure(exercise, linked))
            notebook.cells.insert(1, _to_download(exercise))
            yield f"notebooks/{exercise.notebook_name}", nbformat.writes(notebook)
            yield from pictures.items()
            yield from scripts.items()


def _download(exercise: Exercise) -> str:
    return f"downloads/{exercise.notebook.name}"


def _without_outputs(notebook: NotebookNode) -> NotebookNode:
    """As a learner begins: the widgets and pictures of outputs would be those of another run."""
    begun: NotebookNode = nbformat.from_dict({**notebook, "cells": [dict(cell) for cell in notebook.cells]})
    for cell in begun.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    return begun


def _to_download(exercise: Exercise) -> NotebookNode:
    """A cell that leads to the notebook as a file."""
    text = f"[Download this notebook]({HERE}:../../{_download(exercise)}); with the lab, `./lab start` opens it."
    cell: NotebookNode = nbformat.v4.new_markdown_cell(text, id="download")
    return cell


def source_hash(source: str) -> str:
    """Identifies the text of the cell that a recording is of."""
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def release(exercise: Exercise) -> NotebookNode:
    """The notebook without solutions, and without the outputs that depend on them."""
    from nbgrader.preprocessors import ClearSolutions  # takes a second to load

    notebook: NotebookNode = nbformat.read(exercise.notebook, as_version=4)
    notebook, _ = ClearSolutions().preprocess(notebook, {})
    predicting = False
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            predicting = predicting and not re.search("^#", cell.source, re.MULTILINE)
            continue
        if cell.source.startswith(WITHOUT_OUTPUT) or cell.metadata.get("nbgrader"):
            cell.outputs = []
        elif cell.source.startswith("%question"):
            predicting = True
        elif predicting and cell.outputs:
            cell.metadata.tags = [*cell.metadata.get("tags", []), "hide-output"]
        cell.execution_count = None
    hidden = hidden_lines(exercise, notebook)
    for cell in notebook.cells:
        cell.update({"outputs": [_masked(output, hidden) for output in cell.outputs]} if "outputs" in cell else {})
    return notebook


def hidden_lines(exercise: Exercise, released: NotebookNode) -> list[str]:
    """Lines of the exercise's solution blocks that no cell of the release has, without indentation."""
    shown = "\n".join(cell.source for cell in released.cells)
    blocks = re.findall(rf"{BEGIN}\n(.*?){END}", exercise.paths["solution"].read_text(), re.DOTALL)
    lines = {line.strip() for block in blocks for line in block.splitlines()}
    lines = {line for line in lines if len(line) >= SHORTEST and not line.startswith("#") and line not in shown}
    return sorted(lines, key=len, reverse=True)


def _masked(value: Any, hidden: list[str]) -> Any:
    """An output, with hidden lines replaced by an ellipsis in all of its texts."""
    if isinstance(value, str):
        for line in hidden:
            value = value.replace(line, "…")
        return value
    if isinstance(value, dict):
        return type(value)({key: _masked(inner, hidden) for key, inner in value.items()})
    return [_masked(inner, hidden) for inner in value] if isinstance(value, list) else value


def _recording(exercise: Exercise, cell: NotebookNode, source: str) -> dict[str, Any] | None:
    """Return the recording of the cell, if it shows a picture and its text has not changed since."""
    recording = live.recorded(f"{exercise.short_name}/{cell.id}") if cell.cell_type == "code" and cell.outputs else None
    return recording if recording is not None and recording["source"] == source_hash(source) else None


def _enliven(cell: NotebookNode, exercise: Exercise) -> str:
    """Put the recording in the place of its picture, the cell's last; return its name, or "" if there is no picture."""
    name = f"{exercise.short_name}/{cell.id}"
    for output in reversed(cell.outputs):
        still = output.get("data", {}).get("text/html", "")
        if still.startswith('<img class="labkit-picture'):
            output.data["text/html"] = live.element(name, still, "../../")
            return name
    return ""


def _figure(exercise: Exercise, linked: set[str]) -> NotebookNode:
    """A cell with the exercise's figure."""
    path = f"notebooks/{exercise.notebook_name}"
    text = rewrite(markup.section(FIGURES[exercise.short_name], path), path, path.removesuffix(".ipynb"), linked.add)
    cell: NotebookNode = nbformat.v4.new_markdown_cell(text, id="figure")
    return cell


def _show(cell: NotebookNode, exercise: Exercise, pictures: dict[str, bytes], linked: set[str]) -> None:
    """Make a cell fit for a page: links lead to pages, pictures are files."""
    path = f"notebooks/{exercise.notebook_name}"
    if cell.cell_type == "markdown":
        cell.source = rewrite(cell.source, path, path.removesuffix(".ipynb"), linked.add)
        return
    cell.outputs = [shown for output in cell.outputs if (shown := _output(output, pictures)) is not None]


def _output(output: Any, pictures: dict[str, bytes]) -> Any:
    data = output.get("data")
    if data is None:
        return output
    if "image/png" in data:
        output.data = {"text/html": _picture(data, output.metadata.get("image/png", {}), pictures)}
    elif "text/markdown" in data:
        if "application/vnd.jupyter.widget-view+json" in data:
            return None  # how to answer, which needs a kernel
        output.data = {"text/markdown": data["text/markdown"]}
    elif "application/vnd.jupyter.widget-view+json" in data:
        return None
    return output


def _picture(data: Any, about: Any, pictures: dict[str, bytes]) -> str:
    """An element for both colour schemes; its files are added to `pictures`."""
    place = functools.partial(_file, pictures=pictures)
    alt = html.escape(about.get("alt", ""), quote=True)
    size = f'width="{about["width"]}" height="{about["height"]}"' if "width" in about else ""
    light = place(base64.b64decode(data["image/png"]), "png")
    dark = DARK.search(data.get("text/html", ""))
    if dark is None:
        return f'<img class="labkit-picture" alt="{alt}" {size} src="{light}" loading="lazy">'
    return (
        f'<img class="labkit-picture only-light" alt="{alt}" {size} src="{light}" loading="lazy">'
        f'<img class="labkit-picture only-dark" alt="{alt}" {size} src="{place(base64.b64decode(dark[1]), "webp")}" '
        'loading="lazy">'
    )


def _file(content: bytes, kind: str, pictures: dict[str, bytes]) -> str:
    """Add a picture's file; return its address as seen from a notebook's page."""
    name = f"{COPIED}/pictures/{hashlib.sha256(content).hexdigest()[:16]}.{kind}"
    pictures[name] = content
    return f"../../{name.removeprefix(f'{COPIED}/')}"
