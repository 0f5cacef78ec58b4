"""Run by path in bubblewrap: becomes the sandboxes' forkserver, or one sandbox."""

import gc
import json
import runpy
import signal
import sys

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # what is imported stays: looking for garbage in it would take a sixth of the time
    gc.disable()
    module, options = sys.argv[1], json.loads(sys.argv[2])
    runpy.run_module(module, init_globals={"options": options}, run_name="__main__", alter_sys=True)
