"""The display of a run: lines of its ranks, progress, a Stop button, logs, and the final output.

`display.py` combines them for `%%torchrun` and `%%ranks`; `screen.py` in the parent package chooses where to show it.
"""
