"""Forkservers: processes that have imported what others need, and fork them on request.

Torch takes seconds to import and 200 MB. A fork has it in milliseconds, and shares the memory until it writes. A
forkserver has one thread, no user and no secrets. There is one for a notebook's ranks (labkit/clusters/forkserver), for
the servers and kernels of a class (labkit/zygote), for workers that grade and for the sandboxes of submissions
(autograder/batch, autograder/sandbox): what they import and fork differs, the rest is here.

request.py   what a process is to be
server.py    forks it, and tells how it ends
spares.py    keeps a process that has been forked ahead
client.py    requests a process, which then has the interface of `subprocess.Popen`
held.py      a forkserver that this process has started, and starts again when it has ended
"""
