"""Run by path in bubblewrap: drops all privileges, and keeps the sandbox open until its lifeline ends.

Writes an empty line when the sandbox is made; the hub's zygote then forks the server into it. The lifeline is
standard input: a pipe that only the learner's server holds open.
"""

import json
import os
import sys

from autograder.classroom.inside import privileges

if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    privileges.drop(options["uid"], options["processes"], options["file_bytes"])
    print(flush=True)
    # cat waits, and holds less memory than Python
    os.execv("/bin/cat", ["cat"])
