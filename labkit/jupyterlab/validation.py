"""Validation of a notebook in a process of its own; nbgrader runs it in the only thread of the server.

A notebook takes a minute or more, in which the learner's pages would get no answer and report a lost server.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from types import SimpleNamespace

from nbgrader.server_extensions.validate_assignment import handlers
from tornado import web


class ValidateInProcess(handlers.ValidateAssignmentHandler):  # type: ignore[misc]  # nbgrader has no types
    """Answers as nbgrader's handler does."""

    @web.authenticated
    async def post(self) -> None:
        path = self.get_argument("path", None) or self.get_json_body()["path"]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", __file__, self.root_dir, path),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        output, errors = await process.communicate()
        if process.returncode:
            await self.finish(json.dumps({"success": False, "value": errors.decode(errors="replace")[-4000:]}))
        else:
            await self.finish(output.splitlines()[-1])


def install() -> None:
    """Replace nbgrader's handler; call it before the server loads its extensions."""
    handlers.default_handlers[:] = [
        (pattern, ValidateInProcess if handler is handlers.ValidateAssignmentHandler else handler)
        for pattern, handler in handlers.default_handlers
    ]


def main(root_dir: str, path: str) -> None:
    """Validate the notebook; print nbgrader's answer as the last line."""
    original = handlers.ValidateAssignmentHandler
    server = SimpleNamespace(root_dir=root_dir, log=logging.getLogger("nbgrader"))
    server.load_config = lambda: original.load_config(server)
    print(json.dumps(original.validate_notebook(server, path)))


if __name__ == "__main__":
    main(*sys.argv[1:])
