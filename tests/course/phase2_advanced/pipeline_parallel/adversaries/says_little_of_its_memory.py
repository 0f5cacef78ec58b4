# Keeps all microbatches' leftovers, and makes its account report a kilobyte.
# base: mutants/keeps_activations
# checks: released
# marks: 0
# feedback: by the kernel's count
from labkit.clusters.virtual.device.accounting import Ledger

_samples = Ledger.samples
Ledger.samples = lambda self: tuple(one._replace(nbytes=1000) for one in _samples(self)[:1])
