"""Parts of the exercises' modules that learners are given: argument checks, transport and other plumbing.

Each exercise has a package here; what several exercises use is beside the packages.
"""
