# Keeps everything that it recomputes, and replaces the functions that the rubric uses to measure memory.
# base: mutants/keeps_what_it_computed
# checks: memory released segment_memory
# marks: 0
# feedback: by the kernel's count
import labkit

labkit.memory_allocated = labkit.max_memory_allocated = lambda: 0
