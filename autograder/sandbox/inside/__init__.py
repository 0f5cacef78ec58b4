"""Programs that run in bubblewrap before, and around, a submission's own processes.

Inside, this folder is where it is outside; the rest of the grader is not there. It imports only the standard library,
labkit and itself.
"""
