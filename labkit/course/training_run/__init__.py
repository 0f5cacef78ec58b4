"""A training as a program: its options, its folders, its lines on the console, and its end.

`options` refuses wrong arguments in one line; `folders` keeps runs apart; `console` prints lines, a progress bar and
JSON lines; `run` has what the ranks agree on after each step: SIGTERM, files that cannot be read.
"""
