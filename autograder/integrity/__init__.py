"""What an instructor may want to look at in what was handed in. Never a score: the judge gives marks, a person decides.

Nothing here runs a submission; its text is parsed in a process of its own (`workers`), with limits.
"""
