"""What learners have for `scaling_study`: given parts, visible checks, questions."""
