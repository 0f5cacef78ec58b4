"""Grading many submissions: side by side, resumable, nothing twice. See `labkit autograde`, and `run.py`.

Nothing is imported here: the workers' nursery begins its own imports while this process does the rest of its own.
"""
