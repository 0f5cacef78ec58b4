"""Parts of the exercises' modules that learners are given: argument checks, transport and other plumbing."""
