"""Verdicts: each notebook of each learner is judged once; its verdict is stored in the course folder under a key."""
