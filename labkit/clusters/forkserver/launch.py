"""Becomes the forkserver: run as a file, so that this code runs before torch is imported.

The import takes seconds, during which it does not listen to the client. If the client ends meanwhile, the kernel ends
this process.
"""

import gc
import runpy
import signal

from labkit.linux.prctl import signal_when_parent_ends

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal_when_parent_ends()
    # what is imported stays: looking for garbage in it would take a sixth of the time
    gc.disable()
    runpy.run_module("labkit.clusters.forkserver.server", run_name="__main__", alter_sys=True)
