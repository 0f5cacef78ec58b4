"""What is seen of a run: the lines of its ranks, how far it has come, a Stop button, logs, and what stays.

`display.py` puts it together for `%%torchrun` and `%%ranks`; `screen.py` next door says where it is shown.
"""
