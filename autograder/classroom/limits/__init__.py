"""How much memory and disk each learner's server may use, where servers are sandboxes on this machine.

sandboxes.py     the running servers, and which of their processes may be ended
memory.py        server, kernels and ranks together; the largest one ends
disk.py          the home and the submissions, counted by du; what makes them grow ends
notices.py       what learners read about it
service.py       looks at all of them, as a service of the hub
"""
