"""Programs that run in a learner's sandbox. Visible there: labkit, all packages, `inside` here and of the sandbox, and
nothing else of the autograder.
"""
