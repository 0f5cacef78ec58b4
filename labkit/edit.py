"""`labkit edit`: a notebook as text in your editor, written back at each save. jupytext does the conversion.

The text is a Python file in which `# %%` begins a cell. A cell keeps its outputs as long as its text is unchanged, so
that committed outputs are lost only where they may be wrong.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import jupytext
import nbformat
from jupytext.combine import combine_inputs_with_outputs

from labkit.command_line.commands import CommandError
from labkit.text_files import read_text

FORMAT = "py:percent"
_POLL_SECONDS = 0.3


def edit(notebook: Path) -> int:
    """Open `notebook` as text in $VISUAL or $EDITOR; return 0 once the editor has ended and all saves are written back.

    A save that cannot be read as a notebook changes nothing; its text is kept and the path printed.
    Raises `CommandError` when there is no editor, or `notebook` is not a notebook.
    """
    try:
        before = nbformat.read(notebook, as_version=4)
    except (nbformat.reader.NotJSONError, nbformat.ValidationError, UnicodeDecodeError) as error:
        raise CommandError(f"{notebook} is not a notebook: {str(error).splitlines()[0]}") from None
    command = _editor()
    folder = Path(tempfile.mkdtemp(prefix="labkit-edit-"))
    text_file = folder / f"{notebook.stem}.py"
    text = seen = as_text(before)
    text_file.write_text(text)
    editor = subprocess.Popen([*command, str(text_file)])
    running, saved = True, True
    while running:
        try:
            editor.wait(_POLL_SECONDS)
            running = False
        except subprocess.TimeoutExpired:
            pass
        # many editors empty or replace the file before they write it: a text counts once it has been read twice
        seen, last_seen = read_text(text_file) if text_file.is_file() else text, seen
        if seen != text and (seen == last_seen or not running):
            text = seen
            saved = _write_back(text, notebook)
    if saved:
        shutil.rmtree(folder)
    else:
        print(f"labkit: your text is kept in {text_file}", file=sys.stderr)
    return 0 if saved else 1


def _editor() -> list[str]:
    command = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "nano")
    if shutil.which(command[0]) is None:
        raise CommandError(f"there is no editor {command[0]!r}: name yours in EDITOR, e.g. EDITOR=vim labkit edit ...")
    return command


def _write_back(text: str, notebook: Path) -> bool:
    """Write `text` into the notebook file; if it does not parse, print the reason and return False."""
    before = nbformat.read(notebook, as_version=4)
    try:
        after = merged(text, before)
    except Exception as error:  # an editor's save may contain anything, even unfinished text
        print(f"labkit: not written back: {type(error).__name__}: {str(error).splitlines()[0]}", file=sys.stderr)
        return False
    temporary = notebook.with_name(f".{notebook.name}.new")
    nbformat.write(after, temporary)
    temporary.replace(notebook)
    return True


def as_text(notebook: nbformat.NotebookNode) -> str:
    """The notebook's cells as Python, each below a `# %%` line, without the notebook's own metadata."""
    plain = nbformat.from_dict({**notebook, "metadata": {"jupytext": {"notebook_metadata_filter": "-all"}}})
    return str(jupytext.writes(plain, fmt=FORMAT))


def merged(text: str, before: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook that `text` describes, with ids, metadata and outputs taken from `before` where cells are the same.

    A changed code cell keeps its id and loses its outputs. Raises what jupytext raises when `text` does not parse.
    """
    sources = {cell.id: cell.source for cell in before.cells}
    after: nbformat.NotebookNode = combine_inputs_with_outputs(jupytext.reads(text, fmt=FORMAT), before, fmt=FORMAT)
    for cell in after.cells:
        if cell.cell_type == "code" and sources.get(cell.id) != cell.source:
            cell.outputs, cell.execution_count = [], None
    after.metadata = before.metadata
    nbformat.validate(after)
    return after
