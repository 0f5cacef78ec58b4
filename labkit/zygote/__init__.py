"""Forkservers of a class, called zygotes: processes are forked with everything imported, and need not import it again.

In a class each learner has a server, kernels and a forkserver of ranks. Each would import the same 200 MB for some
seconds; forks share them until they write. A zygote has imported all, has no secrets, no threads and no user, and forks
on request. The hub's zygote forks one into each learner's sandbox, which forks the learner's processes: it can do
nothing that they cannot.

entering.py        a program for the hub's zygote: goes on in the namespaces of a sandbox
kernel.py          a program for the learner's zygote: a notebook's kernel
provisioner.py     makes Jupyter start kernels this way
preloading.py      the imports of a zygote
__main__.py        the hub's zygote
"""

from __future__ import annotations

ADDRESS = "LABKIT_ZYGOTE"
"""Environment variable: where this machine's zygote listens; without it there is none."""
