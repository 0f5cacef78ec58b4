"""Run by path in bubblewrap: drops all privileges, then becomes the learner's JupyterLab."""

import json
import sys

if __name__ == "__main__":
    folder, options = sys.argv[1], json.loads(sys.argv[2])
    sys.path.append(folder)
    from classroom import server  # type: ignore[import-not-found]  # this folder's name in the sandbox

    server.main(options)
