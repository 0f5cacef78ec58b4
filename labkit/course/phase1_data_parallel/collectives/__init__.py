"""What learners have for `collectives`: given parts, visible checks, questions."""
