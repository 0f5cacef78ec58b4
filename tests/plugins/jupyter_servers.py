"""JupyterLabs that tests start with `labkit start`: their address, as a learner reads it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from waiting import wait_until


def printed_address(server: subprocess.Popen[bytes], log: Path) -> str:
    """Wait for the address that `server` prints into `log`: once it answers, and last. Fails if it ends before."""

    def address() -> re.Match[str] | None:
        assert server.poll() is None, log.read_text()
        return re.search(r"^(http://\S+)\n\Z", log.read_text(), re.MULTILINE)

    found = wait_until(address, log.read_text)
    assert found is not None
    return found[1]
