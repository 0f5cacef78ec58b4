"""`labkit analyze`: what limits a run, by what `labkit bench` or exercise 22's monitor has written.

training.py        # a monitor's log: where steps' time goes, who is slow, what leaks
scaling.py         # a benchmark's measurements: where efficiency goes
options.py         # the options, read without torch
command.py         # text, HTML, pictures
"""
