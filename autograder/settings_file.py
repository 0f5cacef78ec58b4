"""A course's own `nbgrader_config.py`, in any encoding of an editor; what cannot be read ends the command.

nbgrader goes on without the file, and so without a late penalty, an owner check or a limit that it sets.
"""

from __future__ import annotations

import sys
from pathlib import Path

from nbgrader.apps.baseapp import NbGrader
from traitlets.config.loader import PyFileConfigLoader

from labkit.text_files import UnreadableText, read_text


class SettingsFile(PyFileConfigLoader):
    """Replaces traitlets' loader, through `install`."""

    def _read_file_as_dict(self) -> None:
        """Run the file. Ends the program with status 2 and a line that names the place if it is no Python."""
        path = Path(self.full_filename)
        try:
            code = compile(read_text(path), str(path), "exec")
        except SyntaxError as problem:
            print(f"{path}, line {problem.lineno}: {problem.msg}", file=sys.stderr)
            raise SystemExit(2) from None
        except UnreadableText as problem:
            print(f"{path}: {problem}", file=sys.stderr)
            raise SystemExit(2) from None
        names = {"c": self.config, "load_subconfig": self.load_subconfig, "get_config": lambda: self.config}
        exec(code, {**names, "__file__": str(path)})


def install() -> None:
    """Make nbgrader, in this process, read further files of settings this way."""
    NbGrader.python_config_loader_class = SettingsFile
