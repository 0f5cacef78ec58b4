"""What learners have for `process_group`: given parts, visible checks, questions."""
