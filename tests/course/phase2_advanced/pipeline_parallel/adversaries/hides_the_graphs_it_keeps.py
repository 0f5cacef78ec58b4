# Recomputes, but keeps the first graphs too, and makes its account report a kilobyte.
# base: mutants/keeps_the_graph_and_recomputes
# checks: recompute_memory
# marks: 0
# feedback: by the kernel's count
from labkit.clusters.virtual.device.accounting import Ledger

_samples = Ledger.samples
Ledger.samples = lambda self: tuple(one._replace(nbytes=1000) for one in _samples(self)[:1])
