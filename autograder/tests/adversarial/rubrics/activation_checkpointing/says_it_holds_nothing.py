# Keeps all that it computes again, and puts functions of its own where the rubric asks how much is held.
# base: mutants/keeps_what_it_computed
# checks: memory released segment_memory
# marks: 0
# feedback: by the kernel's count
import labkit

labkit.memory_allocated = labkit.max_memory_allocated = lambda: 0
