"""Limits of memory and disk for learners' servers that run on this machine, not in containers.

sandboxes.py     the running servers in sandboxes, and which of their processes may be ended
users.py         those of this machine's users
running.py       the servers of a hub, of either kind
groups.py        control groups, where the hub can make some
memory.py        server, kernels and ranks together; the largest one ends
disk.py          the home and the submissions, counted by du; what makes them grow ends
notices.py       what learners read about it
service.py       looks at all of them, as a service of the hub
"""
