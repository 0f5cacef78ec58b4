"""Run by path, with a command: becomes it, and ends when the hub that has started it ends, even a killed one.

JupyterHub stops its proxy and its services itself, but only if it ends in order.
"""

import os
import sys

from labkit.linux.prctl import die_with_parent

if __name__ == "__main__":
    die_with_parent(os.getppid())
    os.execv(sys.argv[1], sys.argv[1:])
