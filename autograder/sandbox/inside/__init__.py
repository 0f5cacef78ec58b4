"""What runs in bubblewrap before, and around, a submission's own processes.

This folder is shown there under a name of its own, `enclosed`: the rest of the grader is not there. It imports the
standard library, labkit and itself only.
"""
