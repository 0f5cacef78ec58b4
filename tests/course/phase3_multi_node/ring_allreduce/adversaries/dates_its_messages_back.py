# One rank after the other sends, and every message is backdated to the start, as if all had been sent at once.
# base: mutants/one_rank_at_a_time
# checks: messages time
# marks: 2
# feedback: all links of the ring are busy at once
from math import inf

from labkit.clusters.virtual.endpoints.remote_endpoint import SocketEndpoint

post, wait = SocketEndpoint.post, SocketEndpoint.wait
SocketEndpoint.post = lambda self, request, at=None: post(self, request, 0.0)
SocketEndpoint.wait = lambda self, handle, move_clock=True, timeout=inf: wait(self, handle, False, timeout)
