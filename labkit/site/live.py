"""Pictures that stay alive on the site: recordings, and the notebooks' own viewer and player, as files of a page.

`labkit.site.recording` makes the recordings of notebooks. Pages are opened as files, too, where browsers load scripts
and no JSON: so each recording is staged as a script of one call.
"""

from __future__ import annotations

import functools
import html
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from labkit.catalogue import root

_WIDGETS = {"viewer": "viewer", "stepper": "stepper"}
"""Kinds of recordings, and the names of their files in labkit/notebook/static."""
_EXPORT = "export default { render };"
_STATIC = Path(__file__).with_name("static")


def script() -> str:
    """Return the script of all pages with live pictures: viewer, player, and code that gives them recordings."""
    parts = [(_STATIC / "live.js").read_text()]
    for kind, name in _WIDGETS.items():
        module = (_notebook_files() / f"{name}.js").read_text()
        if _EXPORT not in module:
            raise ValueError(f"{name}.js does not end with {_EXPORT!r}: labkit.site.live replaces that line")
        # scripts of one page share their names, modules do not
        parts.append(
            f"(() => {{\n{module.replace(_EXPORT, '')}\nwindow.labkitLive.widgets.{kind} = {{ render }};\n}})();\n"
        )
    return "\n".join(parts)


def style() -> str:
    """The style sheets of viewer and player."""
    return "\n".join((_notebook_files() / f"{name}.css").read_text() for name in _WIDGETS.values())


def _notebook_files() -> Path:
    return root() / "labkit" / "notebook" / "static"


def recordings() -> Iterator[Path]:
    """Files of all recordings."""
    yield from sorted((root() / "docs" / "live").glob("*/*.json"))


@functools.cache
def recorded(name: str) -> dict[str, Any] | None:
    """The recording `EXERCISE/CELL` or `PAGE/PICTURE`; None if there is none."""
    path = root() / "docs" / "live" / f"{name}.json"
    recording: dict[str, Any] | None = json.loads(path.read_text()) if path.is_file() else None
    return recording


def call(name: str, recording: dict[str, Any]) -> str:
    """The recording as a script."""
    shown = {key: value for key, value in recording.items() if key != "source"}
    return f"labkitLive.arrived({json.dumps(name)}, {json.dumps(shown, ensure_ascii=False)});\n"


def element(name: str, still: str, up: str) -> str:
    """Return the picture `still` (HTML), which becomes a live one; `up` leads from the page to the site's folder."""
    address = html.escape(f"{up}live/{name}.js", quote=True)
    return (
        f'<div class="labkit-live" data-name="{html.escape(name, quote=True)}" data-recording="{address}">'
        f'<div class="still">{still}</div></div>'
    )
