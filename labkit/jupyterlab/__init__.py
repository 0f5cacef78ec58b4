"""JupyterLab as the lab opens it: only what its users need, a quiet log, and the address on the last line.

`settings/` has a folder of Jupyter's configuration files for each role. They count less than the user's own, and more
than those of the environment. Nothing is written to the user's home.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

Role = Literal["learning", "teaching"]

_SETTINGS = Path(__file__).with_name("settings")


def config_path(role: Role, folder: Path) -> str:
    """Return the value of JUPYTER_CONFIG_PATH for a server on the files of `folder`."""
    from jupyter_core.paths import jupyter_config_dir, jupyter_config_path

    known = [*map(Path, jupyter_config_path()), folder]
    enrolled = any((place / f"nbgrader_config.{kind}").is_file() for place in known for kind in ("py", "json"))
    own = "teaching" if role == "teaching" else "enrolled" if enrolled else "without_course"
    named = os.environ.get("JUPYTER_CONFIG_PATH", "")
    # earlier folders take precedence
    places = [*filter(None, named.split(os.pathsep)), jupyter_config_dir(), _SETTINGS / own, _SETTINGS / "everyone"]
    return os.pathsep.join(map(str, places))
