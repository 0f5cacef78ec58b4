"""Run by path in bubblewrap: drops all privileges, and keeps the sandbox open until its lifeline ends.

Writes an empty line when the sandbox is made; the hub's zygote then forks the server into it. The lifeline is
standard input: a pipe that only the learner's server holds open.
"""

import json
import os
import sys

if __name__ == "__main__":
    folder, options = sys.argv[1], json.loads(sys.argv[2])
    sys.path.append(folder)
    from classroom import privileges  # type: ignore[import-not-found]  # this folder's name in the sandbox

    privileges.drop(options["uid"], options["processes"], options["file_bytes"])
    print(flush=True)
    # a program that holds less memory than Python waits
    os.execv("/bin/cat", ["cat"])
