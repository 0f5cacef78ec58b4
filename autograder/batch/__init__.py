"""Batch grading: parallel, resumable, nothing graded twice. See `labkit autograde`, and `run.py`.

Nothing is imported here: the workers' forkserver begins its imports while this process does the rest of its own.
"""
