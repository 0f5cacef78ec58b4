"""Material for instructors to review in submissions. Never a score: the judge gives marks, a person decides.

Nothing here runs a submission; its text is parsed in a separate process (`workers`), with limits.
"""
