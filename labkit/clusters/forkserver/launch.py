"""Becomes the forkserver: run as a file, so that this code runs before torch is imported.

The import takes seconds, during which the client is not listened to. If the client ends meanwhile, the kernel ends this
process.
"""

import ctypes
import runpy
import signal

_PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    runpy.run_module("labkit.clusters.forkserver.server", run_name="__main__", alter_sys=True)
