"""Programs that run in a learner's sandbox. Visible there: labkit and all packages, not the autograder."""
