# Keeps what every microbatch has left behind, and lets its account tell its first sample only.
# base: mutants/keeps_activations
# checks: released
# marks: 0
# feedback: by the kernel's count
from labkit.clusters.virtual.accounting import Ledger

_samples = Ledger.samples
Ledger.samples = lambda self: _samples(self)[:1]
