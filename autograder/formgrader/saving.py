"""What the formgrader could not save is shown with the reason, beside what was typed.

nbgrader's pages stay at "Saving..." for ever, its server answers with a page of HTML, and a gradebook whose writing
failed refuses every later request.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nbgrader.server_extensions.formgrader import handlers
from nbgrader.server_extensions.formgrader.base import BaseApiHandler, BaseHandler
from sqlalchemy.exc import OperationalError
from tornado import web

_SCRIPT = Path(__file__).with_name("saving.js")
_EXTENDED = "backbone_xsrf.js"
"""The script of nbgrader that each of its pages with forms loads, after Backbone and before its own."""


class ExtendedScript(BaseHandler):  # type: ignore[misc]  # nbgrader has no types
    """Serves nbgrader's script, and ours after it."""

    @web.authenticated
    def get(self) -> None:
        """Answer with both."""
        self.set_header("Content-Type", "text/javascript; charset=utf-8")
        self.finish("\n".join(path.read_text("utf-8") for path in (_original(), _SCRIPT)))


def _original() -> Path:
    return Path(handlers.static_path, "js", _EXTENDED)


def _write_error(handler: BaseApiHandler, status_code: int, **kwargs: Any) -> None:
    """Answer a request that failed with the reason, as JSON, and undo what it began in the gradebook."""
    gradebook = handler.settings.get("nbgrader_gradebook")
    if gradebook is not None:
        gradebook.db.rollback()
    error = kwargs.get("exc_info", (None, None, None))[1]
    handler.set_header("Content-Type", "application/json")
    handler.finish({"message": _reason(error, handler.db_url)})


def _reason(error: BaseException | None, gradebook: str) -> str:
    if isinstance(error, web.HTTPError):
        return (error.log_message or error.reason or "the server refused it") % (
            error.args if error.log_message else ()
        )
    if isinstance(error, OperationalError) and "locked" in str(error.orig):
        return (
            f"the gradebook {gradebook.partition(':///')[2]} is locked by another program: let that end (another "
            "nbgrader command, a database browser), then save again"
        )
    return f"{type(error).__name__}: {error}; Jupyter's log has more" if error else "Jupyter's log has the reason"


def install() -> None:
    """Change nbgrader's pages and its API, in this process. To be called before the formgrader is loaded."""
    handlers.default_handlers.insert(0, (f"/formgrader/static/js/{_EXTENDED}", ExtendedScript))
    BaseApiHandler.write_error = _write_error
